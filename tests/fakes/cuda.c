/* A libcuda.so.1 as far as the active tests use it. Nothing is computed: each piece of work takes as long as the file
 * `cuda.plan` beside the library says, on a clock of its own. The file has lines `NAME VALUE`, or `BUS_ID NAME VALUE`
 * for one card. Names: tflops, memory_gb_s, transfer_gb_s, peer_gb_s: its speed; wrong: how many results are; peer_wrong: those
 * of copies to it; peers: 0 if it reaches no other card; init, context, alloc, launch, wait: the CUresult of that call; hang: the card never gives an
 * answer; segv: the library crashes as it is initialized. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <libgen.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define TOTAL (80ull << 30)

#define CARDS 16

static char buses[CARDS][32];
static unsigned known, current;
static int arrived;
static double now;
static uint64_t used;

static double plan(const char *name, double otherwise) {
    Dl_info self;
    char file[4096], line[256], word[3][64];
    if (!dladdr((void *)plan, &self))
        abort();
    snprintf(file, sizeof file, "%s", self.dli_fname);
    snprintf(file + strlen(dirname(file)), 16, "/cuda.plan");
    FILE *from = fopen(file, "r");
    if (!from)
        return otherwise;
    while (fgets(line, sizeof line, from)) {
        int words = sscanf(line, "%63s %63s %63s", word[0], word[1], word[2]);
        if (words == 2 && !strcmp(word[0], name))
            otherwise = atof(word[1]);
        if (words == 3 && !strcmp(word[0], buses[current]) && !strcmp(word[1], name))
            otherwise = atof(word[2]);
    }
    fclose(from);
    return otherwise;
}

static void take(double bytes, const char *rate, double otherwise) { now += bytes / (plan(rate, otherwise) * 1e9); }

static int answer(void) {
    while (plan("hang", 0))
        sleep(1);
    return plan("wait", 0);
}

EXPORT int cuInit(unsigned flags) {
    if (plan("segv", 0))
        raise(SIGSEGV);
    return flags ? 1 : plan("init", 0);
}

EXPORT int cuDeviceGetByPCIBusId(int *device, const char *id) {
    if (known == CARDS)
        return 101;
    current = known++;
    snprintf(buses[current], sizeof *buses, "%s", id);
    *device = current;
    return 0;
}

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 16 ? 132 : attribute == 75 ? 9 : 0;
    return (unsigned)device < known ? 0 : 101;
}

EXPORT int cuCtxCreate_v2(void **context, unsigned flags, int device) {
    current = device;
    *context = buses[device];
    return flags ? 1 : plan("context", 0);
}

EXPORT int cuCtxSetCurrent(void *context) {
    current = (unsigned)((char(*)[32])context - buses);
    return current < known ? 0 : 201;
}

EXPORT int cuCtxDestroy_v2(void *context) { return cuCtxSetCurrent(context); }

EXPORT int cuDeviceCanAccessPeer(int *able, int device, int peer) {
    *able = device != peer && plan("peers", 1);
    return (unsigned)device < known && (unsigned)peer < known ? 0 : 101;
}

EXPORT int cuCtxEnablePeerAccess(void *peer, unsigned flags) { return flags || peer == buses[current] ? 1 : 0; }

EXPORT int cuMemcpyPeerAsync(uint64_t to, void *target, uint64_t from, void *source, size_t size, void *stream) {
    take(size, "peer_gb_s", 390);
    arrived = 1;
    return to && from && target != source && !stream ? 0 : 1;
}

EXPORT int cuCtxSynchronize(void) { return answer(); }

EXPORT int cuModuleLoadData(void **module, const char *ptx) {
    *module = buses[current];
    return strstr(ptx, ".visible .entry tensor") ? 0 : 218; /* CUDA_ERROR_INVALID_PTX */
}

EXPORT int cuModuleGetFunction(const char **function, void *module, const char *name) {
    static const char *const kernels[] = {"tensor", "plain", "fill", "verify", "spin", "stray"};
    for (unsigned i = 0; module && i < sizeof kernels / sizeof *kernels; i++)
        if (!strcmp(kernels[i], name)) {
            *function = kernels[i];
            return 0;
        }
    return 500; /* CUDA_ERROR_NOT_FOUND */
}

EXPORT int cuMemGetInfo_v2(size_t *free, size_t *total) {
    *total = TOTAL;
    *free = TOTAL - used;
    return 0;
}

EXPORT int cuMemAlloc_v2(uint64_t *at, size_t size) {
    if (plan("alloc", 0) || used + size > TOTAL)
        return 2;
    *at = 0x700000000000 + used;
    used += size;
    return 0;
}

EXPORT int cuMemHostAlloc(void **at, size_t size, unsigned flags) {
    *at = (void *)0x1000;
    return size && !flags ? 0 : 1;
}

EXPORT int cuMemsetD32_v2(uint64_t at, unsigned value, size_t words) { return at && !value && words ? 0 : 1; }

EXPORT int cuMemcpyDtoH_v2(uint32_t *to, uint64_t from, size_t size) {
    int result = from && size == 4 ? answer() : 1;
    *to = plan("wrong", 0) + (arrived ? plan("peer_wrong", 0) : 0);
    return result;
}

EXPORT int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t size, void *stream) {
    take(2.0 * size, "memory_gb_s", 3000);
    return to && from && !stream ? 0 : 1;
}

EXPORT int cuMemcpyHtoDAsync_v2(uint64_t to, void *from, size_t size, void *stream) {
    take(size, "transfer_gb_s", 55);
    return to && from && !stream ? 0 : 1;
}

EXPORT int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, void *stream) {
    take(size, "transfer_gb_s", 55);
    return to && from && !stream ? 0 : 1;
}

EXPORT int cuLaunchKernel(const char *kernel, unsigned bx, unsigned by, unsigned bz, unsigned tx, unsigned ty, unsigned tz,
                          unsigned shared, void *stream, void **arguments, void **extra) {
    if (by != 1 || bz != 1 || ty != 1 || tz != 1 || shared || stream || extra)
        return 1;
    if (!strcmp(kernel, "tensor")) /* two products of 16 x 8 x 16 for each of four sums, by each warp, in each round */
        now += (double)bx * tx / 32 * *(uint32_t *)arguments[1] * 4 * 2 * 4096 / (plan("tflops", 600) * 1e12);
    return plan("launch", 0);
}

EXPORT int cuEventCreate(double **event, unsigned flags) {
    *event = malloc(sizeof **event);
    return *event && !flags ? 0 : 2;
}

EXPORT int cuEventRecord(double *event, void *stream) {
    *event = now;
    return stream != 0;
}

EXPORT int cuEventSynchronize(double *event) { return event ? answer() : 1; }

EXPORT int cuEventElapsedTime(float *milliseconds, const double *first, const double *last) {
    *milliseconds = 1000 * (*last - *first);
    return 0;
}

EXPORT int cuGetErrorName(int code, const char **name) {
    *name = code == 2     ? "CUDA_ERROR_OUT_OF_MEMORY"
            : code == 214 ? "CUDA_ERROR_ECC_UNCORRECTABLE"
            : code == 719 ? "CUDA_ERROR_LAUNCH_FAILED"
            : code == 802 ? "CUDA_ERROR_SYSTEM_NOT_READY"
                          : "CUDA_ERROR_UNKNOWN";
    return 0;
}
