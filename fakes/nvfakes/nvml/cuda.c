/* A small libcuda.so.1: which devices there are, and what identifies them. Everything else is not supported.
 *
 * The same GPUs are visible as through NVML, less what CUDA_VISIBLE_DEVICES leaves out. A GPU in MIG mode is no device
 * itself; CUDA shows one MIG device at most, and only where no whole GPU is visible.
 */
#include <stdlib.h>
#include <unistd.h>

#include "layout.h"

enum cuda {
    CUDA_SUCCESS = 0,
    CUDA_INVALID_VALUE = 1,
    CUDA_NOT_INITIALIZED = 3,
    CUDA_NO_DEVICE = 100,
    CUDA_INVALID_DEVICE = 101,
    CUDA_NOT_FOUND = 500,
    CUDA_NOT_SUPPORTED = 801,
    CUDA_DRIVER_MISMATCH = 803,
    CUDA_UNKNOWN = 999,
};

enum { WHOLE = 0xFFFFFFFF };

int nvmlInit_v2(void);

static struct {
    u32 gpu;
    u32 mig;
} devices[GPU_SLOTS];
static i32 count_of_devices = -1;

static int starts_with(const char *text, const char *start, u32 length) {
    for (u32 place = 0; place < length; place++)
        if (text[place] != start[place] || !text[place])
            return 0;
    return 1;
}

static void add(u32 gpu, u32 mig) {
    for (i32 place = 0; place < count_of_devices; place++)
        if (devices[place].gpu == gpu && devices[place].mig == mig)
            return;
    devices[count_of_devices].gpu = gpu;
    devices[count_of_devices].mig = mig;
    count_of_devices++;
}

static int first_mig(u32 gpu, u32 *found) {
    u32 count = mig_enabled(gpu) ? (u32)number_or(gpu_fact(gpu, "migs"), 0) : 0;
    for (u32 item = 0; item < count; item++)
        if (mig_visible(gpu, (u32)number_or(item_fact(gpu, "m", item, "gi"), 0),
                        (u32)number_or(item_fact(gpu, "m", item, "ci"), 0))) {
            *found = item;
            return 1;
        }
    return 0;
}

static void add_all(void) {
    u32 mig;
    for (u32 index = 0; index < visible_count(); index++)
        if (!mig_enabled(visible_gpu(index)->gpu))
            add(visible_gpu(index)->gpu, WHOLE);
    for (u32 index = 0; index < visible_count() && count_of_devices == 0; index++)
        if (first_mig(visible_gpu(index)->gpu, &mig))
            add(visible_gpu(index)->gpu, mig);
}

/* Adds what one word of CUDA_VISIBLE_DEVICES names: an index, or the start of a UUID; 0 ends the list. */
static int add_named(const char *word, u32 length) {
    u64 number;
    if (!length)
        return 0;
    if (parse_u64(word, &number)) {
        if (!visible_gpu((u32)number) || mig_enabled(visible_gpu((u32)number)->gpu))
            return 0;
        add(visible_gpu((u32)number)->gpu, WHOLE);
        return 1;
    }
    for (u32 index = 0; index < visible_count(); index++) {
        u32 gpu = visible_gpu(index)->gpu, migs = (u32)number_or(gpu_fact(gpu, "migs"), 0);
        if (starts_with(gpu_fact(gpu, "uuid"), word, length)) {
            add(gpu, WHOLE);
            return 1;
        }
        for (u32 mig = 0; mig < migs && count_of_devices == 0; mig++)
            if (starts_with(item_fact(gpu, "m", mig, "uuid"), word, length)) {
                add(gpu, mig);
                return 1;
            }
    }
    return 0;
}

static int initialise(void) {
    if (count_of_devices > 0)
        return CUDA_SUCCESS;
    switch (nvmlInit_v2()) {
    case SUCCESS:
        break;
    case DRIVER_NOT_LOADED:
        return CUDA_NO_DEVICE;
    case MISMATCH:
        return CUDA_DRIVER_MISMATCH;
    default:
        return CUDA_UNKNOWN;
    }
    count_of_devices = 0;
    const char *wish = getenv("CUDA_VISIBLE_DEVICES");
    if (!wish) {
        add_all();
    } else {
        u32 length;
        do {
            for (length = 0; wish[length] && wish[length] != ','; length++)
                ;
            if (!add_named(wish, length))
                break;
            wish += length;
        } while (*wish++);
    }
    if (count_of_devices)
        return CUDA_SUCCESS;
    count_of_devices = -1;
    return CUDA_NO_DEVICE;
}

API cuInit(u32 flags) {
    static i32 busy;
    if (flags)
        return CUDA_INVALID_VALUE;
    while (__atomic_exchange_n(&busy, 1, __ATOMIC_ACQUIRE))
        usleep(50);
    int status = initialise();
    __atomic_store_n(&busy, 0, __ATOMIC_RELEASE);
    return status;
}

API cuDriverGetVersion(i32 *version) {
    if (!version)
        return CUDA_INVALID_VALUE;
    *version = (i32)number_or(fact("cuda.version"), 0);
    return CUDA_SUCCESS;
}

API cuDeviceGetCount(i32 *count) {
    if (count_of_devices < 0)
        return CUDA_NOT_INITIALIZED;
    if (!count)
        return CUDA_INVALID_VALUE;
    *count = count_of_devices;
    return CUDA_SUCCESS;
}

static int check(i32 device, const void *out) {
    if (count_of_devices < 0)
        return CUDA_NOT_INITIALIZED;
    if (!out)
        return CUDA_INVALID_VALUE;
    return device >= 0 && device < count_of_devices ? CUDA_SUCCESS : CUDA_INVALID_DEVICE;
}

API cuDeviceGet(i32 *device, i32 ordinal) {
    int status = check(ordinal, device);
    if (status == CUDA_SUCCESS)
        *device = ordinal;
    return status;
}

static const char *text_of(i32 device, const char *name) {
    u32 gpu = devices[device].gpu, mig = devices[device].mig;
    return mig == WHOLE ? gpu_fact(gpu, name) : item_fact(gpu, "m", mig, name);
}

API cuDeviceGetName(char *name, i32 length, i32 device) {
    int status = check(device, name);
    const char *text = status == CUDA_SUCCESS ? text_of(device, "name") : NULL;
    if (status != CUDA_SUCCESS || length <= 0)
        return status == CUDA_SUCCESS ? CUDA_INVALID_VALUE : status;
    i32 place = 0;
    for (; text && text[place] && place < length - 1; place++)
        name[place] = text[place];
    name[place] = 0;
    return CUDA_SUCCESS;
}

static void write_uuid(const char *text, u8 *bytes) {
    while (*text && *text != '-')
        text++;
    for (u32 digit = 0; *text && digit < 32; text++) {
        if (*text == '-')
            continue;
        u8 value = (u8)(*text <= '9' ? *text - '0' : *text - 'a' + 10);
        bytes[digit / 2] = (u8)(digit % 2 ? (bytes[digit / 2] & 0xf0) | value : value << 4);
        digit++;
    }
}

/* The first form gives the UUID of the GPU, the second that of the MIG device. */
API cuDeviceGetUuid(u8 *uuid, i32 device) {
    int status = check(device, uuid);
    if (status == CUDA_SUCCESS)
        write_uuid(gpu_fact(devices[device].gpu, "uuid"), uuid);
    return status;
}

API cuDeviceGetUuid_v2(u8 *uuid, i32 device) {
    int status = check(device, uuid);
    if (status == CUDA_SUCCESS)
        write_uuid(text_of(device, "uuid"), uuid);
    return status;
}

API cuDeviceTotalMem_v2(size_t *bytes, i32 device) {
    int status = check(device, bytes);
    if (status != CUDA_SUCCESS)
        return status;
    u32 gpu = devices[device].gpu, mig = devices[device].mig;
    u64 reserved = number_or(gpu_fact(gpu, "memory.reserved_bytes"), 0);
    *bytes = mig == WHOLE ? (size_t)(number_or(gpu_fact(gpu, "memory.total_bytes"), 0) - reserved)
                          : (size_t)number_or(item_fact(gpu, "m", mig, "memory_mib"), 0) << 20;
    return status;
}

API cuDeviceTotalMem(u32 *bytes, i32 device) {
    size_t all;
    int status = cuDeviceTotalMem_v2(bytes ? &all : NULL, device);
    if (status == CUDA_SUCCESS)
        *bytes = all >> 32 ? 0xFFFFFFFF : (u32)all;
    return status;
}

API cuDeviceComputeCapability(i32 *major, i32 *minor, i32 device) {
    int status = check(device, major && minor ? major : NULL);
    if (status == CUDA_SUCCESS) {
        *major = (i32)number_or(gpu_fact(devices[device].gpu, "compute_capability.major"), 0);
        *minor = (i32)number_or(gpu_fact(devices[device].gpu, "compute_capability.minor"), 0);
    }
    return status;
}

API cuDeviceGetPCIBusId(char *text, i32 length, i32 device) {
    u64 parts[4];
    char found[32];
    int status = check(device, text);
    if (status != CUDA_SUCCESS)
        return status;
    if (!read_bus(gpu_fact(devices[device].gpu, "pci.bus_id"), parts))
        return CUDA_NOT_SUPPORTED;
    write_bus(found, 4, parts);
    return length > 0 && copy_text(found, text, (u32)length) == SUCCESS ? CUDA_SUCCESS : CUDA_INVALID_VALUE;
}

API cuDeviceGetByPCIBusId(i32 *device, const char *text) {
    u64 wanted[4], own[4];
    int status = check(0, device);
    if (status != CUDA_SUCCESS)
        return status;
    if (!read_bus(text, wanted))
        return CUDA_INVALID_VALUE;
    for (i32 place = 0; place < count_of_devices; place++)
        if (read_bus(gpu_fact(devices[place].gpu, "pci.bus_id"), own) && own[0] == wanted[0] && own[1] == wanted[1] &&
            own[2] == wanted[2]) {
            *device = place;
            return CUDA_SUCCESS;
        }
    return CUDA_INVALID_DEVICE;
}

API cuDeviceCanAccessPeer(i32 *answer, i32 one, i32 two) {
    int status = check(one, answer);
    if (status == CUDA_SUCCESS)
        status = check(two, answer);
    if (status == CUDA_SUCCESS)
        *answer = one != two && links_between(devices[one].gpu, devices[two].gpu) > 0;
    return status;
}

/* Attributes that are facts of the GPU, and those that are the same on every GPU of today. */
static const struct {
    i32 attribute;
    const char *key;
    u32 factor;
} measured[] = {
    {13, "clocks.graphics_max", 1000}, {16, "multiprocessor_count", 1},     {18, "integrated", 1},
    {20, "compute_mode", 1},           {32, "ecc.mode_current", 1},         {36, "clocks.memory_max", 1000},
    {37, "memory.memory_bus_width", 1}, {75, "compute_capability.major", 1}, {76, "compute_capability.minor", 1},
};

static const struct {
    i32 attribute, value;
} fixed[] = {
    {1, 1024},  {2, 1024}, {3, 1024}, {4, 64},  {5, 2147483647}, {6, 65535}, {7, 65535}, {8, 49152}, {9, 65536},
    {10, 32},   {12, 65536}, {15, 1}, {17, 0},  {19, 1},         {31, 1},    {35, 0},    {39, 2048}, {40, 2},
    {41, 1},    {78, 1},   {79, 1},   {80, 1},  {81, 101376},    {82, 65536}, {83, 1},   {84, 0},
};

API cuDeviceGetAttribute(i32 *value, i32 attribute, i32 device) {
    u64 parts[4];
    int status = check(device, value);
    if (status != CUDA_SUCCESS)
        return status;
    u32 gpu = devices[device].gpu;
    for (u32 place = 0; place < sizeof measured / sizeof *measured; place++)
        if (measured[place].attribute == attribute) {
            const char *text = attribute == 16 && devices[device].mig != WHOLE ? text_of(device, "multiprocessors")
                                                                              : gpu_fact(gpu, measured[place].key);
            *value = (i32)(number_or(text, 0) * measured[place].factor);
            return CUDA_SUCCESS;
        }
    for (u32 place = 0; place < sizeof fixed / sizeof *fixed; place++)
        if (fixed[place].attribute == attribute) {
            *value = fixed[place].value;
            return CUDA_SUCCESS;
        }
    if ((attribute == 33 || attribute == 34 || attribute == 50) && read_bus(gpu_fact(gpu, "pci.bus_id"), parts)) {
        *value = (i32)(attribute == 33 ? parts[1] : attribute == 34 ? parts[2] : parts[0]);
        return CUDA_SUCCESS;
    }
    if (attribute <= 0 || attribute > 200)
        return CUDA_INVALID_VALUE;
    *value = 0;
    return CUDA_SUCCESS;
}

static const struct {
    int code;
    const char *name, *text;
} errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static int error_text(int code, const char **out, int name) {
    if (!out)
        return CUDA_INVALID_VALUE;
    *out = NULL;
    for (u32 place = 0; place < sizeof errors / sizeof *errors; place++)
        if (errors[place].code == code) {
            *out = name ? errors[place].name : errors[place].text;
            return CUDA_SUCCESS;
        }
    return CUDA_INVALID_VALUE;
}

API cuGetErrorName(int code, const char **out) { return error_text(code, out, 1); }

API cuGetErrorString(int code, const char **out) { return error_text(code, out, 0); }

/* The build writes every exported name and its function here. */
struct named {
    const char *name;
    int (*function)(void);
};
extern const struct named exported[];

static int address(const char *name, void **out) {
    if (!name || !out)
        return CUDA_INVALID_VALUE;
    char newer[128];
    *out = NULL;
    if (text_length(name) + 4 > sizeof newer)
        return CUDA_NOT_FOUND;
    put_text(put_text(newer, name), "_v2");
    for (const struct named *entry = exported; entry->name; entry++)
        if (same_text(entry->name, newer) || (!*out && same_text(entry->name, name)))
            *out = (void *)(uintptr_t)entry->function;
    return *out ? CUDA_SUCCESS : CUDA_NOT_FOUND;
}

API cuGetProcAddress(const char *name, void **out, i32 version, u64 flags) {
    (void)version;
    (void)flags;
    return address(name, out);
}

API cuGetProcAddress_v2(const char *name, void **out, i32 version, u64 flags, u32 *state) {
    (void)version;
    (void)flags;
    int status = address(name, out);
    if (state)
        *state = status == CUDA_SUCCESS ? 0 : 1;
    return status;
}
