/* The table of functions that nvidia-smi asks for by a number of sixteen bytes instead of a name.
 *
 * What each slot is for was learnt by running nvidia-smi 535 and 550 on a library that logged calls. A slot that is not
 * known here refuses without looking at its arguments.
 */
#include "layout.h"

enum { SLOTS = 256 };

static const u8 name_of_table[16] = {0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e,
                                     0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4};

static int refuse(void) { return NOT_SUPPORTED; }

static int parse_address(const char *text, u32 *domain, u32 *bus, u32 *device, u32 *function) {
    u64 parts[4];
    if (!read_bus(text, parts))
        return INVALID_ARGUMENT;
    *domain = (u32)parts[0];
    *bus = (u32)parts[1];
    *device = (u32)parts[2];
    *function = (u32)parts[3];
    return SUCCESS;
}

static int gpu_at(const char *text, u32 *gpu) {
    u64 wanted[4], own[4];
    if (!read_bus(text, wanted))
        return INVALID_ARGUMENT;
    for (u32 index = 0; index < visible_count(); index++) {
        *gpu = visible_gpu(index)->gpu;
        if (read_bus(gpu_fact(*gpu, "pci.bus_id"), own) && own[0] == wanted[0] && own[1] == wanted[1] &&
            own[2] == wanted[2])
            return SUCCESS;
    }
    return NOT_FOUND;
}

/* The arguments point at the texts of two bus ids. */
static int connection(const char *one, const char *two, u32 *level) {
    u32 first, second;
    int status = gpu_at(one, &first);
    if (status == SUCCESS)
        status = gpu_at(two, &second);
    if (status == SUCCESS)
        *level = connection_level(first, second);
    return status;
}

static int line_printed(void) { return SUCCESS; }

static int class_supported(const struct handle *device, u32 *answer) {
    u32 gpu;
    int status = enter_gpu(device, &gpu);
    if (status == SUCCESS)
        *answer = 1;
    return status;
}

static int address_of(u32 index, u32 *domain, u32 *bus, u32 *device) {
    u64 parts[4];
    if (!visible_gpu(index) || !read_bus(gpu_fact(visible_gpu(index)->gpu, "pci.bus_id"), parts))
        return INVALID_ARGUMENT;
    *domain = (u32)parts[0];
    *bus = (u32)parts[1];
    *device = (u32)parts[2];
    return SUCCESS;
}

static int bus_text_of(u32 index, char *text) {
    u64 parts[4];
    if (!visible_gpu(index) || !read_bus(gpu_fact(visible_gpu(index)->gpu, "pci.bus_id"), parts))
        return INVALID_ARGUMENT;
    write_bus(text, 4, parts);
    return SUCCESS;
}

static int enforced_limit(const struct handle *device, u32 *milliwatts) {
    return answer_u32(device, "power.enforced_limit_mw", milliwatts);
}

static int compute_processes(const struct handle *device, u32 *count, void *entries) {
    return list_named(device, 'C', count, entries);
}

static int mps_processes(const struct handle *device, u32 *count, void *entries) {
    return list_named(device, 'M', count, entries);
}

static int graphics_processes(const struct handle *device, u32 *count, void *entries) {
    return list_named(device, 'G', count, entries);
}

static int host_generation(const struct handle *device, u32 *generation) {
    return answer_u32(device, "pcie.host_max_link_gen", generation);
}

static int part_number(const struct handle *device, char *buffer) {
    return answer_text(device, "gpu_part_number", buffer, 80);
}

static int tlimit(const struct handle *device, u32 *celsius) { return answer_u32(device, "thermal.tlimit_c", celsius); }

static int numa_node(const struct handle *device, u32 *node) { return answer_u32(device, "gpu_numa_node", node); }

static int addressing(const struct handle *device, u32 *mode) { return answer_u32(device, "addressing_mode", mode); }

typedef int (*slot)(void);

static struct {
    u64 size;
    slot slots[SLOTS - 1];
} table;

static void set_slot(u32 number, const void *function) { table.slots[number - 1] = (slot)(uintptr_t)function; }

__attribute__((constructor)) static void fill(void) {
    for (u32 number = 1; number < SLOTS; number++)
        set_slot(number, (const void *)(uintptr_t)refuse);
#define SLOT(number, function) set_slot(number, (const void *)(uintptr_t)(function))
    SLOT(12, parse_address);
    SLOT(23, connection);
    SLOT(26, line_printed);
    SLOT(72, class_supported);
    SLOT(75, address_of);
    SLOT(81, bus_text_of);
    SLOT(108, enforced_limit);
    SLOT(213, compute_processes);
    SLOT(214, mps_processes);
    SLOT(215, graphics_processes);
    SLOT(230, host_generation);
    SLOT(231, part_number);
    SLOT(240, tlimit);
    SLOT(241, numa_node);
    SLOT(242, addressing);
    table.size = SLOTS * 8;
}

API nvmlInternalGetExportTable(const void **out, const u8 *name) {
    if (!out || !name)
        return INVALID_ARGUMENT;
    for (u32 place = 0; place < sizeof name_of_table; place++)
        if (name[place] != name_of_table[place])
            return NOT_SUPPORTED;
    *out = &table;
    return SUCCESS;
}
