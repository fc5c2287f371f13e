/* Events: sets of devices to watch, and waiting for what happens to them.
 *
 * What has happened is in the machine's data: `events` counts, e0, e1, … each name a GPU, a kind and a value.
 */
#include <unistd.h>

#include "layout.h"

enum { SETS = 64, KINDS = 0xFFFF };

struct event_set {
    u32 used;
    u64 seen;
    u64 kinds[GPU_SLOTS];
};

static struct event_set sets[SETS];

struct event {
    const struct handle *device;
    u64 kind, data;
    u32 instance, compute;
};

static int valid_set(const struct event_set *set) {
    return set >= sets && set < sets + SETS && ((uintptr_t)set - (uintptr_t)sets) % sizeof *set == 0 && set->used;
}

API nvmlEventSetCreate(struct event_set **set) {
    int status = enter();
    if (status != SUCCESS)
        return status;
    if (!set)
        return INVALID_ARGUMENT;
    for (u32 place = 0; place < SETS; place++) {
        u32 free = 0;
        if (__atomic_compare_exchange_n(&sets[place].used, &free, 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            clear(sets[place].kinds, sizeof sets[place].kinds);
            sets[place].seen = number_or(fact("events"), 0);
            *set = &sets[place];
            return SUCCESS;
        }
    }
    return INSUFFICIENT_RESOURCES;
}

API nvmlEventSetFree(struct event_set *set) {
    int status = enter();
    if (status != SUCCESS)
        return status;
    if (!valid_set(set))
        return INVALID_ARGUMENT;
    __atomic_store_n(&set->used, 0, __ATOMIC_RELEASE);
    return SUCCESS;
}

static u64 supported_kinds(u32 gpu) {
    u64 kinds = 0x4 | 0x8 | 0x10; /* state, Xid, clock */
    return number_or(gpu_fact(gpu, "ecc.mode_current"), 0) ? kinds | 0x3 : kinds;
}

API nvmlDeviceGetSupportedEventTypes(const struct handle *device, u64 *kinds) {
    u32 gpu;
    int status = enter_gpu(device, &gpu);
    if (status == SUCCESS && !kinds)
        return INVALID_ARGUMENT;
    if (status == SUCCESS)
        *kinds = supported_kinds(gpu);
    return status;
}

API nvmlDeviceRegisterEvents(const struct handle *device, u64 kinds, struct event_set *set) {
    u32 gpu;
    int status = enter_gpu(device, &gpu);
    if (status != SUCCESS)
        return status;
    if (!valid_set(set))
        return INVALID_ARGUMENT;
    if (kinds & ~supported_kinds(gpu))
        return NOT_SUPPORTED;
    set->kinds[gpu] |= kinds;
    return SUCCESS;
}

static u64 event_number(u64 item, const char *name) {
    char key[64];
    put_text(put_text(put_number(put_text(key, "e"), item), "."), name);
    return number_or(fact(key), 0);
}

static int take(struct event_set *set, struct event *event) {
    u64 happened = number_or(fact("events"), 0);
    while (set->seen < happened) {
        u64 item = set->seen++, gpu = event_number(item, "gpu"), kind = event_number(item, "kind");
        if (gpu < GPU_SLOTS && set->kinds[gpu] & kind) {
            event->device = gpu_handle((u32)gpu);
            event->kind = kind;
            event->data = event_number(item, "data");
            return 1;
        }
    }
    return 0;
}

static int wait(struct event_set *set, struct event *event, u32 milliseconds) {
    int status = enter();
    if (status != SUCCESS)
        return status;
    if (!valid_set(set) || !event)
        return INVALID_ARGUMENT;
    for (u32 waited = 0;; waited += 10) {
        if (take(set, event))
            return SUCCESS;
        if (waited >= milliseconds)
            return TIMEOUT;
        usleep(10000);
    }
}

API nvmlEventSetWait_v2(struct event_set *set, struct event *event, u32 milliseconds) {
    struct event found;
    int status = wait(set, event ? &found : NULL, milliseconds);
    if (status == SUCCESS) {
        *event = found;
        event->instance = event->compute = 0xFFFFFFFF;
    }
    return status;
}

/* The first form's structure ends before the instances. */
API nvmlEventSetWait(struct event_set *set, struct event *event, u32 milliseconds) {
    struct event found;
    int status = wait(set, event ? &found : NULL, milliseconds);
    if (status == SUCCESS) {
        event->device = found.device;
        event->kind = found.kind;
        event->data = found.data;
    }
    return status;
}
