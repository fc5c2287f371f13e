/* What is true of the whole machine: versions, errors in words, processes by number.
 *
 * nvmlErrorString works before initialisation, as do the versions of the driver in no other library but the real one.
 */
#include <fcntl.h>
#include <unistd.h>

#include "layout.h"

static const struct {
    int code;
    const char *text;
} errors[] = {
    {0, "Success"},
    {1, "Uninitialized"},
    {2, "Invalid Argument"},
    {3, "Not Supported"},
    {4, "Insufficient Permissions"},
    {5, "Already Initialized"},
    {6, "Not Found"},
    {7, "Insufficient Size"},
    {8, "Insufficient External Power"},
    {9, "Driver Not Loaded"},
    {10, "Timeout"},
    {11, "Interrupt Request Issue"},
    {12, "NVML Shared Library Not Found"},
    {13, "Function Not Found"},
    {14, "Corrupted infoROM"},
    {15, "GPU is lost"},
    {16, "GPU requires restart"},
    {17, "The operating system has blocked the request."},
    {18, "RM has detected an NVML/RM version mismatch."},
    {19, "In use by another client"},
    {20, "Insufficient Memory"},
    {21, "No data"},
    {22, "The requested vgpu operation is not available on target device, because ECC is enabled"},
    {23, "Ran out of critical resources, other than memory"},
    {24, "Ran out of critical resources, other than memory"},
    {25, "Argument version mismatch"},
    {26, "Deprecated"},
    {27, "Not ready"},
    {28, "GPU not found"},
    {29, "Invalid state"},
    {30, "Reset type not supported"},
    {999, "Unknown Error"},
};

__attribute__((visibility("default"))) const char *nvmlErrorString(int code) {
    for (size_t place = 0; place < sizeof errors / sizeof *errors; place++)
        if (errors[place].code == code)
            return errors[place].text;
    return "Unknown Error";
}

static int system_text(const char *key, char *buffer, u32 length) {
    int status = enter();
    if (status != SUCCESS)
        return status;
    const char *text = fact(key);
    return text ? copy_text(text, buffer, length) : NOT_SUPPORTED;
}

API nvmlSystemGetDriverVersion(char *buffer, u32 length) { return system_text("driver.version", buffer, length); }

API nvmlSystemGetNVMLVersion(char *buffer, u32 length) {
    /* The library can say who it is without a driver. */
    const char *text = fact("nvml.version");
    return text ? copy_text(text, buffer, length) : NOT_SUPPORTED;
}

API nvmlSystemGetCudaDriverVersion_v2(i32 *version) {
    u64 number;
    if (!version)
        return INVALID_ARGUMENT;
    if (!parse_u64(fact("cuda.version"), &number))
        return NOT_SUPPORTED;
    *version = (i32)number;
    return SUCCESS;
}

API nvmlSystemGetCudaDriverVersion(i32 *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

API nvmlSystemGetDriverBranch(void *info, u32 length) {
    struct {
        u32 version;
        char branch[80];
    } *out = info;
    int status = enter();
    if (status != SUCCESS)
        return status;
    if (!out || length < 80)
        return INVALID_ARGUMENT;
    if (out->version != VERSIONED(*out, 1))
        return VERSION_MISMATCH;
    const char *text = fact("driver.branch");
    return text ? copy_text(text, out->branch, sizeof out->branch) : NOT_SUPPORTED;
}

/* What machines of today have none of: S-class units, excluded GPUs, host interface cards. */
static int none(u32 *count) {
    int status = enter();
    if (status == SUCCESS && !count)
        return INVALID_ARGUMENT;
    if (status == SUCCESS)
        *count = 0;
    return status;
}

API nvmlUnitGetCount(u32 *count) { return none(count); }

API nvmlGetExcludedDeviceCount(u32 *count) { return none(count); }

API nvmlGetBlacklistDeviceCount(u32 *count) { return none(count); }

API nvmlSystemGetHicVersion(u32 *count, void *entries) {
    (void)entries;
    return none(count);
}

API nvmlSystemGetProcessName(u32 process, char *buffer, u32 length) {
    int status = enter();
    if (status != SUCCESS)
        return status;
    if (!buffer || !length)
        return INVALID_ARGUMENT;
    const char *declared = declared_name(process);
    if (declared)
        return copy_text(declared, buffer, length);
    char path[64];
    put_text(put_number(put_text(path, "/proc/"), process), "/cmdline");
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return NOT_FOUND;
    ssize_t size = read(fd, buffer, length - 1);
    close(fd);
    if (size <= 0)
        return NOT_FOUND;
    buffer[size] = 0;
    return SUCCESS;
}
