/* What NVML can change: modes, limits, and the creation of MIG instances.
 *
 * The library changes nothing itself. It asks the process that carries out changes of the machine, over an abstract
 * socket whose name is a fact; where that cannot be reached, as from another network namespace, the answer is 4, no
 * permission. As with the real driver only root may change anything.
 */
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "layout.h"

/* Sends one line and reads "code number". */
static int ask(const char *words, u32 *number) {
    const char *name = fact("kernel.socket");
    if (!name)
        return NO_PERMISSION;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    u32 length = text_length(name);
    if (length + 2 > sizeof address.sun_path)
        return NO_PERMISSION;
    copy_text(name, address.sun_path + 1, sizeof address.sun_path - 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return NO_PERMISSION;
    char reply[64] = {0};
    int status = NO_PERMISSION;
    if (!connect(fd, (struct sockaddr *)&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length)) &&
        write(fd, words, text_length(words)) > 0 && read(fd, reply, sizeof reply - 1) > 0) {
        const char *place = reply;
        status = (int)number_or(place, UNKNOWN);
        while (*place && *place != ' ')
            place++;
        if (number)
            *number = (u32)number_or(*place ? place + 1 : "0", 0);
    }
    close(fd);
    return status;
}

static int set_text(u32 gpu, const char *key, const char *value) {
    char words[256];
    char *end = put_text(put_number(put_text(words, "nvml set "), gpu), " ");
    put_text(put_text(put_text(put_text(end, key), " "), value), "\n");
    return ask(words, NULL);
}

static int set_number(u32 gpu, const char *key, u64 value) {
    char text[32];
    put_number(text, value);
    return set_text(gpu, key, text);
}

/* Sets a fact that the GPU has; one that it does not have is not supported. */
static int set_known(const struct handle *device, const char *key, u64 value, u64 most) {
    u32 gpu;
    int status = enter_gpu(device, &gpu);
    if (status != SUCCESS)
        return status;
    if (value > most)
        return INVALID_ARGUMENT;
    return gpu_fact(gpu, key) ? set_number(gpu, key, value) : NOT_SUPPORTED;
}

API nvmlDeviceSetPersistenceMode(const struct handle *device, u32 mode) {
    return set_known(device, "persistence_mode", mode, 1);
}

API nvmlDeviceSetComputeMode(const struct handle *device, u32 mode) {
    return set_known(device, "compute_mode", mode, 3);
}

API nvmlDeviceSetAccountingMode(const struct handle *device, u32 mode) {
    return set_known(device, "accounting.mode", mode, 1);
}

/* Takes effect at the next start of the machine. */
API nvmlDeviceSetEccMode(const struct handle *device, u32 mode) { return set_known(device, "ecc.mode_pending", mode, 1); }

API nvmlDeviceClearEccErrorCounts(const struct handle *device, u32 counter) {
    static const char *const locations[] = {"l1_cache",       "l2_cache",    "device_memory", "register_file",
                                            "texture_memory", "texture_shm", "cbu",           "sram", "total"};
    u32 gpu;
    int status = enter_gpu(device, &gpu);
    if (status != SUCCESS)
        return status;
    if (counter > 1)
        return INVALID_ARGUMENT;
    if (!number_or(gpu_fact(gpu, "ecc.mode_current"), 0))
        return NOT_SUPPORTED;
    for (u32 kind = 0; kind < 2; kind++)
        for (u32 location = 0; location < sizeof locations / sizeof *locations; location++) {
            char key[96];
            char *end = put_text(key, counter ? "ecc.errors.aggregate." : "ecc.errors.volatile.");
            put_text(put_text(put_text(end, kind ? "double_bit" : "single_bit"), "."), locations[location]);
            if (gpu_fact(gpu, key) && status == SUCCESS)
                status = set_number(gpu, key, 0);
        }
    return status;
}

API nvmlDeviceSetPowerManagementLimit(const struct handle *device, u32 milliwatts) {
    u32 gpu;
    int status = enter_gpu(device, &gpu);
    if (status != SUCCESS)
        return status;
    u64 least, most;
    if (!parse_u64(gpu_fact(gpu, "power.min_limit_mw"), &least) || !parse_u64(gpu_fact(gpu, "power.max_limit_mw"), &most))
        return NOT_SUPPORTED;
    return milliwatts < least || milliwatts > most ? INVALID_ARGUMENT
                                                   : set_number(gpu, "power.enforced_limit_mw", milliwatts);
}

API nvmlDeviceSetPowerManagementLimit_v2(const struct handle *device, const u32 *request) {
    /* Version, scope (0 is the GPU), milliwatts. */
    u32 gpu;
    int status = enter_gpu(device, &gpu);
    if (status != SUCCESS)
        return status;
    if (!request)
        return INVALID_ARGUMENT;
    return request[1] ? NOT_SUPPORTED : nvmlDeviceSetPowerManagementLimit(device, request[2]);
}

API nvmlDeviceSetApplicationsClocks(const struct handle *device, u32 memory, u32 graphics) {
    int status = set_known(device, "clocks.memory_app", memory, 100000);
    return status == SUCCESS ? set_known(device, "clocks.graphics_app", graphics, 100000) : status;
}

API nvmlDeviceResetApplicationsClocks(const struct handle *device) {
    u32 gpu;
    int status = enter_gpu(device, &gpu);
    if (status != SUCCESS)
        return status;
    return nvmlDeviceSetApplicationsClocks(device, (u32)number_or(gpu_fact(gpu, "clocks.memory_app_default"), 0),
                                           (u32)number_or(gpu_fact(gpu, "clocks.graphics_app_default"), 0));
}

/* Limits of memory are recorded, one pair for each name space; nothing enforces them here. */

static int find_limits(u32 gpu, const char *name, u32 *item) {
    u32 count = (u32)number_or(gpu_fact(gpu, "memory_limits"), 0);
    for (u32 place = 0; place < count; place++) {
        const char *own = item_fact(gpu, "memory_limits", place, "namespace");
        if (own && same_text(own, name)) {
            *item = place;
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

API nvmlDeviceSetMemoryLimits_v1(const struct handle *device, const struct memory_limits *limits) {
    u32 gpu;
    int status = enter_gpu(device, &gpu);
    if (status != SUCCESS)
        return status;
    char words[4096];
    if (!limits || !limits->name_space || text_length(limits->name_space) > sizeof words - 128)
        return INVALID_ARGUMENT;
    if (limits->soft > limits->hard)
        return INVALID_ARGUMENT;
    char *end = put_text(put_number(put_text(words, "nvml limits "), gpu), " ");
    end = put_text(put_number(put_text(put_number(end, limits->soft), " "), limits->hard), " ");
    put_text(put_text(end, limits->name_space), "\n");
    return ask(words, NULL);
}

API nvmlDeviceGetMemoryLimits_v1(const struct handle *device, struct memory_limits *limits) {
    u32 gpu, item;
    int status = enter_gpu(device, &gpu);
    if (status != SUCCESS)
        return status;
    if (!limits || !limits->name_space)
        return INVALID_ARGUMENT;
    status = find_limits(gpu, limits->name_space, &item);
    if (status != SUCCESS)
        return status;
    limits->soft = number_or(item_fact(gpu, "memory_limits", item, "soft"), 0);
    limits->hard = number_or(item_fact(gpu, "memory_limits", item, "hard"), 0);
    limits->used = 0;
    return SUCCESS;
}

/* MIG. */

static int ask_mig(const char *verb, u32 gpu, i64 one, i64 two, u32 *number) {
    char words[128];
    char *end = put_number(put_text(put_text(put_text(words, "nvml "), verb), " "), gpu);
    if (one >= 0)
        end = put_number(put_text(end, " "), (u64)one);
    if (two >= 0)
        end = put_number(put_text(end, " "), (u64)two);
    put_text(end, "\n");
    return ask(words, number);
}

API nvmlDeviceSetMigMode(const struct handle *device, u32 mode, u32 *activation) {
    u32 gpu;
    int status = enter_gpu(device, &gpu);
    if (status != SUCCESS)
        return status;
    if (mode > 1 || !activation)
        return INVALID_ARGUMENT;
    if (!gpu_fact(gpu, "mig.mode_current"))
        return NOT_SUPPORTED;
    status = ask_mig("mig-mode", gpu, mode, -1, NULL);
    if (status == SUCCESS)
        *activation = SUCCESS;
    return status;
}

static int create_instance(const struct handle *device, u32 profile, i64 start, const struct handle **out) {
    u32 gpu, number;
    int status = enter_gpu(device, &gpu);
    if (status != SUCCESS)
        return status;
    if (!out)
        return INVALID_ARGUMENT;
    if (!mig_enabled(gpu))
        return NOT_SUPPORTED;
    status = ask_mig("create-gi", gpu, profile, start, &number);
    if (status == SUCCESS)
        *out = gpu_instance_handle(gpu, number);
    return status;
}

API nvmlDeviceCreateGpuInstance(const struct handle *device, u32 profile, const struct handle **out) {
    return create_instance(device, profile, -1, out);
}

API nvmlDeviceCreateGpuInstanceWithPlacement(const struct handle *device, u32 profile, const struct placement *place,
                                             const struct handle **out) {
    int status = enter();
    if (status != SUCCESS)
        return status;
    return place ? create_instance(device, profile, place->start, out) : INVALID_ARGUMENT;
}

API nvmlGpuInstanceDestroy(const struct handle *instance) {
    int status = enter();
    if (status != SUCCESS)
        return status;
    if (!valid_handle(instance, KIND_GPU_INSTANCE))
        return INVALID_ARGUMENT;
    return ask_mig("destroy-gi", instance->gpu, instance->instance, -1, NULL);
}

int nvmlGpuInstanceGetComputeInstanceProfileInfo(const struct handle *, u32, u32, struct compute_instance_profile *);

API nvmlGpuInstanceCreateComputeInstance(const struct handle *instance, u32 profile, const struct handle **out) {
    struct compute_instance_profile info;
    u32 number;
    int status = nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, profile, 0, &info);
    if (status != SUCCESS)
        return status == NOT_SUPPORTED ? INVALID_ARGUMENT : status;
    if (!out)
        return INVALID_ARGUMENT;
    status = ask_mig("create-ci", instance->gpu, instance->instance, info.slices, &number);
    if (status == SUCCESS)
        *out = compute_instance_handle(instance->gpu, instance->instance, number);
    return status;
}

API nvmlGpuInstanceCreateComputeInstanceWithPlacement(const struct handle *instance, u32 profile,
                                                      const struct placement *place, const struct handle **out) {
    int status = enter();
    if (status != SUCCESS)
        return status;
    return place ? nvmlGpuInstanceCreateComputeInstance(instance, profile, out) : INVALID_ARGUMENT;
}

API nvmlComputeInstanceDestroy(const struct handle *compute) {
    int status = enter();
    if (status != SUCCESS)
        return status;
    if (!valid_handle(compute, KIND_COMPUTE_INSTANCE))
        return INVALID_ARGUMENT;
    return ask_mig("destroy-ci", compute->gpu, compute->instance, compute->compute, NULL);
}
