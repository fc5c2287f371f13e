/* Which GPUs there are and what identifies them: counts, handles, names, UUIDs, PCI addresses, memory sizes.
 *
 * Does not belong here: measurements (board.c) and partitions (mig.c).
 */
#include "layout.h"

API nvmlDeviceGetCount_v2(u32 *count) {
    int status = enter();
    if (status != SUCCESS)
        return status;
    if (!count)
        return INVALID_ARGUMENT;
    *count = visible_count();
    return SUCCESS;
}

API nvmlDeviceGetCount(u32 *count) { return nvmlDeviceGetCount_v2(count); }

API nvmlDeviceGetHandleByIndex_v2(u32 index, const struct handle **device) {
    int status = enter();
    if (status != SUCCESS)
        return status;
    if (!device || !visible_gpu(index))
        return INVALID_ARGUMENT;
    u32 gpu = visible_gpu(index)->gpu;
    if (number_or(gpu_fact(gpu, "lost"), 0))
        return GPU_IS_LOST;
    *device = gpu_handle(gpu);
    return SUCCESS;
}

API nvmlDeviceGetHandleByIndex(u32 index, const struct handle **device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

/* Reads an address such as 0000:17:00.0 or 17:00.0, any case, any width of the domain. */
static int read_address(const char *text, u64 parts[4]) {
    u64 found[4] = {0};
    int colons = 0;
    for (const char *place = text; *place; place++)
        colons += *place == ':';
    int part = colons == 1 ? 1 : 0;
    if (colons != 1 && colons != 2)
        return 0;
    for (; *text; text++) {
        if (*text == ':' || *text == '.') {
            if (++part > 3)
                return 0;
            continue;
        }
        char letter = (char)(*text >= 'A' && *text <= 'F' ? *text + 32 : *text);
        if ((letter < '0' || letter > '9') && (letter < 'a' || letter > 'f'))
            return 0;
        found[part] = found[part] * 16 + (u64)(letter <= '9' ? letter - '0' : letter - 'a' + 10);
    }
    for (int place = 0; place < 4; place++)
        parts[place] = found[place];
    return 1;
}

int read_bus(const char *text, u64 parts[4]) { return text && read_address(text, parts); }

void write_bus(char *text, u32 domain_digits, const u64 parts[4]) {
    char *end = put_hex(text, parts[0], domain_digits, 1);
    end = put_hex(put_text(end, ":"), parts[1], 2, 1);
    put_text(put_hex(put_text(end, ":"), parts[2], 2, 1), ".0");
}

API nvmlDeviceGetHandleByPciBusId_v2(const char *address, const struct handle **device) {
    int status = enter();
    if (status != SUCCESS)
        return status;
    u64 wanted[4], own[4];
    if (!device || !read_bus(address, wanted))
        return INVALID_ARGUMENT;
    for (u32 index = 0; index < visible_count(); index++) {
        const struct handle *gpu = visible_gpu(index);
        if (read_bus(gpu_fact(gpu->gpu, "pci.bus_id"), own) && own[0] == wanted[0] && own[1] == wanted[1] &&
            own[2] == wanted[2]) {
            *device = gpu;
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

API nvmlDeviceGetHandleByPciBusId(const char *address, const struct handle **device) {
    return nvmlDeviceGetHandleByPciBusId_v2(address, device);
}

API nvmlDeviceGetHandleBySerial(const char *serial, const struct handle **device) {
    int status = enter();
    if (status != SUCCESS)
        return status;
    if (!device || !serial)
        return INVALID_ARGUMENT;
    for (u32 index = 0; index < visible_count(); index++) {
        const char *own = gpu_fact(visible_gpu(index)->gpu, "serial");
        if (own && same_text(own, serial)) {
            *device = visible_gpu(index);
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

/* MIG-GPU-<uuid>/gi/ci, the form before branch 470. */
static int old_mig_name(const char *uuid, u32 gpu, u64 *instance, u64 *compute) {
    const char *own = gpu_fact(gpu, "uuid");
    for (uuid += 4; *own; own++, uuid++)
        if (*own != *uuid)
            return 0;
    if (*uuid != '/' || !parse_u64(uuid + 1, instance))
        return 0;
    for (uuid++; *uuid && *uuid != '/'; uuid++)
        ;
    return *uuid == '/' && parse_u64(uuid + 1, compute);
}

static const struct handle *mig_by_uuid(u32 gpu, const char *uuid) {
    u32 count = mig_enabled(gpu) ? (u32)number_or(gpu_fact(gpu, "migs"), 0) : 0;
    u64 old_instance = 99, old_compute = 99;
    int old = old_mig_name(uuid, gpu, &old_instance, &old_compute);
    for (u32 item = 0; item < count; item++) {
        u32 instance = (u32)number_or(item_fact(gpu, "m", item, "gi"), 0);
        u32 compute = (u32)number_or(item_fact(gpu, "m", item, "ci"), 0);
        const char *own = item_fact(gpu, "m", item, "uuid");
        int named = (own && same_text(own, uuid)) || (old && instance == old_instance && compute == old_compute);
        if (named && mig_visible(gpu, instance, compute))
            return mig_handle(gpu, instance, compute);
    }
    return NULL;
}

API nvmlDeviceGetHandleByUUID(const char *uuid, const struct handle **device) {
    int status = enter();
    if (status != SUCCESS)
        return status;
    if (!uuid || !device)
        return INVALID_ARGUMENT;
    int mig = uuid[0] == 'M' && uuid[1] == 'I' && uuid[2] == 'G' && uuid[3] == '-';
    for (u32 index = 0; index < visible_count(); index++) {
        const struct handle *gpu = visible_gpu(index);
        const struct handle *found = mig ? mig_by_uuid(gpu->gpu, uuid) : NULL;
        const char *own = gpu_fact(gpu->gpu, "uuid");
        if (!mig && own && same_text(own, uuid))
            found = gpu;
        if (found) {
            *device = found;
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

/* Writes the sixteen bytes of a UUID such as GPU-0123...; the digits are in the order of the text. */
static void uuid_bytes(const char *text, u8 bytes[16]) {
    while (*text && *text != '-')
        text++;
    for (u32 digit = 0; digit < 32 && *text; text++) {
        char letter = *text;
        if (letter == '-')
            continue;
        u8 value = (u8)(letter <= '9' ? letter - '0' : letter - 'a' + 10);
        bytes[digit / 2] = (u8)(digit % 2 ? (bytes[digit / 2] & 0xf0) | value : value << 4);
        digit++;
    }
}

API nvmlDeviceGetHandleByUUIDV(const struct uuid_query *query, const struct handle **device) {
    int status = enter();
    if (status != SUCCESS)
        return status;
    if (!query || !device)
        return INVALID_ARGUMENT;
    if (query->version != VERSIONED(struct uuid_query, 1))
        return VERSION_MISMATCH;
    if (query->type == 1)
        return nvmlDeviceGetHandleByUUID(query->text, device);
    if (query->type != 2)
        return INVALID_ARGUMENT;
    for (u32 index = 0; index < visible_count(); index++) {
        u8 own[16] = {0};
        int same = 1;
        uuid_bytes(gpu_fact(visible_gpu(index)->gpu, "uuid"), own);
        for (u32 place = 0; place < 16; place++)
            same &= own[place] == query->bytes[place];
        if (same) {
            *device = visible_gpu(index);
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

API nvmlDeviceGetIndex(const struct handle *device, u32 *index) {
    u32 gpu;
    int status = enter_device(device, &gpu);
    if (status != SUCCESS)
        return status;
    if (!index)
        return INVALID_ARGUMENT;
    if (device->kind == KIND_MIG)
        return find_mig(gpu, device->instance, device->compute, index);
    return visible_index(gpu, index);
}

static int mig_text(const struct handle *device, const char *name, char *buffer, u32 length) {
    u32 item;
    int status = find_mig(device->gpu, device->instance, device->compute, &item);
    if (status != SUCCESS)
        return status;
    const char *text = item_fact(device->gpu, "m", item, name);
    return text ? copy_text(text, buffer, length) : NOT_SUPPORTED;
}

API nvmlDeviceGetName(const struct handle *device, char *buffer, u32 length) {
    u32 gpu;
    int status = enter_device(device, &gpu);
    if (status != SUCCESS)
        return status;
    return device->kind == KIND_MIG ? mig_text(device, "name", buffer, length)
                                    : answer_text(device, "name", buffer, length);
}

API nvmlDeviceGetUUID(const struct handle *device, char *buffer, u32 length) {
    u32 gpu;
    int status = enter_device(device, &gpu);
    if (status != SUCCESS)
        return status;
    return device->kind == KIND_MIG ? mig_text(device, "uuid", buffer, length)
                                    : answer_text(device, "uuid", buffer, length);
}

API nvmlDeviceGetBrand(const struct handle *device, u32 *brand) { return answer_u32(device, "brand", brand); }

API nvmlDeviceGetArchitecture(const struct handle *device, u32 *architecture) {
    return answer_u32(device, "architecture", architecture);
}

API nvmlDeviceGetMinorNumber(const struct handle *device, u32 *minor) { return answer_u32(device, "minor", minor); }

API nvmlDeviceGetSerial(const struct handle *device, char *buffer, u32 length) {
    return answer_text(device, "serial", buffer, length);
}

API nvmlDeviceGetBoardPartNumber(const struct handle *device, char *buffer, u32 length) {
    return answer_text(device, "board_part_number", buffer, length);
}

API nvmlDeviceGetVbiosVersion(const struct handle *device, char *buffer, u32 length) {
    return answer_text(device, "vbios_version", buffer, length);
}

API nvmlDeviceGetCudaComputeCapability(const struct handle *device, i32 *major, i32 *minor) {
    u32 gpu;
    int status = enter_device(device, &gpu);
    if (status != SUCCESS)
        return status;
    if (!major || !minor)
        return INVALID_ARGUMENT;
    *major = (i32)number_or(gpu_fact(gpu, "compute_capability.major"), 0);
    *minor = (i32)number_or(gpu_fact(gpu, "compute_capability.minor"), 0);
    return SUCCESS;
}

/* The PCI facts of a GPU; a MIG device has those of its GPU. */
static int pci_facts(const struct handle *device, struct pci_info *info) {
    u32 gpu;
    int status = enter_device(device, &gpu);
    if (status != SUCCESS)
        return status;
    u64 parts[4];
    clear(info, sizeof *info);
    if (!read_bus(gpu_fact(gpu, "pci.bus_id"), parts))
        return NOT_SUPPORTED;
    info->domain = (u32)parts[0];
    info->bus = (u32)parts[1];
    info->device = (u32)parts[2];
    info->device_id = (u32)number_or(gpu_fact(gpu, "pci.device_id"), 0);
    info->subsystem_id = (u32)number_or(gpu_fact(gpu, "pci.subsystem_id"), 0);
    write_bus(info->bus_id_legacy, 4, parts);
    write_bus(info->bus_id, 8, parts);
    return SUCCESS;
}

API nvmlDeviceGetPciInfo_v3(const struct handle *device, struct pci_info *info) {
    struct pci_info found;
    int status = pci_facts(device, &found);
    /* nvidia-smi prints the address of an integrated GPU, which has none, after the refusal: let it be empty. */
    if (status == NOT_SUPPORTED && info)
        *info = found;
    if (status != SUCCESS)
        return status;
    if (!info)
        return INVALID_ARGUMENT;
    *info = found;
    return SUCCESS;
}

API nvmlDeviceGetPciInfo_v2(const struct handle *device, struct pci_info_short *info) {
    struct pci_info found;
    int status = pci_facts(device, &found);
    if (status != SUCCESS)
        return status;
    if (!info)
        return INVALID_ARGUMENT;
    copy_text(found.bus_id_legacy, info->bus_id_legacy, sizeof info->bus_id_legacy);
    info->domain = found.domain;
    info->bus = found.bus;
    info->device = found.device;
    info->device_id = found.device_id;
    info->subsystem_id = found.subsystem_id;
    return SUCCESS;
}

API nvmlDeviceGetPciInfo(const struct handle *device, struct pci_info_short *info) {
    return nvmlDeviceGetPciInfo_v2(device, info);
}

API nvmlDeviceGetPciInfoExt(const struct handle *device, struct pci_info_ext *info) {
    struct pci_info found;
    int status = pci_facts(device, &found);
    if (status != SUCCESS)
        return status;
    if (!info)
        return INVALID_ARGUMENT;
    if (info->version != VERSIONED(struct pci_info_ext, 1))
        return VERSION_MISMATCH;
    u32 class = (u32)number_or(gpu_fact(device->gpu, "pci.class"), 0x030200);
    info->domain = found.domain;
    info->bus = found.bus;
    info->device = found.device;
    info->device_id = found.device_id;
    info->subsystem_id = found.subsystem_id;
    info->base_class = class >> 16;
    info->sub_class = class >> 8 & 0xff;
    return copy_text(found.bus_id, info->bus_id, sizeof info->bus_id);
}

static int memory_facts(const struct handle *device, struct memory_v2 *memory) {
    u32 gpu, item;
    int status = enter_device(device, &gpu);
    if (status != SUCCESS)
        return status;
    if (device->kind == KIND_MIG) {
        status = find_mig(gpu, device->instance, device->compute, &item);
        if (status != SUCCESS)
            return status;
        memory->total = number_or(item_fact(gpu, "m", item, "memory_mib"), 0) << 20;
        memory->used = number_or(item_fact(gpu, "m", item, "used_bytes"), 0);
        memory->reserved = 0;
    } else {
        if (!parse_u64(gpu_fact(gpu, "memory.total_bytes"), &memory->total))
            return NOT_SUPPORTED;
        memory->used = number_or(gpu_fact(gpu, "memory.used_bytes"), 0);
        memory->reserved = number_or(gpu_fact(gpu, "memory.reserved_bytes"), 0);
    }
    memory->free = memory->total - memory->used - memory->reserved;
    return SUCCESS;
}

API nvmlDeviceGetMemoryInfo(const struct handle *device, struct memory *memory) {
    struct memory_v2 found;
    int status = memory_facts(device, &found);
    if (status != SUCCESS)
        return status;
    if (!memory)
        return INVALID_ARGUMENT;
    /* The first form knows no reserved memory: since branch 510 it counts as used. */
    memory->total = found.total;
    memory->free = number_or(fact("driver.version"), 0) < 510 ? found.total - found.used : found.free;
    memory->used = found.total - memory->free;
    return SUCCESS;
}

API nvmlDeviceGetMemoryInfo_v2(const struct handle *device, struct memory_v2 *memory) {
    struct memory_v2 found;
    int status = memory_facts(device, &found);
    if (status != SUCCESS)
        return status;
    if (!memory)
        return INVALID_ARGUMENT;
    if (memory->version != VERSIONED(struct memory_v2, 2))
        return VERSION_MISMATCH;
    memory->total = found.total;
    memory->reserved = found.reserved;
    memory->free = found.free;
    memory->used = found.used;
    return SUCCESS;
}

API nvmlDeviceGetBAR1MemoryInfo(const struct handle *device, struct bar1 *memory) {
    u32 gpu;
    int status = enter_device(device, &gpu);
    if (status != SUCCESS)
        return status;
    if (!memory)
        return INVALID_ARGUMENT;
    u64 total;
    if (!parse_u64(gpu_fact(gpu, "bar1_memory.total_bytes"), &total))
        return NOT_SUPPORTED;
    u64 used = number_or(gpu_fact(gpu, "bar1_memory.used_bytes"), 0);
    if (device->kind == KIND_MIG) {
        total /= 2;
        used = 0;
    }
    memory->total = total;
    memory->used = used;
    memory->free = total - used;
    return SUCCESS;
}
