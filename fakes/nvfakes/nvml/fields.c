/* nvmlDeviceGetFieldValues: numbers by field id, each with its own result.
 *
 * The call itself succeeds: clients print what is in memory if it does not.
 */
#include "layout.h"

struct field {
    u32 id, scope;
    i64 timestamp, latency;
    u32 type, status;
    u64 value;
};

/* Fields whose answer is a fact of the GPU. */
static const struct {
    u32 id;
    const char *key;
} plain[] = {
    {1, "ecc.mode_current"},
    {2, "ecc.mode_pending"},
    {29, "retired_pages.single_bit_retirement.count"},
    {30, "retired_pages.double_bit_retirement.count"},
    {31, "retired_pages.pending_retirement"},
    {82, "thermal.temperature_memory_c"},
    {83, "power.total_energy_consumption_mj"},
    {90, "nvlink.bandwidth_per_link_mbps"},
    {91, "nvlink.links"},
    {94, "pcie.replay_counter"},
    {95, "pcie.replay_rollover_counter"},
    {142, "remapped_rows.correctable"},
    {143, "remapped_rows.uncorrectable"},
    {144, "remapped_rows.pending"},
    {145, "remapped_rows.failure_occurred"},
    {187, "power.min_limit_mw"},
    {188, "power.max_limit_mw"},
    {189, "power.default_limit_mw"},
    {190, "power.enforced_limit_mw"},
    {191, "power.total_energy_consumption_mj"},
    {192, "power.enforced_limit_mw"},
    {185, "power.current_draw_mw"},
    {186, "power.current_draw_mw"},
    {193, "thermal.shutdown_tlimit_c"},
    {194, "thermal.slowdown_tlimit_c"},
    {195, "thermal.memory_tlimit_c"},
    {196, "thermal.gpu_max_tlimit_c"},
    {226, "reset_required"},
    {227, "drain_and_reset_required"},
    {230, "recovery_action"},
};

int nvmlDeviceGetTotalEccErrors(const struct handle *, u32, u32, u64 *);
int nvmlDeviceGetMemoryErrorCounter(const struct handle *, u32, u32, u32, u64 *);

/* Fields 7 to 16 and 18 to 27: single and double bit errors of five places, since loading and over the board's life. */
static int ecc_field(const struct handle *device, u32 id, u64 *value) {
    static const u32 places[] = {0, 1, 2, 3, 4};
    u32 aggregate = id >= 18, offset = id - (aggregate ? 18 : 7);
    return nvmlDeviceGetMemoryErrorCounter(device, offset % 2, aggregate, places[offset / 2], value);
}

/* Fields about one link, whose number is the scope. */
static int link_field(u32 gpu, u32 id, u32 link, u64 *value) {
    if (link >= link_count(gpu))
        return NOT_SUPPORTED;
    switch (id) {
    case 161:
    case 162:
    case 163:
        *value = number_or(gpu_fact(gpu, "nvlink.errors"), 0);
        return SUCCESS;
    case 164:
        *value = link_active(gpu, link) ? number_or(gpu_fact(gpu, "nvlink.bandwidth_per_link_mbps"), 0) : 0;
        return SUCCESS;
    case 165:
        *value = (u64)link_active(gpu, link);
        return SUCCESS;
    case 166:
        *value = number_or(gpu_fact(gpu, "nvlink.version"), 0);
        return SUCCESS;
    default:
        return NOT_SUPPORTED;
    }
}

static int field_value(const struct handle *device, u32 gpu, const struct field *field, u64 *value) {
    u32 id = field->id;
    if (id >= 3 && id <= 6)
        return nvmlDeviceGetTotalEccErrors(device, (id - 3) % 2, (id - 3) / 2, value);
    if ((id >= 7 && id <= 16) || (id >= 18 && id <= 27))
        return ecc_field(device, id, value);
    if ((id >= 161 && id <= 166))
        return link_field(gpu, id, field->scope, value);
    if (id == 147) {
        *value = number_or(fact("switches"), 0) ? link_count(gpu) : 0;
        return link_count(gpu) ? SUCCESS : NOT_SUPPORTED;
    }
    if (id >= 185 && id <= 192 && field->scope != 0)
        return NOT_SUPPORTED; /* power of the module or of the memory alone is not measured */
    for (u32 place = 0; place < sizeof plain / sizeof *plain; place++)
        if (plain[place].id == id)
            return parse_u64(gpu_fact(gpu, plain[place].key), value) ? SUCCESS : NOT_SUPPORTED;
    return NOT_SUPPORTED;
}

API nvmlDeviceGetFieldValues(const struct handle *device, i32 count, struct field *fields) {
    u32 gpu;
    int status = enter_device(device, &gpu);
    if (status != SUCCESS)
        return status;
    if (count < 0 || (count && !fields))
        return INVALID_ARGUMENT;
    for (i32 place = 0; place < count; place++) {
        struct field *field = &fields[place];
        u64 value = 0;
        field->timestamp = 0;
        field->latency = 0;
        field->type = 1;
        field->status = (u32)field_value(device, gpu, field, &value);
        field->value = field->status == SUCCESS ? value : 0;
        if (value >> 32)
            field->type = 3;
    }
    return SUCCESS;
}

API nvmlDeviceClearFieldValues(const struct handle *device, i32 count, struct field *fields) {
    u32 gpu;
    int status = enter_device(device, &gpu);
    if (status != SUCCESS)
        return status;
    for (i32 place = 0; fields && place < count; place++)
        fields[place].status = NOT_SUPPORTED;
    return SUCCESS;
}
