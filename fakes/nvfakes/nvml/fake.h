/* What the parts of the fake NVML library share: the machine's data, handles, and the way into every function.
 *
 * Belongs here: declarations of this library's own helpers. Does not belong here: NVML's structures (layout.h).
 * Only functions that every C library has had for twenty years may be called: the file runs in foreign containers.
 */
#ifndef NVFAKES_FAKE_H
#define NVFAKES_FAKE_H

#include <stddef.h>
#include <stdint.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int32_t i32;
typedef int64_t i64;

enum result {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    FUNCTION_NOT_FOUND = 13,
    GPU_IS_LOST = 15,
    IN_USE = 19,
    MISMATCH = 18,
    INSUFFICIENT_RESOURCES = 23,
    VERSION_MISMATCH = 25,
    UNKNOWN = 999,
};

enum { GPU_SLOTS = 32, INSTANCE_SLOTS = 15, COMPUTE_SLOTS = 8 };

enum kind { KIND_GPU = 1, KIND_MIG = 2, KIND_GPU_INSTANCE = 3, KIND_COMPUTE_INSTANCE = 4, KIND_EVENTS = 5 };

/* What an opaque NVML handle points to. `gpu` is the place of the GPU in the machine, not its index. */
struct handle {
    u32 kind;
    u32 gpu;
    u32 instance;
    u32 compute;
};

#define API __attribute__((visibility("default"))) int

/* data.c: the machine's facts, text by key. */
const char *fact(const char *key);
const char *gpu_fact(u32 gpu, const char *name);
const char *item_fact(u32 gpu, const char *list, u32 item, const char *name);
int parse_u64(const char *text, u64 *value);
u64 number_or(const char *text, u64 otherwise);
u32 next_number(const char **text, u64 *value);
u32 text_length(const char *text);
int same_text(const char *one, const char *two);
int copy_text(const char *text, char *buffer, u32 length);
char *put_text(char *place, const char *text);
char *put_number(char *place, u64 value);
char *put_hex(char *place, u64 value, u32 digits, int upper);
void clear(void *memory, size_t size);

/* lifecycle.c: initialisation, visibility and handles. */
int enter(void);
int enter_device(const struct handle *device, u32 *gpu);
int enter_gpu(const struct handle *device, u32 *gpu);
int enter_gpus(const struct handle *one, const struct handle *two, u32 *first, u32 *second);
int valid_handle(const struct handle *handle, u32 kind);
u32 visible_count(void);
int visible_index(u32 gpu, u32 *index);
const struct handle *visible_gpu(u32 index);
const struct handle *gpu_handle(u32 gpu);
const struct handle *mig_handle(u32 gpu, u32 instance, u32 compute);
const struct handle *gpu_instance_handle(u32 gpu, u32 instance);
const struct handle *compute_instance_handle(u32 gpu, u32 instance, u32 compute);
int mig_enabled(u32 gpu);
int mig_visible(u32 gpu, u32 instance, u32 compute);
int find_mig(u32 gpu, u32 instance, u32 compute, u32 *item);

/* The commonest answers: one number or one text of a whole GPU. */
int answer_u32(const struct handle *device, const char *name, u32 *out);
int answer_u64(const struct handle *device, const char *name, u64 *out);
int answer_text(const struct handle *device, const char *name, char *buffer, u32 length);
int answer_pair(const struct handle *device, const char *first, const char *second, u32 *one, u32 *two);

/* device.c: PCI addresses as text; links.c: connections; processes.c: what the internal table lists. */
int read_bus(const char *text, u64 parts[4]);
void write_bus(char *text, u32 domain_digits, const u64 parts[4]);
u32 link_count(u32 gpu);
int link_active(u32 gpu, u32 link);
u32 links_between(u32 one, u32 two);
u32 connection_level(u32 one, u32 two);
int list_named(const struct handle *device, char kind, u32 *count, void *out);
const char *declared_name(u32 pid);

#endif
