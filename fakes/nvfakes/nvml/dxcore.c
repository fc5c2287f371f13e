/* libdxcore.so as a Linux system below Windows has it: which adapters Windows shows, and where their drivers lie.
 *
 * Belongs here: the three calls that container tools make. Does not belong here: everything that draws. The structures
 * are those of d3dkmthk.h and d3dukmdt.h, whose wide characters have four bytes on Linux.
 */
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "fake.h"

enum { STATUS_OK = 0, STATUS_INVALID = (i32)0xC000000D, STATUS_NO_DEVICE = (i32)0xC000000E };
enum { QUERY_DRIVER_VERSION = 13, QUERY_REGISTRY = 48 };
enum { DRIVER_STORE_PATH = 2 };
enum { REGISTRY_DONE = 0, REGISTRY_TOO_SMALL = 1 };
enum { MAX_PATH = 260, FIRST_HANDLE = 0x40000000, WITH_COMPUTE_ONLY = 1 };

struct adapter {
    u32 handle;
    u32 luid_low;
    i32 luid_high;
    u32 sources;
    u32 moves;
};

struct enumeration {
    u32 count;
    struct adapter *adapters;
};

struct filtered_enumeration {
    u64 filter;
    u32 count;
    struct adapter *adapters;
};

struct query {
    u32 handle;
    u32 type;
    void *data;
    u32 size;
};

struct registry {
    u32 type;
    u32 flags;
    u32 name[MAX_PATH];
    u32 value_type;
    u32 physical;
    u32 size;
    u32 status;
    u64 output;
};

static const char *adapter_fact(u32 adapter, const char *name) {
    char key[64];
    *put_text(put_text(put_number(put_text(key, "a"), adapter), "."), name) = 0;
    return fact(key);
}

static u32 adapter_count(void) { return (u32)number_or(fact("adapters"), 0); }

static int may_open(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return errno == ENXIO || errno == ENODEV;
    close(fd);
    return 1;
}

/* Every call goes through /dev/dxg, or the node of a lane that cannot have one there. */
static int node_allowed(void) {
    char path[4096];
    const char *directory = fact("dev.directory");
    if (may_open("/dev/dxg"))
        return 1;
    if (!directory || text_length(directory) + sizeof "/dxg" > sizeof path)
        return 0;
    put_text(put_text(path, directory), "/dxg");
    return may_open(path);
}

static int enumerate(u64 filter, u32 *count, struct adapter *adapters) {
    if (!node_allowed())
        return STATUS_NO_DEVICE;
    u32 found = 0, room = adapters ? *count : 0;
    for (u32 adapter = 0; adapter < adapter_count(); adapter++) {
        if (number_or(adapter_fact(adapter, "compute_only"), 0) && !(filter & WITH_COMPUTE_ONLY))
            continue;
        if (found < room) {
            struct adapter one = {FIRST_HANDLE + adapter, 0x1000 + adapter, 0, 1, 0};
            adapters[found] = one;
        } else if (adapters) {
            return STATUS_INVALID;
        }
        found++;
    }
    *count = found;
    return STATUS_OK;
}

API D3DKMTEnumAdapters2(struct enumeration *asked) {
    return asked ? enumerate(0, &asked->count, asked->adapters) : STATUS_INVALID;
}

API D3DKMTEnumAdapters3(struct filtered_enumeration *asked) {
    return asked ? enumerate(asked->filter, &asked->count, asked->adapters) : STATUS_INVALID;
}

static int answer_registry(u32 adapter, struct registry *asked, u32 size) {
    const char *store = adapter_fact(adapter, "store");
    if (size < sizeof *asked || asked->type != DRIVER_STORE_PATH || !store)
        return STATUS_INVALID;
    u32 length = text_length(store), room = (size - (u32)offsetof(struct registry, output)) / 4;
    asked->size = 4 * length;
    asked->status = length <= room ? REGISTRY_DONE : REGISTRY_TOO_SMALL;
    u32 *output = (u32 *)&asked->output;
    for (u32 place = 0; asked->status == REGISTRY_DONE && place < length; place++)
        output[place] = (u8)store[place];
    return STATUS_OK;
}

API D3DKMTQueryAdapterInfo(struct query *asked) {
    if (!asked || !asked->data || asked->handle < FIRST_HANDLE || asked->handle - FIRST_HANDLE >= adapter_count())
        return STATUS_INVALID;
    u32 adapter = asked->handle - FIRST_HANDLE;
    if (asked->type == QUERY_REGISTRY)
        return answer_registry(adapter, asked->data, asked->size);
    if (asked->type != QUERY_DRIVER_VERSION || asked->size < sizeof(u32))
        return STATUS_INVALID;
    *(u32 *)asked->data = (u32)number_or(adapter_fact(adapter, "wddm"), 0);
    return STATUS_OK;
}
