/* Errors of a GPU's memory: ECC counters, retired pages, remapped rows.
 *
 * A counter that the machine's data does not name is 0 where ECC is on.
 */
#include "layout.h"

API nvmlDeviceGetEccMode(const struct handle *device, u32 *current, u32 *pending) {
    return answer_pair(device, "ecc.mode_current", "ecc.mode_pending", current, pending);
}

API nvmlDeviceGetDefaultEccMode(const struct handle *device, u32 *mode) {
    return answer_u32(device, "ecc.default_mode", mode);
}

static const char *const locations[] = {"l1_cache",       "l2_cache",    "device_memory", "register_file",
                                        "texture_memory", "texture_shm", "cbu",           "sram"};

/* kind: 0 corrected, 1 uncorrected; counter: 0 since the driver was loaded, 1 over the board's life. */
static u64 counter_value(u32 gpu, u32 kind, u32 counter, const char *location) {
    char key[96];
    char *end = put_text(key, counter ? "ecc.errors.aggregate." : "ecc.errors.volatile.");
    put_text(put_text(put_text(end, kind ? "double_bit" : "single_bit"), "."), location);
    return number_or(gpu_fact(gpu, key), 0);
}

static int enter_ecc(const struct handle *device, u32 kind, u32 counter, const void *out, u32 *gpu) {
    int status = enter_device(device, gpu);
    if (status != SUCCESS)
        return status;
    if (!out || kind > 1 || counter > 1)
        return INVALID_ARGUMENT;
    return number_or(gpu_fact(*gpu, "ecc.mode_current"), 0) ? SUCCESS : NOT_SUPPORTED;
}

API nvmlDeviceGetMemoryErrorCounter(const struct handle *device, u32 kind, u32 counter, u32 location, u64 *count) {
    u32 gpu;
    int status = enter_ecc(device, kind, counter, count, &gpu);
    if (status != SUCCESS)
        return status;
    if (location >= sizeof locations / sizeof *locations)
        return INVALID_ARGUMENT;
    *count = counter_value(gpu, kind, counter, locations[location]);
    return SUCCESS;
}

static u64 total_errors(u32 gpu, u32 kind, u32 counter) {
    u64 total = 0;
    for (u32 location = 0; location < sizeof locations / sizeof *locations; location++)
        total += counter_value(gpu, kind, counter, locations[location]);
    u64 given = counter_value(gpu, kind, counter, "total");
    return given > total ? given : total;
}

API nvmlDeviceGetTotalEccErrors(const struct handle *device, u32 kind, u32 counter, u64 *count) {
    u32 gpu;
    int status = enter_ecc(device, kind, counter, count, &gpu);
    if (status == SUCCESS)
        *count = total_errors(gpu, kind, counter);
    return status;
}

API nvmlDeviceGetDetailedEccErrors(const struct handle *device, u32 kind, u32 counter, u64 *counts) {
    u32 gpu;
    int status = enter_ecc(device, kind, counter, counts, &gpu);
    for (u32 location = 0; status == SUCCESS && location < 4; location++)
        counts[location] = counter_value(gpu, kind, counter, locations[location]);
    return status;
}

static u64 sram(u32 gpu, const char *name) {
    char key[96];
    put_text(put_text(key, "ecc.sram."), name);
    return number_or(gpu_fact(gpu, key), 0);
}

API nvmlDeviceGetSramEccErrorStatus(const struct handle *device, struct sram_errors *out) {
    u32 gpu;
    int status = enter_ecc(device, 0, 0, out, &gpu);
    if (status != SUCCESS)
        return status;
    if (out->version != VERSIONED(struct sram_errors, 1))
        return VERSION_MISMATCH;
    if (number_or(gpu_fact(gpu, "architecture"), 0) < 7)
        return NOT_SUPPORTED;
    u32 version = out->version;
    clear(out, sizeof *out);
    out->version = version;
    out->aggregate_parity = sram(gpu, "aggregate.uncorrectable_parity");
    out->aggregate_sec_ded = sram(gpu, "aggregate.uncorrectable_secded");
    out->aggregate_corrected = sram(gpu, "aggregate.correctable");
    out->volatile_parity = sram(gpu, "volatile.uncorrectable_parity");
    out->volatile_sec_ded = sram(gpu, "volatile.uncorrectable_secded");
    out->volatile_corrected = sram(gpu, "volatile.correctable");
    out->aggregate_l2 = sram(gpu, "uncorrectable_sources.l2");
    out->aggregate_sm = sram(gpu, "uncorrectable_sources.sm");
    out->aggregate_pcie = sram(gpu, "uncorrectable_sources.pcie");
    out->aggregate_mcu = sram(gpu, "uncorrectable_sources.microcontroller");
    out->aggregate_other = sram(gpu, "uncorrectable_sources.other");
    out->threshold_exceeded = (u32)sram(gpu, "threshold_exceeded");
    return SUCCESS;
}

API nvmlDeviceGetRetiredPages(const struct handle *device, u32 cause, u32 *count, u64 *addresses) {
    u32 found;
    (void)addresses;
    const char *key = cause ? "retired_pages.double_bit_retirement.count" : "retired_pages.single_bit_retirement.count";
    int status = answer_u32(device, key, count ? &found : NULL);
    if (status != SUCCESS)
        return status;
    u32 room = *count;
    *count = found;
    if (found > room)
        return INSUFFICIENT_SIZE;
    for (u32 page = 0; addresses && page < found; page++)
        addresses[page] = (u64)(page + 1) << 16;
    return SUCCESS;
}

API nvmlDeviceGetRetiredPagesPendingStatus(const struct handle *device, u32 *pending) {
    return answer_u32(device, "retired_pages.pending_retirement", pending);
}

API nvmlDeviceGetRemappedRows(const struct handle *device, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failed) {
    int status = answer_pair(device, "remapped_rows.correctable", "remapped_rows.uncorrectable", corrected, uncorrected);
    if (status == SUCCESS)
        status = answer_pair(device, "remapped_rows.pending", "remapped_rows.failure_occurred", pending, failed);
    return status;
}

API nvmlDeviceGetRowRemapperHistogram(const struct handle *device, u32 *histogram) {
    static const char *const keys[] = {
        "remapped_rows.availability_histogram.max", "remapped_rows.availability_histogram.high",
        "remapped_rows.availability_histogram.partial", "remapped_rows.availability_histogram.low",
        "remapped_rows.availability_histogram.none"};
    u32 found[5];
    for (u32 place = 0; place < 5; place++) {
        int status = answer_u32(device, keys[place], histogram ? &found[place] : NULL);
        if (status != SUCCESS)
            return status;
    }
    for (u32 place = 0; place < 5; place++)
        histogram[place] = found[place];
    return SUCCESS;
}
