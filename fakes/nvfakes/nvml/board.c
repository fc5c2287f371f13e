/* What is measured or set on a board: temperature, power, clocks, utilisation, PCI Express, modes, firmware.
 *
 * Does not belong here: what identifies a GPU (device.c), errors of its memory (errors.c) and its links (links.c).
 */
#include "layout.h"

/* Functions whose whole answer is one number or one text of the machine's data. */
#define NUMBER(function, key)                                                                                          \
    API function(const struct handle *device, u32 *out) { return answer_u32(device, key, out); }
#define TEXT(function, key)                                                                                            \
    API function(const struct handle *device, char *buffer, u32 length) {                                             \
        return answer_text(device, key, buffer, length);                                                               \
    }
#define PAIR(function, first, second)                                                                                  \
    API function(const struct handle *device, u32 *one, u32 *two) {                                                   \
        return answer_pair(device, first, second, one, two);                                                           \
    }

NUMBER(nvmlDeviceGetPersistenceMode, "persistence_mode")
NUMBER(nvmlDeviceGetComputeMode, "compute_mode")
NUMBER(nvmlDeviceGetDisplayMode, "display.mode")
NUMBER(nvmlDeviceGetDisplayActive, "display.active")
NUMBER(nvmlDeviceGetPerformanceState, "performance_state")
NUMBER(nvmlDeviceGetPowerState, "performance_state")
NUMBER(nvmlDeviceGetVirtualizationMode, "virtualization.mode")
NUMBER(nvmlDeviceGetHostVgpuMode, "virtualization.host_vgpu_mode")
NUMBER(nvmlDeviceGetAccountingMode, "accounting.mode")
NUMBER(nvmlDeviceGetAccountingBufferSize, "accounting.buffer_size")
NUMBER(nvmlDeviceGetMultiGpuBoard, "multi_gpu_board")
NUMBER(nvmlDeviceGetModuleId, "module_id")
NUMBER(nvmlDeviceGetBoardId, "board_id")
NUMBER(nvmlDeviceGetNumGpuCores, "num_gpu_cores")
NUMBER(nvmlDeviceGetMemoryBusWidth, "memory.memory_bus_width")
NUMBER(nvmlDeviceGetIrqNum, "irq")
NUMBER(nvmlDeviceGetBusType, "bus_type")
NUMBER(nvmlDeviceGetPowerSource, "power.source")
NUMBER(nvmlDeviceGetNumaNodeId, "gpu_numa_node")
NUMBER(nvmlDeviceGetAdaptiveClockInfoStatus, "clocks.adaptive")
NUMBER(nvmlDeviceGetInforomConfigurationChecksum, "inforom.checksum")

TEXT(nvmlDeviceGetInforomImageVersion, "inforom.image_version")

PAIR(nvmlDeviceGetGpuOperationMode, "gpu_operation_mode.current", "gpu_operation_mode.pending")

API nvmlDeviceGetInforomVersion(const struct handle *device, u32 object, char *buffer, u32 length) {
    static const char *const keys[] = {"inforom.oem_object", "inforom.ecc_object", "inforom.pwr_object"};
    return object < 3 ? answer_text(device, keys[object], buffer, length) : INVALID_ARGUMENT;
}

API nvmlDeviceValidateInforom(const struct handle *device) {
    u32 gpu;
    int status = enter_gpu(device, &gpu);
    if (status != SUCCESS)
        return status;
    return gpu_fact(gpu, "inforom.image_version") ? SUCCESS : NOT_SUPPORTED;
}

API nvmlDeviceGetGspFirmwareVersion(const struct handle *device, char *buffer) {
    return answer_text(device, "gsp_firmware.version", buffer, 80);
}

API nvmlDeviceGetGspFirmwareMode(const struct handle *device, u32 *enabled, u32 *standard) {
    return answer_pair(device, "gsp_firmware.mode", "gsp_firmware.mode", enabled, standard);
}

API nvmlDeviceGetC2cModeInfoV(const struct handle *device, u32 *enabled) {
    return answer_u32(device, "nvlink.c2c_enabled", enabled);
}

API nvmlDeviceGetAddressingMode(const struct handle *device, struct addressing_mode *mode) {
    if (enter() == SUCCESS && mode && mode->version != VERSIONED(struct addressing_mode, 1))
        return VERSION_MISMATCH;
    return answer_u32(device, "addressing_mode", mode ? &mode->value : NULL);
}

API nvmlDeviceOnSameBoard(const struct handle *one, const struct handle *two, i32 *answer) {
    u32 first, second;
    int status = enter_gpus(one, two, &first, &second);
    if (status != SUCCESS)
        return status;
    if (!answer)
        return INVALID_ARGUMENT;
    *answer = first == second;
    return SUCCESS;
}

API nvmlDeviceGetAccountingPids(const struct handle *device, u32 *count, u32 *processes) {
    u32 mode;
    (void)processes;
    int status = answer_u32(device, "accounting.mode", &mode);
    if (status == SUCCESS && !count)
        return INVALID_ARGUMENT;
    if (status == SUCCESS)
        *count = 0;
    return status;
}

/* Temperature. */

static int tlimit(const struct handle *device, u32 *out) { return answer_u32(device, "thermal.tlimit_c", out); }

API nvmlDeviceGetTemperature(const struct handle *device, u32 sensor, u32 *celsius) {
    return sensor == 0 ? answer_u32(device, "thermal.temperature_gpu_c", celsius) : INVALID_ARGUMENT;
}

API nvmlDeviceGetTemperatureV(const struct handle *device, struct temperature *out) {
    if (enter() == SUCCESS && out && out->version != VERSIONED(struct temperature, 1))
        return VERSION_MISMATCH;
    return nvmlDeviceGetTemperature(device, out ? out->sensor : 0, out ? (u32 *)&out->celsius : NULL);
}

API nvmlDeviceGetMarginTemperature(const struct handle *device, struct margin_temperature *out) {
    if (enter() == SUCCESS && out && out->version != VERSIONED(struct margin_temperature, 1))
        return VERSION_MISMATCH;
    return tlimit(device, out ? (u32 *)&out->celsius : NULL);
}

API nvmlDeviceGetTemperatureThreshold(const struct handle *device, u32 kind, u32 *celsius) {
    static const char *const keys[] = {
        "thermal.shutdown_threshold_c", "thermal.slowdown_threshold_c", "thermal.memory_max_operating_c",
        "thermal.max_operating_c",      "thermal.acoustic_min_c",       "thermal.target_temperature_c",
        "thermal.acoustic_max_c",       "thermal.gps_c"};
    return kind < 8 ? answer_u32(device, keys[kind], celsius) : INVALID_ARGUMENT;
}

API nvmlDeviceGetFanSpeed(const struct handle *device, u32 *percent) {
    return answer_u32(device, "fan.speed_percent", percent);
}

static int enter_fan(const struct handle *device, u32 fan) {
    u32 gpu;
    int status = enter_gpu(device, &gpu);
    if (status != SUCCESS)
        return status;
    u64 count = number_or(gpu_fact(gpu, "fan.count"), 0);
    if (!count)
        return NOT_SUPPORTED;
    return fan < count ? SUCCESS : INVALID_ARGUMENT;
}

API nvmlDeviceGetFanSpeed_v2(const struct handle *device, u32 fan, u32 *percent) {
    int status = enter_fan(device, fan);
    return status == SUCCESS ? answer_u32(device, "fan.speed_percent", percent) : status;
}

API nvmlDeviceGetTargetFanSpeed(const struct handle *device, u32 fan, u32 *percent) {
    int status = enter_fan(device, fan);
    return status == SUCCESS ? answer_u32(device, "fan.speed_percent", percent) : status;
}

API nvmlDeviceGetMinMaxFanSpeed(const struct handle *device, u32 *least, u32 *most) {
    int status = enter_fan(device, 0);
    if (status == SUCCESS && (!least || !most))
        status = INVALID_ARGUMENT;
    if (status == SUCCESS) {
        *least = 30;
        *most = 100;
    }
    return status;
}

API nvmlDeviceGetNumFans(const struct handle *device, u32 *count) {
    int status = enter_fan(device, 0);
    return status == SUCCESS ? answer_u32(device, "fan.count", count) : status;
}

/* Power. */

NUMBER(nvmlDeviceGetPowerUsage, "power.current_draw_mw")
NUMBER(nvmlDeviceGetEnforcedPowerLimit, "power.enforced_limit_mw")
NUMBER(nvmlDeviceGetPowerManagementLimit, "power.enforced_limit_mw")
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, "power.default_limit_mw")
NUMBER(nvmlDeviceGetPowerManagementMode, "power.management_mode")
PAIR(nvmlDeviceGetPowerManagementLimitConstraints, "power.min_limit_mw", "power.max_limit_mw")

API nvmlDeviceGetTotalEnergyConsumption(const struct handle *device, u64 *millijoules) {
    return answer_u64(device, "power.total_energy_consumption_mj", millijoules);
}

API nvmlDeviceGetViolationStatus(const struct handle *device, u32 policy, u64 *times) {
    u64 energy;
    int status = answer_u64(device, "power.total_energy_consumption_mj", &energy);
    if (status != SUCCESS)
        return status;
    if (!times || policy > 10)
        return INVALID_ARGUMENT;
    times[0] = 1;
    times[1] = 0;
    return SUCCESS;
}

/* Clocks. */

enum { CLOCK_KINDS = 4 };

static int clock_of(const struct handle *device, u32 kind, const char *const keys[CLOCK_KINDS], u32 *megahertz) {
    if (kind >= CLOCK_KINDS)
        return enter() == SUCCESS ? INVALID_ARGUMENT : UNINITIALIZED;
    return answer_u32(device, keys[kind], megahertz);
}

static const char *const clocks_current[] = {"clocks.graphics_current", "clocks.sm_current", "clocks.memory_current",
                                             "clocks.video_current"};
static const char *const clocks_max[] = {"clocks.graphics_max", "clocks.sm_max", "clocks.memory_max", "clocks.video_max"};
static const char *const clocks_app[] = {"clocks.graphics_app", "clocks.graphics_app", "clocks.memory_app", "clocks.none"};
static const char *const clocks_default[] = {"clocks.graphics_app_default", "clocks.graphics_app_default",
                                             "clocks.memory_app_default", "clocks.none"};

API nvmlDeviceGetClockInfo(const struct handle *device, u32 kind, u32 *megahertz) {
    return clock_of(device, kind, clocks_current, megahertz);
}

API nvmlDeviceGetMaxClockInfo(const struct handle *device, u32 kind, u32 *megahertz) {
    return clock_of(device, kind, clocks_max, megahertz);
}

API nvmlDeviceGetApplicationsClock(const struct handle *device, u32 kind, u32 *megahertz) {
    return clock_of(device, kind, clocks_app, megahertz);
}

API nvmlDeviceGetDefaultApplicationsClock(const struct handle *device, u32 kind, u32 *megahertz) {
    return clock_of(device, kind, clocks_default, megahertz);
}

API nvmlDeviceGetMaxCustomerBoostClock(const struct handle *device, u32 kind, u32 *megahertz) {
    return clock_of(device, kind, clocks_max, megahertz);
}

API nvmlDeviceGetClock(const struct handle *device, u32 kind, u32 which, u32 *megahertz) {
    static const char *const *const all[] = {clocks_current, clocks_app, clocks_default, clocks_max};
    if (which >= 4)
        return enter() == SUCCESS ? INVALID_ARGUMENT : UNINITIALIZED;
    return clock_of(device, kind, all[which], megahertz);
}

/* Copies a list of numbers such as "1980,1965" as NVML does: 7 and the right count if there is no room. */
static int answer_list(const char *text, u32 *count, u32 *out) {
    u32 found = 0;
    u64 value;
    const char *place = text;
    while (next_number(&place, &value))
        found++;
    u32 room = *count;
    *count = found;
    if (found > room || !out)
        return found ? INSUFFICIENT_SIZE : SUCCESS;
    place = text;
    for (u32 item = 0; next_number(&place, &value); item++)
        out[item] = (u32)value;
    return SUCCESS;
}

static int enter_clocks(const struct handle *device, const u32 *count, u32 *gpu, u32 *rows) {
    int status = enter_gpu(device, gpu);
    if (status == SUCCESS)
        status = answer_u32(device, "supported_clocks.memory_clocks", rows);
    return status == SUCCESS && !count ? INVALID_ARGUMENT : status;
}

API nvmlDeviceGetSupportedMemoryClocks(const struct handle *device, u32 *count, u32 *megahertz) {
    u32 gpu, rows;
    int status = enter_clocks(device, count, &gpu, &rows);
    if (status != SUCCESS)
        return status;
    u32 room = *count;
    *count = rows;
    if (rows > room || !megahertz)
        return INSUFFICIENT_SIZE;
    for (u32 row = 0; row < rows; row++)
        megahertz[row] = (u32)number_or(item_fact(gpu, "supported_clocks.memory_clocks", row, "freq_mhz"), 0);
    return SUCCESS;
}

API nvmlDeviceGetSupportedGraphicsClocks(const struct handle *device, u32 memory, u32 *count, u32 *megahertz) {
    u32 gpu, rows;
    int status = enter_clocks(device, count, &gpu, &rows);
    if (status != SUCCESS)
        return status;
    for (u32 row = 0; row < rows; row++)
        if (number_or(item_fact(gpu, "supported_clocks.memory_clocks", row, "freq_mhz"), 0) == memory) {
            const char *list = item_fact(gpu, "supported_clocks.memory_clocks", row, "graphics_clocks");
            return list ? answer_list(list, count, megahertz) : NOT_SUPPORTED;
        }
    return NOT_FOUND;
}

API nvmlDeviceGetCurrentClocksThrottleReasons(const struct handle *device, u64 *reasons) {
    static const char *const keys[] = {"gpu_idle",   "applications_clocks_setting", "sw_power_cap",
                                       "hw_slowdown", "sync_boost",                 "sw_thermal_slowdown",
                                       "hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clocks_setting"};
    u32 gpu;
    int status = enter_gpu(device, &gpu);
    if (status != SUCCESS)
        return status;
    if (!reasons)
        return INVALID_ARGUMENT;
    if (!gpu_fact(gpu, "clocks_throttle_reasons.gpu_idle"))
        return NOT_SUPPORTED;
    u64 found = 0;
    for (u32 bit = 0; bit < sizeof keys / sizeof *keys; bit++) {
        char key[96];
        put_text(put_text(key, "clocks_throttle_reasons."), keys[bit]);
        found |= (u64)(number_or(gpu_fact(gpu, key), 0) != 0) << bit;
    }
    *reasons = found;
    return SUCCESS;
}

API nvmlDeviceGetCurrentClocksEventReasons(const struct handle *device, u64 *reasons) {
    return nvmlDeviceGetCurrentClocksThrottleReasons(device, reasons);
}

API nvmlDeviceGetSupportedClocksThrottleReasons(const struct handle *device, u64 *reasons) {
    int status = nvmlDeviceGetCurrentClocksThrottleReasons(device, reasons);
    if (status == SUCCESS)
        *reasons = 0x1ff;
    return status;
}

API nvmlDeviceGetSupportedClocksEventReasons(const struct handle *device, u64 *reasons) {
    return nvmlDeviceGetSupportedClocksThrottleReasons(device, reasons);
}

API nvmlDeviceGetSupportedPerformanceStates(const struct handle *device, u32 *states, u32 size) {
    u32 now;
    int status = answer_u32(device, "performance_state", &now);
    if (status != SUCCESS)
        return status;
    if (!states || size < 16 * sizeof *states)
        return INVALID_ARGUMENT;
    for (u32 place = 0; place < 16; place++)
        states[place] = place ? 32 : 0;
    return SUCCESS;
}

/* Utilisation. */

API nvmlDeviceGetUtilizationRates(const struct handle *device, struct utilization *rates) {
    u32 gpu;
    int status = enter_gpu(device, &gpu);
    if (status != SUCCESS)
        return status;
    if (!rates)
        return INVALID_ARGUMENT;
    if (mig_enabled(gpu))
        return NOT_SUPPORTED;
    return answer_pair(device, "utilization.gpu", "utilization.memory", &rates->gpu, &rates->memory);
}

static int engine(const struct handle *device, const char *key, u32 *percent, u32 *microseconds) {
    int status = answer_u32(device, key, percent);
    if (status == SUCCESS && !microseconds)
        return INVALID_ARGUMENT;
    if (status == SUCCESS)
        *microseconds = 167000;
    return status;
}

#define ENGINE(function, key)                                                                                          \
    API function(const struct handle *device, u32 *percent, u32 *microseconds) {                                      \
        return engine(device, key, percent, microseconds);                                                             \
    }

ENGINE(nvmlDeviceGetEncoderUtilization, "utilization.encoder")
ENGINE(nvmlDeviceGetDecoderUtilization, "utilization.decoder")
ENGINE(nvmlDeviceGetJpgUtilization, "utilization.jpeg")
ENGINE(nvmlDeviceGetOfaUtilization, "utilization.ofa")

API nvmlDeviceGetEncoderStats(const struct handle *device, u32 *sessions, u32 *rate, u32 *latency) {
    int status = answer_pair(device, "encoder_stats.session_count", "encoder_stats.average_fps", sessions, rate);
    return status == SUCCESS ? answer_u32(device, "encoder_stats.average_latency_us", latency) : status;
}

API nvmlDeviceGetFBCStats(const struct handle *device, u32 *stats) {
    u32 sessions, rate;
    int status = answer_pair(device, "fbc_stats.session_count", "fbc_stats.average_fps", &sessions, &rate);
    if (status != SUCCESS)
        return status;
    if (!stats)
        return INVALID_ARGUMENT;
    stats[0] = sessions;
    stats[1] = rate;
    stats[2] = 0;
    return SUCCESS;
}

static int no_sessions(const struct handle *device, u32 *count) {
    u32 sessions;
    int status = answer_u32(device, "encoder_stats.session_count", &sessions);
    if (status == SUCCESS && !count)
        return INVALID_ARGUMENT;
    if (status == SUCCESS)
        *count = 0;
    return status;
}

API nvmlDeviceGetEncoderSessions(const struct handle *device, u32 *count, void *sessions) {
    (void)sessions;
    return no_sessions(device, count);
}

API nvmlDeviceGetFBCSessions(const struct handle *device, u32 *count, void *sessions) {
    (void)sessions;
    return no_sessions(device, count);
}

API nvmlDeviceGetEncoderCapacity(const struct handle *device, u32 query, u32 *percent) {
    u32 sessions;
    int status = answer_u32(device, "encoder_stats.session_count", &sessions);
    if (status == SUCCESS && (!percent || query > 2))
        return INVALID_ARGUMENT;
    if (status == SUCCESS)
        *percent = 100;
    return status;
}

/* PCI Express. */

NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie.max_link_gen")
NUMBER(nvmlDeviceGetGpuMaxPcieLinkGeneration, "pcie.max_link_gen")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie.current_link_gen")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie.max_link_width")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie.current_link_width")
NUMBER(nvmlDeviceGetPcieReplayCounter, "pcie.replay_counter")

API nvmlDeviceGetPcieThroughput(const struct handle *device, u32 direction, u32 *kilobytes) {
    if (direction > 1)
        return enter() == SUCCESS ? INVALID_ARGUMENT : UNINITIALIZED;
    return answer_u32(device, direction ? "pcie.rx_throughput_kbps" : "pcie.tx_throughput_kbps", kilobytes);
}

static int generation_speed(const struct handle *device, const char *key, u32 *megabits) {
    static const u32 speeds[] = {0, 2500, 5000, 8000, 16000, 32000, 64000};
    u32 generation;
    int status = answer_u32(device, key, megabits ? &generation : NULL);
    if (status == SUCCESS)
        *megabits = generation < 7 ? speeds[generation] : 0;
    return status;
}

API nvmlDeviceGetPcieSpeed(const struct handle *device, u32 *megabits) {
    return generation_speed(device, "pcie.current_link_gen", megabits);
}

API nvmlDeviceGetPcieLinkMaxSpeed(const struct handle *device, u32 *megabits) {
    return generation_speed(device, "pcie.max_link_gen", megabits);
}

/* Confidential computing is off: nothing of the memory is protected. */
API nvmlDeviceGetConfComputeProtectedMemoryUsage(const struct handle *device, struct memory *memory) {
    u64 total;
    int status = answer_u64(device, "memory.total_bytes", &total);
    if (status != SUCCESS)
        return status;
    if (!memory)
        return INVALID_ARGUMENT;
    clear(memory, sizeof *memory);
    return SUCCESS;
}

API nvmlDeviceGetConfComputeMemSizeInfo(const struct handle *device, u64 *sizes) {
    u64 total;
    int status = answer_u64(device, "memory.total_bytes", &total);
    if (status != SUCCESS)
        return status;
    if (!sizes)
        return INVALID_ARGUMENT;
    sizes[0] = 0;
    sizes[1] = total >> 10;
    return SUCCESS;
}
