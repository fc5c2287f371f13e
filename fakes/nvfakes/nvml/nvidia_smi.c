/* A small nvidia-smi: lists the GPUs that NVML shows, and their MIG devices.
 *
 * It finds the library as the real program does and uses nothing but NVML, so that it runs on any libnvidia-ml.so.1.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *device;

static void *library;

#define CALL(name, types, ...) ((int (*) types)symbol(#name))(__VA_ARGS__)

static int not_there(void) { return 13; }

static void *symbol(const char *name) {
    void *found = dlsym(library, name);
    return found ? found : (void *)not_there;
}

static const char *text_of(int code) {
    const char *(*words)(int) = (const char *(*)(int))dlsym(library, "nvmlErrorString");
    return words ? words(code) : "Unknown Error";
}

static int fail(const char *what, int code) {
    printf("%s: %s\n", what, text_of(code));
    return code > 0 && code < 255 ? code : 255;
}

static void list_migs(device gpu) {
    unsigned count = 0;
    if (CALL(nvmlDeviceGetMaxMigDeviceCount, (device, unsigned *), gpu, &count))
        return;
    for (unsigned index = 0; index < count; index++) {
        device mig = NULL;
        char name[96], uuid[96];
        if (CALL(nvmlDeviceGetMigDeviceHandleByIndex, (device, unsigned, device *), gpu, index, &mig) ||
            CALL(nvmlDeviceGetName, (device, char *, unsigned), mig, name, sizeof name) ||
            CALL(nvmlDeviceGetUUID, (device, char *, unsigned), mig, uuid, sizeof uuid))
            continue;
        const char *part = strstr(name, " MIG ");
        if (part)
            printf("  MIG %-15s Device  %u: (UUID: %s)\n", part + 5, index, uuid);
    }
}

static int list(unsigned count) {
    for (unsigned index = 0; index < count; index++) {
        device gpu = NULL;
        char name[96], uuid[96];
        int code = CALL(nvmlDeviceGetHandleByIndex_v2, (unsigned, device *), index, &gpu);
        if (!code)
            code = CALL(nvmlDeviceGetName, (device, char *, unsigned), gpu, name, sizeof name);
        if (!code)
            code = CALL(nvmlDeviceGetUUID, (device, char *, unsigned), gpu, uuid, sizeof uuid);
        if (code)
            return fail("Unable to read a GPU", code);
        printf("GPU %u: %s (UUID: %s)\n", index, name, uuid);
        list_migs(gpu);
    }
    return 0;
}

static int table(unsigned count) {
    char version[80] = "N/A";
    int cuda = 0;
    CALL(nvmlSystemGetDriverVersion, (char *, unsigned), version, sizeof version);
    CALL(nvmlSystemGetCudaDriverVersion_v2, (int *), &cuda);
    printf("Driver Version: %s  CUDA Version: %d.%d\n", version, cuda / 1000, cuda % 1000 / 10);
    return list(count);
}

static int run(int argc, char **argv) {
    int code = CALL(nvmlInitWithFlags, (unsigned), 0);
    if (code)
        return fail("Failed to initialize NVML", code);
    unsigned count = 0;
    code = CALL(nvmlDeviceGetCount_v2, (unsigned *), &count);
    if (code)
        return fail("Unable to determine the number of GPUs", code);
    int listing = argc > 1 && !strcmp(argv[1], "-L");
    if (argc > 1 && !listing) {
        printf("Invalid combination of input arguments. This nvidia-smi knows -L only.\n");
        code = 1;
    } else if (!count) {
        puts(listing ? "No devices found." : "No devices were found");
        code = listing ? 0 : 6;
    } else {
        code = listing ? list(count) : table(count);
    }
    CALL(nvmlShutdown, (void));
    return code;
}

/* The loader leaves the argument count and the arguments on the stack; start files would tie the program to the C
 * library of the machine that compiled it. */
__attribute__((used)) static void begin(long *stack) {
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) {
        puts("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.");
        exit(12);
    }
    exit(run((int)stack[0], (char **)(stack + 1)));
}

#if defined(__x86_64__)
__asm__(".globl _start\n_start: xor %ebp, %ebp\nmov %rsp, %rdi\nand $-16, %rsp\ncall begin\n");
#elif defined(__aarch64__)
__asm__(".globl _start\n_start: mov x29, #0\nmov x0, sp\nand sp, x0, #-16\nbl begin\n");
#endif
