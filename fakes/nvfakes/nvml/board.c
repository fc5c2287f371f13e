/* What is measured or set on a board: temperature, power, clocks, utilisation, links, errors.
 *
 * Does not belong here: what identifies a GPU (device.c).
 */
#include "layout.h"

API nvmlDeviceGetTemperature(const struct handle *device, u32 sensor, u32 *celsius) {
    return sensor == 0 ? answer_u32(device, "thermal.temperature_gpu_c", celsius) : INVALID_ARGUMENT;
}

API nvmlDeviceGetPowerUsage(const struct handle *device, u32 *milliwatts) {
    return answer_u32(device, "power.current_draw_mw", milliwatts);
}

API nvmlDeviceGetEnforcedPowerLimit(const struct handle *device, u32 *milliwatts) {
    return answer_u32(device, "power.enforced_limit_mw", milliwatts);
}

API nvmlDeviceGetPowerManagementLimit(const struct handle *device, u32 *milliwatts) {
    return answer_u32(device, "power.enforced_limit_mw", milliwatts);
}

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
