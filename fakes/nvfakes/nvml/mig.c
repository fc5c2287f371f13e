/* Partitions: MIG mode, MIG devices, GPU and compute instances and the profiles that they are made from.
 *
 * The machine's data lists for each GPU its profiles (g0.p0…), its GPU instances (g0.i0…) and its MIG devices (g0.m0…).
 */
#include "layout.h"

API nvmlDeviceGetMigMode(const struct handle *device, u32 *current, u32 *pending) {
    return answer_pair(device, "mig.mode_current", "mig.mode_pending", current, pending);
}

API nvmlDeviceIsMigDeviceHandle(const struct handle *device, u32 *answer) {
    u32 gpu;
    int status = enter_device(device, &gpu);
    if (status != SUCCESS)
        return status;
    if (!answer)
        return INVALID_ARGUMENT;
    *answer = device->kind == KIND_MIG;
    return SUCCESS;
}

API nvmlDeviceGetMaxMigDeviceCount(const struct handle *device, u32 *count) {
    u32 gpu;
    int status = enter_gpu(device, &gpu);
    if (status != SUCCESS)
        return status;
    if (!count)
        return INVALID_ARGUMENT;
    *count = mig_enabled(gpu) ? (u32)number_or(gpu_fact(gpu, "mig.max_gpu_instances"), 0) : 0;
    return SUCCESS;
}

API nvmlDeviceGetMigDeviceHandleByIndex(const struct handle *device, u32 index, const struct handle **mig) {
    u32 gpu;
    int status = enter_gpu(device, &gpu);
    if (status != SUCCESS)
        return status;
    if (!mig)
        return INVALID_ARGUMENT;
    if (!mig_enabled(gpu))
        return gpu_fact(gpu, "mig.mode_current") ? NOT_FOUND : NOT_SUPPORTED;
    if (index >= number_or(gpu_fact(gpu, "migs"), 0))
        return NOT_FOUND;
    u32 instance = (u32)number_or(item_fact(gpu, "m", index, "gi"), 0);
    u32 compute = (u32)number_or(item_fact(gpu, "m", index, "ci"), 0);
    if (!mig_visible(gpu, instance, compute))
        return NOT_FOUND;
    *mig = mig_handle(gpu, instance, compute);
    return SUCCESS;
}

API nvmlDeviceGetDeviceHandleFromMigDeviceHandle(const struct handle *mig, const struct handle **device) {
    u32 gpu;
    int status = enter_device(mig, &gpu);
    if (status != SUCCESS)
        return status;
    if (!device || mig->kind != KIND_MIG)
        return INVALID_ARGUMENT;
    *device = gpu_handle(gpu);
    return SUCCESS;
}

static int mig_id(const struct handle *mig, u32 which, u32 *id) {
    u32 gpu;
    int status = enter_device(mig, &gpu);
    if (status != SUCCESS)
        return status;
    if (!id || mig->kind != KIND_MIG)
        return INVALID_ARGUMENT;
    *id = which;
    return SUCCESS;
}

API nvmlDeviceGetGpuInstanceId(const struct handle *mig, u32 *id) { return mig_id(mig, mig ? mig->instance : 0, id); }

API nvmlDeviceGetComputeInstanceId(const struct handle *mig, u32 *id) { return mig_id(mig, mig ? mig->compute : 0, id); }

API nvmlDeviceGetAttributes_v2(const struct handle *mig, struct attributes *out) {
    u32 gpu, item;
    int status = enter_device(mig, &gpu);
    if (status != SUCCESS)
        return status;
    if (!out || mig->kind != KIND_MIG)
        return INVALID_ARGUMENT;
    status = find_mig(gpu, mig->instance, mig->compute, &item);
    if (status != SUCCESS)
        return status;
    out->multiprocessors = (u32)number_or(item_fact(gpu, "m", item, "multiprocessors"), 0);
    out->copy_engines = (u32)number_or(item_fact(gpu, "m", item, "copy_engines"), 0);
    out->decoders = (u32)number_or(item_fact(gpu, "m", item, "decoders"), 0);
    out->encoders = 0;
    out->jpeg = (u32)number_or(item_fact(gpu, "m", item, "jpeg"), 0);
    out->ofa = (u32)number_or(item_fact(gpu, "m", item, "ofa"), 0);
    out->gpu_slices = (u32)number_or(item_fact(gpu, "m", item, "gpu_slices"), 0);
    out->compute_slices = (u32)number_or(item_fact(gpu, "m", item, "compute_slices"), 0);
    out->memory_mib = number_or(item_fact(gpu, "m", item, "memory_mib"), 0);
    return SUCCESS;
}

API nvmlDeviceGetAttributes(const struct handle *mig, struct attributes *out) {
    return nvmlDeviceGetAttributes_v2(mig, out);
}

/* Profiles of GPU instances. */

static int find_profile(u32 gpu, const char *by, u32 wanted, u32 *item) {
    u32 count = (u32)number_or(gpu_fact(gpu, "profiles"), 0);
    for (u32 place = 0; place < count; place++)
        if (number_or(item_fact(gpu, "p", place, by), 999) == wanted) {
            *item = place;
            return SUCCESS;
        }
    return NOT_SUPPORTED;
}

static u32 profile_number(u32 gpu, u32 item, const char *name) {
    return (u32)number_or(item_fact(gpu, "p", item, name), 0);
}

static int enter_profile(const struct handle *device, u32 profile, const void *out, u32 *item) {
    u32 gpu;
    int status = enter_gpu(device, &gpu);
    if (status != SUCCESS)
        return status;
    if (!out)
        return INVALID_ARGUMENT;
    return find_profile(gpu, "enum", profile, item);
}

API nvmlDeviceGetGpuInstanceProfileInfo(const struct handle *device, u32 profile, struct gpu_instance_profile *out) {
    u32 item;
    int status = enter_profile(device, profile, out, &item);
    if (status != SUCCESS)
        return status;
    u32 gpu = device->gpu;
    out->id = profile_number(gpu, item, "id");
    out->p2p = 0;
    out->slices = profile_number(gpu, item, "slices");
    out->instances = profile_number(gpu, item, "maximum");
    out->multiprocessors = profile_number(gpu, item, "multiprocessors");
    out->copy_engines = profile_number(gpu, item, "copy_engines");
    out->decoders = profile_number(gpu, item, "decoders");
    out->encoders = 0;
    out->jpeg = profile_number(gpu, item, "jpeg");
    out->ofa = profile_number(gpu, item, "ofa");
    out->memory_mib = profile_number(gpu, item, "memory_mib");
    return SUCCESS;
}

API nvmlDeviceGetGpuInstanceProfileInfoV(const struct handle *device, u32 profile, u32 *versioned) {
    u32 item;
    int status = enter_profile(device, profile, versioned, &item);
    if (status != SUCCESS)
        return status;
    struct gpu_instance_profile found;
    status = nvmlDeviceGetGpuInstanceProfileInfo(device, profile, &found);
    if (status != SUCCESS)
        return status;
    char name[96];
    put_text(put_text(name, "MIG "), item_fact(device->gpu, "p", item, "name"));
    if (*versioned == VERSIONED(struct gpu_instance_profile_v2, 2)) {
        struct gpu_instance_profile_v2 *out = (void *)versioned;
        *out = (struct gpu_instance_profile_v2){
            *versioned,       found.id,       found.p2p,      found.slices,   found.instances, found.multiprocessors,
            found.copy_engines, found.decoders, found.encoders, found.jpeg, found.ofa, found.memory_mib, {0}};
        return copy_text(name, out->name, sizeof out->name);
    }
    if (*versioned == VERSIONED(struct gpu_instance_profile_v3, 3)) {
        struct gpu_instance_profile_v3 *out = (void *)versioned;
        *out = (struct gpu_instance_profile_v3){
            *versioned,         found.id,       found.slices,   found.instances, found.multiprocessors,
            found.copy_engines, found.decoders, found.encoders, found.jpeg,      found.ofa,
            found.memory_mib,   {0},            0};
        return copy_text(name, out->name, sizeof out->name);
    }
    return VERSION_MISMATCH;
}

API nvmlDeviceGetGpuInstanceProfileInfoByIdV(const struct handle *device, u32 profile_id, u32 *versioned) {
    u32 gpu, item;
    int status = enter_gpu(device, &gpu);
    if (status != SUCCESS)
        return status;
    if (!versioned)
        return INVALID_ARGUMENT;
    status = find_profile(gpu, "id", profile_id, &item);
    if (status != SUCCESS)
        return status;
    return nvmlDeviceGetGpuInstanceProfileInfoV(device, profile_number(gpu, item, "enum"), versioned);
}

/* The memory slices that existing GPU instances hold, one bit each. */
static u32 taken_slices(u32 gpu) {
    u32 count = (u32)number_or(gpu_fact(gpu, "instances"), 0), taken = 0;
    for (u32 item = 0; item < count; item++) {
        u32 start = (u32)number_or(item_fact(gpu, "i", item, "start"), 0);
        u32 size = (u32)number_or(item_fact(gpu, "i", item, "size"), 0);
        taken |= ((1u << size) - 1) << start;
    }
    return taken;
}

static u32 free_compute_slices(u32 gpu) {
    u32 count = (u32)number_or(gpu_fact(gpu, "instances"), 0), used = 0;
    for (u32 item = 0; item < count; item++)
        used += (u32)number_or(item_fact(gpu, "i", item, "slices"), 0);
    return used < 7 ? 7 - used : 0;
}

API nvmlDeviceGetGpuInstanceRemainingCapacity(const struct handle *device, u32 profile_id, u32 *count) {
    u32 gpu, item, found = 0;
    int status = enter_gpu(device, &gpu);
    if (status != SUCCESS)
        return status;
    if (!count || find_profile(gpu, "id", profile_id, &item) != SUCCESS)
        return INVALID_ARGUMENT;
    u32 slices = profile_number(gpu, item, "slices"), taken = mig_enabled(gpu) ? taken_slices(gpu) : 0xff;
    u32 compute = free_compute_slices(gpu), maximum = profile_number(gpu, item, "maximum");
    const char *placements = item_fact(gpu, "p", item, "placements");
    u64 start, size;
    while (found < maximum && compute >= slices && next_number(&placements, &start) &&
           next_number(&placements, &size)) {
        u32 wanted = ((1u << size) - 1) << start;
        if (wanted & taken)
            continue;
        taken |= wanted;
        compute -= slices;
        found++;
    }
    *count = found;
    return SUCCESS;
}

API nvmlDeviceGetGpuInstancePossiblePlacements_v2(const struct handle *device, u32 profile_id, struct placement *out,
                                                  u32 *count) {
    u32 gpu, item, found = 0;
    int status = enter_gpu(device, &gpu);
    if (status != SUCCESS)
        return status;
    if (!count || find_profile(gpu, "id", profile_id, &item) != SUCCESS)
        return INVALID_ARGUMENT;
    const char *placements = item_fact(gpu, "p", item, "placements");
    u64 start, size;
    while (next_number(&placements, &start) && next_number(&placements, &size)) {
        if (out && found >= *count)
            return INSUFFICIENT_SIZE;
        if (out)
            out[found] = (struct placement){(u32)start, (u32)size};
        found++;
    }
    *count = found;
    return SUCCESS;
}

API nvmlDeviceGetGpuInstancePossiblePlacements(const struct handle *device, u32 profile_id, struct placement *out,
                                               u32 *count) {
    return nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, profile_id, out, count);
}

/* GPU instances. */

static int find_instance(u32 gpu, u32 instance, u32 *item) {
    u32 count = (u32)number_or(gpu_fact(gpu, "instances"), 0);
    for (u32 place = 0; place < count; place++)
        if (number_or(item_fact(gpu, "i", place, "gi"), 99) == instance) {
            *item = place;
            return SUCCESS;
        }
    return NOT_FOUND;
}

static u32 instance_number(u32 gpu, u32 item, const char *name) {
    return (u32)number_or(item_fact(gpu, "i", item, name), 0);
}

API nvmlDeviceGetGpuInstances(const struct handle *device, u32 profile_id, const struct handle **out, u32 *count) {
    u32 gpu, item, found = 0;
    int status = enter_gpu(device, &gpu);
    if (status != SUCCESS)
        return status;
    if (!out || !count || find_profile(gpu, "id", profile_id, &item) != SUCCESS)
        return INVALID_ARGUMENT;
    if (!mig_enabled(gpu))
        return NOT_SUPPORTED;
    u32 instances = (u32)number_or(gpu_fact(gpu, "instances"), 0);
    for (u32 place = 0; place < instances; place++)
        if (instance_number(gpu, place, "profile_id") == profile_id)
            out[found++] = gpu_instance_handle(gpu, instance_number(gpu, place, "gi"));
    *count = found;
    return SUCCESS;
}

API nvmlDeviceGetGpuInstanceById(const struct handle *device, u32 id, const struct handle **out) {
    u32 gpu, item;
    int status = enter_gpu(device, &gpu);
    if (status != SUCCESS)
        return status;
    if (!out)
        return INVALID_ARGUMENT;
    if (!mig_enabled(gpu))
        return NOT_SUPPORTED;
    status = find_instance(gpu, id, &item);
    if (status == SUCCESS)
        *out = gpu_instance_handle(gpu, id);
    return status;
}

static int enter_instance(const struct handle *instance, const void *out, u32 *item) {
    int status = enter();
    if (status != SUCCESS)
        return status;
    if (!out || !valid_handle(instance, KIND_GPU_INSTANCE))
        return INVALID_ARGUMENT;
    return find_instance(instance->gpu, instance->instance, item);
}

API nvmlGpuInstanceGetInfo(const struct handle *instance, struct gpu_instance_info *out) {
    u32 item;
    int status = enter_instance(instance, out, &item);
    if (status != SUCCESS)
        return status;
    u32 gpu = instance->gpu;
    out->device = gpu_handle(gpu);
    out->id = instance->instance;
    out->profile_id = instance_number(gpu, item, "profile_id");
    out->placement.start = instance_number(gpu, item, "start");
    out->placement.size = instance_number(gpu, item, "size");
    return SUCCESS;
}

/* Compute instances. A compute instance profile is a number of slices: enum 0, 1, 2, 3, 4 for 1, 2, 3, 4, 7. */

static const u32 compute_sizes[] = {1, 2, 3, 4, 7};

static int compute_size(u32 profile, u32 *slices) {
    if (profile >= sizeof compute_sizes / sizeof *compute_sizes)
        return NOT_SUPPORTED;
    *slices = compute_sizes[profile];
    return SUCCESS;
}

static u32 compute_profile(u32 slices) {
    for (u32 profile = 0; profile < sizeof compute_sizes / sizeof *compute_sizes; profile++)
        if (compute_sizes[profile] == slices)
            return profile;
    return 0;
}

API nvmlGpuInstanceGetComputeInstanceProfileInfo(const struct handle *instance, u32 profile, u32 engine,
                                                 struct compute_instance_profile *out) {
    u32 item, slices, profile_item;
    int status = enter_instance(instance, out, &item);
    if (status != SUCCESS)
        return status;
    u32 gpu = instance->gpu, whole = instance_number(gpu, item, "slices");
    if (engine != 0 || compute_size(profile, &slices) != SUCCESS || slices > whole)
        return NOT_SUPPORTED;
    status = find_profile(gpu, "id", instance_number(gpu, item, "profile_id"), &profile_item);
    if (status != SUCCESS)
        return status;
    u32 multiprocessors = profile_number(gpu, profile_item, "multiprocessors");
    out->id = profile;
    out->slices = slices;
    out->instances = whole / slices;
    out->multiprocessors = slices == whole ? multiprocessors : multiprocessors / whole * slices;
    out->copy_engines = profile_number(gpu, profile_item, "copy_engines");
    out->decoders = profile_number(gpu, profile_item, "decoders");
    out->encoders = 0;
    out->jpeg = profile_number(gpu, profile_item, "jpeg");
    out->ofa = profile_number(gpu, profile_item, "ofa");
    return SUCCESS;
}

API nvmlGpuInstanceGetComputeInstanceProfileInfoV(const struct handle *instance, u32 profile, u32 engine,
                                                  u32 *versioned) {
    u32 item, profile_item;
    int status = enter_instance(instance, versioned, &item);
    struct compute_instance_profile found;
    if (status == SUCCESS)
        status = nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, profile, engine, &found);
    if (status != SUCCESS)
        return status;
    u32 gpu = instance->gpu, whole = instance_number(gpu, item, "slices");
    status = find_profile(gpu, "id", instance_number(gpu, item, "profile_id"), &profile_item);
    if (status != SUCCESS)
        return status;
    char name[96];
    char *end = put_text(name, "MIG ");
    if (found.slices != whole)
        end = put_text(put_number(end, found.slices), "c.");
    put_text(end, item_fact(gpu, "p", profile_item, "name"));
    if (*versioned == VERSIONED(struct compute_instance_profile_v2, 2)) {
        struct compute_instance_profile_v2 *out = (void *)versioned;
        *out = (struct compute_instance_profile_v2){
            *versioned,     found.id,       found.slices, found.instances, found.multiprocessors, found.copy_engines,
            found.decoders, found.encoders, found.jpeg,   found.ofa,       {0}};
        return copy_text(name, out->name, sizeof out->name);
    }
    if (*versioned == VERSIONED(struct compute_instance_profile_v3, 3)) {
        struct compute_instance_profile_v3 *out = (void *)versioned;
        *out = (struct compute_instance_profile_v3){
            *versioned,     found.id,       found.slices, found.instances, found.multiprocessors, found.copy_engines,
            found.decoders, found.encoders, found.jpeg,   found.ofa,       {0},                   0};
        return copy_text(name, out->name, sizeof out->name);
    }
    return VERSION_MISMATCH;
}

API nvmlGpuInstanceGetComputeInstanceRemainingCapacity(const struct handle *instance, u32 profile, u32 *count) {
    u32 item, slices, used = 0;
    int status = enter_instance(instance, count, &item);
    if (status != SUCCESS)
        return status;
    u32 gpu = instance->gpu, whole = instance_number(gpu, item, "slices");
    if (compute_size(profile, &slices) != SUCCESS || slices > whole)
        return INVALID_ARGUMENT;
    u32 migs = (u32)number_or(gpu_fact(gpu, "migs"), 0);
    for (u32 mig = 0; mig < migs; mig++)
        if (number_or(item_fact(gpu, "m", mig, "gi"), 99) == instance->instance)
            used += (u32)number_or(item_fact(gpu, "m", mig, "compute_slices"), 0);
    *count = used < whole ? (whole - used) / slices : 0;
    return SUCCESS;
}

API nvmlGpuInstanceGetComputeInstancePossiblePlacements(const struct handle *instance, u32 profile,
                                                        struct placement *out, u32 *count) {
    u32 item, slices, found = 0;
    int status = enter_instance(instance, count, &item);
    if (status != SUCCESS)
        return status;
    u32 whole = instance_number(instance->gpu, item, "slices");
    if (compute_size(profile, &slices) != SUCCESS || slices > whole)
        return INVALID_ARGUMENT;
    for (u32 start = 0; start + slices <= whole; start += slices, found++) {
        if (out && found >= *count)
            return INSUFFICIENT_SIZE;
        if (out)
            out[found] = (struct placement){start, slices};
    }
    *count = found;
    return SUCCESS;
}

API nvmlGpuInstanceGetComputeInstances(const struct handle *instance, u32 profile, const struct handle **out,
                                       u32 *count) {
    u32 item, slices, found = 0;
    int status = enter_instance(instance, count, &item);
    if (status != SUCCESS)
        return status;
    if (!out || compute_size(profile, &slices) != SUCCESS)
        return INVALID_ARGUMENT;
    u32 gpu = instance->gpu, migs = (u32)number_or(gpu_fact(gpu, "migs"), 0);
    for (u32 mig = 0; mig < migs; mig++)
        if (number_or(item_fact(gpu, "m", mig, "gi"), 99) == instance->instance &&
            number_or(item_fact(gpu, "m", mig, "compute_slices"), 0) == slices)
            out[found++] = compute_instance_handle(gpu, instance->instance,
                                                   (u32)number_or(item_fact(gpu, "m", mig, "ci"), 0));
    *count = found;
    return SUCCESS;
}

API nvmlGpuInstanceGetComputeInstanceById(const struct handle *instance, u32 id, const struct handle **out) {
    u32 item;
    int status = enter_instance(instance, out, &item);
    if (status == SUCCESS)
        status = find_mig(instance->gpu, instance->instance, id, &item);
    if (status == SUCCESS)
        *out = compute_instance_handle(instance->gpu, instance->instance, id);
    return status;
}

API nvmlComputeInstanceGetInfo_v2(const struct handle *compute, struct compute_instance_info *out) {
    u32 item;
    int status = enter();
    if (status != SUCCESS)
        return status;
    if (!out || !valid_handle(compute, KIND_COMPUTE_INSTANCE))
        return INVALID_ARGUMENT;
    u32 gpu = compute->gpu;
    status = find_mig(gpu, compute->instance, compute->compute, &item);
    if (status != SUCCESS)
        return status;
    out->device = gpu_handle(gpu);
    out->gpu_instance = gpu_instance_handle(gpu, compute->instance);
    out->id = compute->compute;
    out->placement.start = (u32)number_or(item_fact(gpu, "m", item, "compute_start"), 0);
    out->placement.size = (u32)number_or(item_fact(gpu, "m", item, "compute_slices"), 0);
    out->profile_id = compute_profile(out->placement.size);
    return SUCCESS;
}

API nvmlComputeInstanceGetInfo(const struct handle *compute, struct compute_instance_info *out) {
    return nvmlComputeInstanceGetInfo_v2(compute, out);
}
