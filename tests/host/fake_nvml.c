/* A management library for tests of nvinject.host.nvml: two GPUs, the first cut into MIG devices. Macros choose how it
   misbehaves. Only what the module asks is here; signatures are those of nvml.h. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef INIT
#define INIT 0
#endif
#ifndef DRIVER
#define DRIVER "570.133.20"
#endif

typedef unsigned int u32;
typedef struct { char busIdLegacy[16]; u32 domain, bus, device, pciDeviceId, pciSubSystemId; char busId[32]; } Pci;

static int gpus[2] = {0, 1};
static int slices[8];

static int index_of(void *handle) { return *(int *)handle; }
static int is_slice(void *handle) { return (int *)handle >= slices && (int *)handle < slices + 8; }

int nvmlInitWithFlags(u32 flags)
{
    (void)flags;
    fputs("noise on standard error\n", stderr);
    puts("noise on standard output");
#ifdef HANG
    for (;;) pause();
#endif
#ifdef CRASH
    raise(SIGKILL); /* not SIGSEGV: the test runner would report that as a crash of its own */
#endif
    return INIT;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code)
{
    static char text[64];
    snprintf(text, sizeof text, "error %d of the test", code);
    return text;
}
int nvmlSystemGetDriverVersion(char *text, u32 size) { snprintf(text, size, "%s", DRIVER); return 0; }
int nvmlSystemGetCudaDriverVersion(int *version) { *version = 12080; return 0; }
int nvmlDeviceGetCount_v2(u32 *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(u32 index, void **handle)
{
#ifdef LOSE
    if (index == LOSE) return 15;
#endif
    *handle = &gpus[index];
    return 0;
}
int nvmlDeviceGetMinorNumber(void *handle, u32 *minor) { *minor = index_of(handle); return 0; }
int nvmlDeviceGetPciInfo_v3(void *handle, Pci *pci)
{
    memset(pci, 0, sizeof *pci);
    snprintf(pci->busId, sizeof pci->busId, "00000000:%02X:00.0", 0x1a + index_of(handle));
    return 0;
}
int nvmlDeviceGetUUID(void *handle, char *text, u32 size)
{
    snprintf(text, size, is_slice(handle) ? "MIG-%d" : "GPU-%d", index_of(handle));
    return 0;
}
int nvmlDeviceGetBrand(void *handle, u32 *brand) { if (index_of(handle)) return 3; *brand = 14; return 0; }
int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor)
{
    (void)handle;
    *major = 9;
    *minor = 0;
    return 0;
}
int nvmlDeviceGetMigMode(void *handle, u32 *current, u32 *pending)
{
    if (index_of(handle)) return 3;
    *current = *pending = 1;
    return 0;
}
int nvmlDeviceGetMaxMigDeviceCount(void *handle, u32 *count) { (void)handle; *count = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, u32 index, void **slice)
{
    (void)handle;
    if (index != 0 && index != 2) return 6;
    slices[index] = (int)index;
    *slice = &slices[index];
    return 0;
}
int nvmlDeviceGetGpuInstanceId(void *handle, u32 *id) { *id = 2 - index_of(handle) / 2; return 0; }
int nvmlDeviceGetComputeInstanceId(void *handle, u32 *id) { (void)handle; *id = 0; return 0; }
