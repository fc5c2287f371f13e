/* Initialisation, which GPUs a process can see, handles, and the ways into every function.
 *
 * As with the real driver, a GPU exists for a process if its node can be opened. The node belongs to no driver here, so
 * "no such device" from the kernel means that the process was allowed to open it.
 */
#include <errno.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include "fake.h"

static i32 references;
static u32 count_of_visible;
static u32 visible[GPU_SLOTS];

static struct handle gpus[GPU_SLOTS];
static struct handle migs[GPU_SLOTS][INSTANCE_SLOTS][COMPUTE_SLOTS];
static struct handle gpu_instances[GPU_SLOTS][INSTANCE_SLOTS];
static struct handle compute_instances[GPU_SLOTS][INSTANCE_SLOTS][COMPUTE_SLOTS];

static i32 lock_word;

static void lock(void) {
    while (__atomic_exchange_n(&lock_word, 1, __ATOMIC_ACQUIRE))
        usleep(50);
}

static void unlock(void) { __atomic_store_n(&lock_word, 0, __ATOMIC_RELEASE); }

/* Tries to open a node; returns 0 if that was allowed, or the reason why not. */
static int try_open(const char *directory, const char *name) {
    char path[4096];
    if (text_length(directory) + text_length(name) + 2 > sizeof path)
        return ENOENT;
    put_text(put_text(put_text(path, directory), "/"), name);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0) {
        close(fd);
        return 0;
    }
    return errno == ENXIO || errno == ENODEV ? 0 : errno;
}

/* The directory of the nodes: /dev, or in a lane without mknod the one that the machine's data names. */
static const char *node_directory(void) {
    const char *other = fact("dev.directory");
    const char *control = fact("dev.control");
    if (try_open("/dev", control ? control : "nvidiactl") != ENOENT || !other)
        return "/dev";
    return other;
}

/* The node through which everything goes: the driver's own, or on a Linux below Windows the one for all GPUs. */
static const char *control_node(void) {
    const char *other = fact("dev.control");
    return other ? other : "nvidiactl";
}

static int node_allowed(const char *prefix, u64 number) {
    if (fact("dev.control"))
        return try_open(node_directory(), control_node()) == 0;
    char name[64];
    put_number(put_text(name, prefix), number);
    return try_open(node_directory(), name) == 0;
}

static int kernel_answers(void) {
    switch (try_open(node_directory(), control_node())) {
    case 0:
        break;
    case ENOENT:
        return DRIVER_NOT_LOADED;
    case EACCES:
        return NO_PERMISSION;
    default: /* The device rules of the cgroup forbid it: the resource manager cannot say more. */
        return UNKNOWN;
    }
    const char *kernel = fact("kernel.version"), *library = fact("driver.version");
    if (!kernel || !library)
        return DRIVER_NOT_LOADED;
    return same_text(kernel, library) ? SUCCESS : MISMATCH;
}

static void find_visible(void) {
    u32 count = (u32)number_or(fact("gpus"), 0), found = 0;
    for (u32 gpu = 0; gpu < count && gpu < GPU_SLOTS; gpu++)
        if (!number_or(gpu_fact(gpu, "unplugged"), 0) && node_allowed("nvidia", number_or(gpu_fact(gpu, "minor"), gpu)))
            visible[found++] = gpu;
    __atomic_store_n(&count_of_visible, found, __ATOMIC_RELEASE);
}

static int start(void) {
    lock();
    int status = SUCCESS;
    if (references == 0) {
        status = kernel_answers();
        if (status == SUCCESS)
            find_visible();
    }
    if (status == SUCCESS)
        references++;
    unlock();
    return status;
}

API nvmlInit(void) { return start(); }

API nvmlInit_v2(void) { return start(); }

API nvmlInitWithFlags(u32 flags) {
    (void)flags;
    return start();
}

API nvmlShutdown(void) {
    lock();
    int status = references > 0 ? SUCCESS : UNINITIALIZED;
    if (status == SUCCESS)
        references--;
    unlock();
    return status;
}

/* Every function starts here: 1 before initialisation, and the delay of a slow driver. */
int enter(void) {
    if (__atomic_load_n(&references, __ATOMIC_ACQUIRE) <= 0)
        return UNINITIALIZED;
    u64 milliseconds = number_or(fact("slow_ms"), 0);
    if (milliseconds) {
        struct timespec delay = {(time_t)(milliseconds / 1000), (long)(milliseconds % 1000 * 1000000)};
        nanosleep(&delay, NULL);
    }
    return SUCCESS;
}

static int inside(const void *place, const void *start_of, size_t size, size_t step) {
    uintptr_t offset = (uintptr_t)place - (uintptr_t)start_of;
    return (uintptr_t)place >= (uintptr_t)start_of && offset < size && offset % step == 0;
}

int valid_handle(const struct handle *handle, u32 kind) {
    int ours = inside(handle, gpus, sizeof gpus, sizeof *handle) || inside(handle, migs, sizeof migs, sizeof *handle) ||
               inside(handle, gpu_instances, sizeof gpu_instances, sizeof *handle) ||
               inside(handle, compute_instances, sizeof compute_instances, sizeof *handle);
    return ours && handle->kind == kind;
}

/* For calls that take a GPU or a MIG device. */
int enter_device(const struct handle *device, u32 *gpu) {
    int status = enter();
    if (status != SUCCESS)
        return status;
    if (!valid_handle(device, KIND_GPU) && !valid_handle(device, KIND_MIG))
        return INVALID_ARGUMENT;
    *gpu = device->gpu;
    return number_or(gpu_fact(*gpu, "lost"), 0) || number_or(gpu_fact(*gpu, "unplugged"), 0) ? GPU_IS_LOST : SUCCESS;
}

/* For calls that only a whole GPU answers. */
int enter_gpu(const struct handle *device, u32 *gpu) {
    int status = enter_device(device, gpu);
    return status == SUCCESS && device->kind == KIND_MIG ? NOT_SUPPORTED : status;
}

int enter_gpus(const struct handle *one, const struct handle *two, u32 *first, u32 *second) {
    int status = enter_gpu(one, first);
    return status == SUCCESS ? enter_gpu(two, second) : status;
}

u32 visible_count(void) { return __atomic_load_n(&count_of_visible, __ATOMIC_ACQUIRE); }

int visible_index(u32 gpu, u32 *index) {
    for (u32 place = 0; place < visible_count(); place++)
        if (visible[place] == gpu) {
            *index = place;
            return SUCCESS;
        }
    return NOT_FOUND;
}

static const struct handle *fill(struct handle *handle, u32 kind, u32 gpu, u32 instance, u32 compute) {
    handle->gpu = gpu;
    handle->instance = instance;
    handle->compute = compute;
    __atomic_store_n(&handle->kind, kind, __ATOMIC_RELEASE);
    return handle;
}

const struct handle *gpu_handle(u32 gpu) { return fill(&gpus[gpu], KIND_GPU, gpu, 0, 0); }

const struct handle *visible_gpu(u32 index) { return index < visible_count() ? gpu_handle(visible[index]) : NULL; }

const struct handle *mig_handle(u32 gpu, u32 instance, u32 compute) {
    if (instance >= INSTANCE_SLOTS || compute >= COMPUTE_SLOTS)
        return NULL;
    return fill(&migs[gpu][instance][compute], KIND_MIG, gpu, instance, compute);
}

const struct handle *gpu_instance_handle(u32 gpu, u32 instance) {
    return instance < INSTANCE_SLOTS ? fill(&gpu_instances[gpu][instance], KIND_GPU_INSTANCE, gpu, instance, 0) : NULL;
}

const struct handle *compute_instance_handle(u32 gpu, u32 instance, u32 compute) {
    if (instance >= INSTANCE_SLOTS || compute >= COMPUTE_SLOTS)
        return NULL;
    return fill(&compute_instances[gpu][instance][compute], KIND_COMPUTE_INSTANCE, gpu, instance, compute);
}

int mig_enabled(u32 gpu) { return number_or(gpu_fact(gpu, "mig.mode_current"), 0) == 1; }

/* A MIG device is there for a process that may open the capabilities of both of its instances. */
int mig_visible(u32 gpu, u32 instance, u32 compute) {
    u64 base = 3 + 135 * number_or(gpu_fact(gpu, "minor"), gpu) + 9 * (u64)instance;
    return node_allowed("nvidia-caps/nvidia-cap", base) && node_allowed("nvidia-caps/nvidia-cap", base + 1 + compute);
}

/* Finds a MIG device of the machine by its instances; 6 if it is not there (any more). */
int find_mig(u32 gpu, u32 instance, u32 compute, u32 *item) {
    u32 count = (u32)number_or(gpu_fact(gpu, "migs"), 0);
    for (u32 place = 0; place < count; place++)
        if (number_or(item_fact(gpu, "m", place, "gi"), 99) == instance &&
            number_or(item_fact(gpu, "m", place, "ci"), 99) == compute) {
            *item = place;
            return SUCCESS;
        }
    return NOT_FOUND;
}

int answer_u64(const struct handle *device, const char *name, u64 *out) {
    u32 gpu;
    int status = enter_gpu(device, &gpu);
    if (status != SUCCESS)
        return status;
    if (!out)
        return INVALID_ARGUMENT;
    u64 value;
    if (!parse_u64(gpu_fact(gpu, name), &value))
        return NOT_SUPPORTED;
    *out = value;
    return SUCCESS;
}

int answer_u32(const struct handle *device, const char *name, u32 *out) {
    u64 value;
    int status = answer_u64(device, name, out ? &value : NULL);
    if (status == SUCCESS)
        *out = (u32)value;
    return status;
}

int answer_text(const struct handle *device, const char *name, char *buffer, u32 length) {
    u32 gpu;
    int status = enter_gpu(device, &gpu);
    if (status != SUCCESS)
        return status;
    const char *text = gpu_fact(gpu, name);
    return text ? copy_text(text, buffer, length) : NOT_SUPPORTED;
}

int answer_pair(const struct handle *device, const char *first, const char *second, u32 *one, u32 *two) {
    u32 left, right;
    int status = answer_u32(device, first, one ? &left : NULL);
    if (status == SUCCESS)
        status = answer_u32(device, second, two ? &right : NULL);
    if (status == SUCCESS) {
        *one = left;
        *two = right;
    }
    return status;
}
