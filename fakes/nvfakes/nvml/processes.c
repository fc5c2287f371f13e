/* The processes on a GPU, as the machine's data lists them: number, name, kind (C compute, G graphics, M under MPS),
 * memory, and under MIG the instances they run on.
 */
#include "layout.h"

struct process {
    u32 pid;
    u64 bytes;
    u32 instance, compute;
};

enum { NONE = 0xFFFFFFFF };

static const char *process_text(u32 gpu, u32 item, const char *name) { return item_fact(gpu, "processes", item, name); }

/* Tells whether a process is of a kind; one of kind "C+G" is of both. */
static int of_kind(u32 gpu, u32 item, char kind) {
    const char *text = process_text(gpu, item, "type");
    if (!text)
        return kind == 'C';
    for (; *text; text++)
        if (*text == kind || (kind == 'C' && *text == 'M'))
            return 1;
    return 0;
}

static int of_device(const struct handle *device, u32 item) {
    if (device->kind != KIND_MIG)
        return 1;
    u32 gpu = device->gpu;
    return number_or(process_text(gpu, item, "gpu_instance_id"), NONE) == device->instance &&
           number_or(process_text(gpu, item, "compute_instance_id"), NONE) == device->compute;
}

static void fill(u32 gpu, u32 item, struct process *process) {
    u64 mebibytes = number_or(process_text(gpu, item, "used_memory_mib"), 0);
    process->pid = (u32)number_or(process_text(gpu, item, "pid"), 0);
    process->bytes = number_or(process_text(gpu, item, "used_memory_bytes"), mebibytes << 20);
    process->instance = (u32)number_or(process_text(gpu, item, "gpu_instance_id"), NONE);
    process->compute = (u32)number_or(process_text(gpu, item, "compute_instance_id"), NONE);
}

/* Finds the processes of a kind on a device; returns how many there are, also beyond the room. */
static u32 find(const struct handle *device, char kind, u32 room, u32 *items) {
    u32 count = (u32)number_or(gpu_fact(device->gpu, "processes"), 0), found = 0;
    for (u32 item = 0; item < count; item++)
        if (of_kind(device->gpu, item, kind) && of_device(device, item)) {
            if (found < room)
                items[found] = item;
            found++;
        }
    return found;
}

enum { MOST = 256 };

/* Finds the processes of a kind and tells their number; an error where the caller has no room for them. */
static int find_listed(const struct handle *device, char kind, u32 *count, const void *out, u32 *gpu, u32 *items) {
    int status = enter_device(device, gpu);
    if (status != SUCCESS)
        return status;
    if (!count || (*count && !out))
        return INVALID_ARGUMENT;
    u32 room = *count;
    *count = find(device, kind, MOST, items);
    return *count > room ? INSUFFICIENT_SIZE : SUCCESS;
}

static int list(const struct handle *device, char kind, u32 *count, void *out, u32 stride) {
    u32 gpu, items[MOST];
    int status = find_listed(device, kind, count, out, &gpu, items);
    if (status != SUCCESS)
        return status;
    for (u32 place = 0; place < *count; place++) {
        struct process process;
        fill(gpu, items[place], &process);
        char *target = (char *)out + (size_t)place * stride;
        *(u32 *)target = process.pid;
        *(u64 *)(target + 8) = process.bytes;
        if (stride >= 24) {
            *(u32 *)(target + 16) = process.instance;
            *(u32 *)(target + 20) = process.compute;
        }
    }
    return SUCCESS;
}

#define LIST(function, kind, stride)                                                                                   \
    API function(const struct handle *device, u32 *count, void *out) { return list(device, kind, count, out, stride); }

LIST(nvmlDeviceGetComputeRunningProcesses, 'C', 16)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, 'C', 24)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, 'C', 24)
LIST(nvmlDeviceGetGraphicsRunningProcesses, 'G', 16)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, 'G', 24)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, 'G', 24)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, 'M', 16)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, 'M', 24)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, 'M', 24)

/* The entries of the internal table's slots 213 to 215, with the name inside. */
struct named_process {
    u32 pid;
    u64 bytes;
    u32 instance, compute;
    u64 protected;
    char name[4096];
};

int list_named(const struct handle *device, char kind, u32 *count, void *out) {
    u32 gpu, items[MOST];
    int status = find_listed(device, kind, count, out, &gpu, items);
    if (status != SUCCESS)
        return status;
    struct named_process *entries = out;
    for (u32 place = 0; place < *count; place++) {
        struct process process;
        fill(gpu, items[place], &process);
        const char *name = process_text(gpu, items[place], "name");
        entries[place].pid = process.pid;
        entries[place].bytes = process.bytes;
        entries[place].instance = process.instance;
        entries[place].compute = process.compute;
        entries[place].protected = 0;
        copy_text(name ? name : "[Not Found]", entries[place].name, sizeof entries[place].name);
    }
    return SUCCESS;
}

/* The name of a declared process, for a process that exists in the data only. */
const char *declared_name(u32 pid) {
    u32 gpus = (u32)number_or(fact("gpus"), 0);
    for (u32 gpu = 0; gpu < gpus; gpu++) {
        u32 count = (u32)number_or(gpu_fact(gpu, "processes"), 0);
        for (u32 item = 0; item < count; item++)
            if (number_or(process_text(gpu, item, "pid"), 0) == pid)
                return process_text(gpu, item, "name");
    }
    return NULL;
}

API nvmlDeviceGetProcessUtilization(const struct handle *device, void *samples, u32 *count, u64 since) {
    u32 gpu;
    (void)samples;
    (void)since;
    int status = enter_device(device, &gpu);
    if (status != SUCCESS)
        return status;
    if (!count)
        return INVALID_ARGUMENT;
    *count = 0;
    return NOT_FOUND;
}
