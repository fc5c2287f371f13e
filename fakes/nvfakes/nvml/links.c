/* How GPUs are connected: NVLink, the fabric, the PCI topology, and the processors near them.
 *
 * With NVSwitches every link of a GPU ends at a switch and all GPUs reach each other over all links. Without them the
 * links of each GPU are shared out evenly among the other GPUs that have any.
 */
#include "layout.h"

enum { MOST_LINKS = 18 };

static u32 machine_gpus(void) { return (u32)number_or(fact("gpus"), 0); }

static u32 switches(void) { return (u32)number_or(fact("switches"), 0); }

u32 link_count(u32 gpu) { return (u32)number_or(gpu_fact(gpu, "nvlink.links"), 0); }

static u32 linked_gpus(void) {
    u32 found = 0;
    for (u32 gpu = 0; gpu < machine_gpus(); gpu++)
        found += link_count(gpu) > 0;
    return found;
}

/* Returns how many links lie between two GPUs. */
u32 links_between(u32 one, u32 two) {
    u32 links = link_count(one), other = link_count(two), gpus = linked_gpus();
    if (one == two || !links || !other || gpus < 2)
        return 0;
    if (other < links)
        links = other;
    return switches() ? links : links / (gpus - 1);
}

/* Finds the GPU at the other end of a direct link. */
static int link_target(u32 gpu, u32 link, u32 *target) {
    u32 gpus = linked_gpus();
    if (gpus < 2)
        return 0;
    u32 step = link / (link_count(gpu) / (gpus - 1)), seen = 0;
    for (u32 other = 0; other < machine_gpus(); other++)
        if (other != gpu && link_count(other) && seen++ == step) {
            *target = other;
            return 1;
        }
    return 0;
}

int link_active(u32 gpu, u32 link) {
    u32 target;
    if (link >= link_count(gpu))
        return 0;
    char key[64];
    put_number(put_text(key, "nvlink.down"), link);
    return !gpu_fact(gpu, key) && (switches() || link_target(gpu, link, &target));
}

static int enter_link(const struct handle *device, u32 link, const void *out, u32 *gpu) {
    int status = enter_gpu(device, gpu);
    if (status != SUCCESS)
        return status;
    if (!out || link >= MOST_LINKS)
        return INVALID_ARGUMENT;
    return link < link_count(*gpu) ? SUCCESS : NOT_SUPPORTED;
}

API nvmlDeviceGetNvLinkState(const struct handle *device, u32 link, u32 *active) {
    u32 gpu;
    int status = enter_link(device, link, active, &gpu);
    if (status == SUCCESS)
        *active = (u32)link_active(gpu, link);
    return status;
}

API nvmlDeviceGetNvLinkVersion(const struct handle *device, u32 link, u32 *version) {
    u32 gpu;
    int status = enter_link(device, link, version, &gpu);
    if (status == SUCCESS)
        *version = (u32)number_or(gpu_fact(gpu, "nvlink.version"), 0);
    return status;
}

API nvmlDeviceGetNvLinkCapability(const struct handle *device, u32 link, u32 capability, u32 *answer) {
    u32 gpu;
    int status = enter_link(device, link, answer, &gpu);
    if (status == SUCCESS && capability > 5)
        return INVALID_ARGUMENT;
    if (status == SUCCESS)
        *answer = 1;
    return status;
}

API nvmlDeviceGetNvLinkErrorCounter(const struct handle *device, u32 link, u32 counter, u64 *count) {
    u32 gpu;
    int status = enter_link(device, link, count, &gpu);
    if (status == SUCCESS && counter > 4)
        return INVALID_ARGUMENT;
    if (status == SUCCESS)
        *count = number_or(gpu_fact(gpu, "nvlink.errors"), 0);
    return status;
}

API nvmlDeviceGetNvLinkRemoteDeviceType(const struct handle *device, u32 link, u32 *kind) {
    u32 gpu;
    int status = enter_link(device, link, kind, &gpu);
    if (status == SUCCESS && !link_active(gpu, link))
        return NOT_SUPPORTED;
    if (status == SUCCESS)
        *kind = switches() ? 2 : 0;
    return status;
}

static int address(const char *text, struct pci_info *info) {
    u64 parts[4];
    if (!read_bus(text, parts))
        return NOT_SUPPORTED;
    clear(info, sizeof *info);
    info->domain = (u32)parts[0];
    info->bus = (u32)parts[1];
    info->device = (u32)parts[2];
    write_bus(info->bus_id_legacy, 4, parts);
    write_bus(info->bus_id, 8, parts);
    return SUCCESS;
}

API nvmlDeviceGetNvLinkRemotePciInfo_v2(const struct handle *device, u32 link, struct pci_info *info) {
    u32 gpu, target;
    int status = enter_link(device, link, info, &gpu);
    if (status != SUCCESS)
        return status;
    if (!link_active(gpu, link))
        return NOT_SUPPORTED;
    if (!switches())
        return link_target(gpu, link, &target) ? address(gpu_fact(target, "pci.bus_id"), info) : NOT_SUPPORTED;
    char key[64];
    put_text(put_number(put_text(key, "s"), link % switches()), ".bus_id");
    return address(fact(key), info);
}

API nvmlDeviceGetNvLinkRemotePciInfo(const struct handle *device, u32 link, struct pci_info_short *info) {
    struct pci_info found;
    int status = nvmlDeviceGetNvLinkRemotePciInfo_v2(device, link, info ? &found : NULL);
    if (status != SUCCESS)
        return status;
    copy_text(found.bus_id_legacy, info->bus_id_legacy, sizeof info->bus_id_legacy);
    info->domain = found.domain;
    info->bus = found.bus;
    info->device = found.device;
    info->device_id = info->subsystem_id = 0;
    return SUCCESS;
}

/* The fabric of NVSwitches that a fabric manager sets up. */

static int fabric(const struct handle *device, struct fabric *out) {
    u32 gpu;
    int status = enter_gpu(device, &gpu);
    if (status != SUCCESS)
        return status;
    const char *uuid = gpu_fact(gpu, "fabric.cluster_uuid");
    if (!uuid || !switches())
        return NOT_SUPPORTED;
    clear(out, sizeof *out);
    for (u32 digit = 0; digit < 32 && *uuid; uuid++)
        if (*uuid != '-') {
            u8 value = (u8)(*uuid <= '9' ? *uuid - '0' : (*uuid | 32) - 'a' + 10);
            out->cluster[digit / 2] |= (u8)(digit % 2 ? value : value << 4);
            digit++;
        }
    out->clique = (u32)number_or(gpu_fact(gpu, "fabric.clique_id"), 0);
    out->state = (u32)number_or(gpu_fact(gpu, "fabric.state"), 0);
    out->status = (u32)number_or(gpu_fact(gpu, "fabric.status"), 0);
    return SUCCESS;
}

API nvmlDeviceGetGpuFabricInfo(const struct handle *device, struct fabric *out) {
    struct fabric found;
    int status = fabric(device, &found);
    if (status == SUCCESS && !out)
        return INVALID_ARGUMENT;
    if (status == SUCCESS)
        *out = found;
    return status;
}

API nvmlDeviceGetGpuFabricInfoV(const struct handle *device, struct fabric_v3 *out) {
    struct fabric found;
    int status = fabric(device, &found);
    if (status != SUCCESS)
        return status;
    if (!out)
        return INVALID_ARGUMENT;
    u32 second = (u32)(sizeof(struct fabric_v2) | 2u << 24);
    if (out->version != second && out->version != VERSIONED(struct fabric_v3, 3))
        return VERSION_MISMATCH;
    for (u32 place = 0; place < 16; place++)
        out->cluster[place] = found.cluster[place];
    out->status = found.status;
    out->clique = found.clique;
    out->state = found.state;
    out->health = (u32)number_or(gpu_fact(device->gpu, "fabric.health"), 0x1aa); /* no fault */
    if (out->version != second)
        out->summary = (u8)number_or(gpu_fact(device->gpu, "fabric.health_summary"), 1); /* healthy */
    return SUCCESS;
}

/* The PCI topology knows processors' nodes only. */

static int same_node(u32 one, u32 two) {
    return number_or(gpu_fact(one, "numa_node"), 0) == number_or(gpu_fact(two, "numa_node"), 0);
}

/* The level that slot 23 of the internal table answers: 3 same node, 4 across nodes, 4 + N over N links. */
u32 connection_level(u32 one, u32 two) {
    u32 links = links_between(one, two);
    if (links)
        return 4 + links;
    return same_node(one, two) ? 3 : 4;
}

API nvmlDeviceGetTopologyCommonAncestor(const struct handle *one, const struct handle *two, u32 *level) {
    u32 first, second;
    int status = enter_gpus(one, two, &first, &second);
    if (status != SUCCESS)
        return status;
    if (!level)
        return INVALID_ARGUMENT;
    *level = first == second ? 0 : same_node(first, second) ? 40 : 50;
    return SUCCESS;
}

API nvmlDeviceGetTopologyNearestGpus(const struct handle *device, u32 level, u32 *count, const struct handle **out) {
    u32 gpu, found = 0;
    int status = enter_gpu(device, &gpu);
    if (status != SUCCESS)
        return status;
    if (!count || (*count && !out))
        return INVALID_ARGUMENT;
    for (u32 index = 0; index < visible_count(); index++) {
        const struct handle *other = visible_gpu(index);
        if (other->gpu == gpu || level != (same_node(gpu, other->gpu) ? 40u : 50u))
            continue;
        if (found < *count)
            out[found] = other;
        found++;
    }
    *count = found;
    return SUCCESS;
}

API nvmlDeviceGetP2PStatus(const struct handle *one, const struct handle *two, u32 kind, u32 *answer) {
    u32 first, second;
    int status = enter_gpus(one, two, &first, &second);
    if (status != SUCCESS)
        return status;
    if (!answer || kind > 5)
        return INVALID_ARGUMENT;
    int linked = links_between(first, second) > 0;
    int allowed = kind == 2 ? linked : kind == 3 ? linked : linked || number_or(gpu_fact(first, "brand"), 0) != 5;
    *answer = allowed ? 0 : 5;
    return SUCCESS;
}

/* The processors of a GPU's node are "first:count" in the machine's data. */

static int affinity(const struct handle *device, u32 words, u64 *set, const char *key) {
    u32 gpu;
    int status = enter_gpu(device, &gpu);
    if (status != SUCCESS)
        return status;
    if (!words || !set)
        return INVALID_ARGUMENT;
    const char *list = gpu_fact(gpu, key);
    if (!list)
        return NOT_SUPPORTED;
    clear(set, words * sizeof *set);
    u64 first, count;
    while (next_number(&list, &first) && next_number(&list, &count))
        for (u64 bit = first; bit < first + count && bit / 64 < words; bit++)
            set[bit / 64] |= 1ull << bit % 64;
    return SUCCESS;
}

API nvmlDeviceGetCpuAffinity(const struct handle *device, u32 words, u64 *set) {
    return affinity(device, words, set, "cpus");
}

API nvmlDeviceGetCpuAffinityWithinScope(const struct handle *device, u32 words, u64 *set, u32 scope) {
    (void)scope;
    return affinity(device, words, set, "cpus");
}

API nvmlDeviceGetMemoryAffinity(const struct handle *device, u32 words, u64 *set, u32 scope) {
    (void)scope;
    return affinity(device, words, set, "memory_nodes");
}
