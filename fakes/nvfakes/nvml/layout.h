/* NVML's structures and constants, as far as this library fills them in; sizes are those of nvml.h on 64-bit machines.
 *
 * Belongs here: layouts only. A test compares each with the structures of the Python bindings.
 */
#ifndef NVFAKES_LAYOUT_H
#define NVFAKES_LAYOUT_H

#include "fake.h"

#define VERSIONED(type, number) ((u32)sizeof(type) | (u32)(number) << 24)

struct pci_info {
    char bus_id_legacy[16];
    u32 domain, bus, device;
    u32 device_id, subsystem_id;
    char bus_id[32];
};

/* What the unsuffixed and the second function may write: their callers may have a shorter structure. */
struct pci_info_short {
    char bus_id_legacy[16];
    u32 domain, bus, device;
    u32 device_id;
    u32 subsystem_id;
};

struct pci_info_ext {
    u32 version, domain, bus, device, device_id, subsystem_id, base_class, sub_class;
    char bus_id[32];
};

struct memory {
    u64 total, free, used;
};

struct memory_v2 {
    u32 version;
    u64 total, reserved, free, used;
};

struct bar1 {
    u64 total, free, used;
};

struct utilization {
    u32 gpu, memory;
};

struct attributes {
    u32 multiprocessors, copy_engines, decoders, encoders, jpeg, ofa, gpu_slices, compute_slices;
    u64 memory_mib;
};

struct placement {
    u32 start, size;
};

struct gpu_instance_profile {
    u32 id, p2p, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
    u64 memory_mib;
};

struct gpu_instance_profile_v2 {
    u32 version, id, p2p, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
    u64 memory_mib;
    char name[96];
};

struct gpu_instance_profile_v3 {
    u32 version, id, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
    u64 memory_mib;
    char name[96];
    u32 capabilities;
};

struct gpu_instance_info {
    const struct handle *device;
    u32 id, profile_id;
    struct placement placement;
};

struct compute_instance_profile {
    u32 id, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
};

struct compute_instance_profile_v2 {
    u32 version, id, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
    char name[96];
};

struct compute_instance_profile_v3 {
    u32 version, id, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
    char name[96];
    u32 capabilities;
};

struct compute_instance_info {
    const struct handle *device;
    const struct handle *gpu_instance;
    u32 id, profile_id;
    struct placement placement;
};

struct temperature {
    u32 version, sensor;
    i32 celsius;
};

struct margin_temperature {
    u32 version;
    i32 celsius;
};

struct addressing_mode {
    u32 version, value;
};

struct sram_errors {
    u32 version;
    u64 aggregate_parity, aggregate_sec_ded, aggregate_corrected;
    u64 volatile_parity, volatile_sec_ded, volatile_corrected;
    u64 aggregate_l2, aggregate_sm, aggregate_pcie, aggregate_mcu, aggregate_other;
    u32 threshold_exceeded;
};

struct fabric {
    u8 cluster[16];
    u32 status, clique, state;
};

struct fabric_v2 {
    u32 version;
    u8 cluster[16];
    u32 status, clique, state, health;
};

struct fabric_v3 {
    u32 version;
    u8 cluster[16];
    u32 status, clique, state, health;
    u8 summary;
};

/* The last field is in the structure that is read back only. */
struct memory_limits {
    const char *name_space;
    u64 soft, hard, used;
};

struct uuid_query {
    u32 version, type;
    union {
        char text[41];
        u8 bytes[16];
    };
};

#endif
