/* A CUDA driver in host memory: what NVIDIA's binding loads where there is none, so that the adapter's calls go through the
   real library. Everything runs at once; device memory is malloc's. Counts what is alive; cuDoubleFail makes the next
   call of cuMemAlloc, cuStreamSynchronize or cuEventQuery return a status. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

typedef int R;
typedef unsigned long long P;
typedef void *H;
static int alive, capturing, fail_status;
static H context = (H)0x10, stack[64];
static int depth;
#define NEED if (!depth) return 201
#define OUT(call) do { R status = (call); if (status) return status; } while (0)

static R planted(void) { R status = fail_status; fail_status = 0; return status; }
R cuDoubleFail(int status) { fail_status = status; return 0; }
int cuDoubleAlive(void) { return alive; }

R cuInit(unsigned flags) { return flags ? 1 : 0; }
R cuDriverGetVersion(int *version) { *version = VERSION; return 0; }
R cuDeviceGetCount(int *count) { *count = 1; return 0; }
R cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal ? 101 : 0; }
R cuDeviceGetName(char *name, int length, int device) { strncpy(name, "C double", (size_t)length); return device; }
R cuDeviceGetPCIBusId(char *name, int length, int device) { strncpy(name, "0000:65:00.0", (size_t)length); return device; }
R cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = 1 << 20; return device; }
R cuDeviceGetAttribute(int *value, int attribute, int device) {
    switch (attribute) {
        case 75: *value = 8; break; case 76: *value = 7; break; case 18: *value = 1; break; case 19: *value = 1; break;
        case 16: *value = 16; break; case 40: *value = 2; break; default: return 1;
    }
    return device;
}
R cuDevicePrimaryCtxRetain(H *out, int device) { *out = context; alive++; return device; }
R cuDevicePrimaryCtxRelease_v2(int device) { alive--; return device; }
R cuCtxPushCurrent_v2(H given) { if (given != context || depth == 64) return 201; stack[depth++] = given; return 0; }
R cuCtxPopCurrent_v2(H *out) { NEED; *out = stack[--depth]; return 0; }
R cuMemGetInfo_v2(size_t *free_bytes, size_t *total) { NEED; *free_bytes = 1 << 19; *total = 1 << 20; return 0; }
R cuMemAlloc_v2(P *out, size_t size) {
    NEED; OUT(planted()); if (size > 1 << 20) return 2;
    if (capturing) return 900;
    *out = (P)(size_t)calloc(1, size); alive++; return 0;
}
R cuMemFree_v2(P pointer) { NEED; free((void *)(size_t)pointer); alive--; return 0; }
R cuMemHostAlloc(void **out, size_t size, unsigned flags) {
    NEED; if (flags & ~3u) return 1; *out = calloc(1, size); alive++; return 0;
}
R cuMemFreeHost(void *pointer) { NEED; free(pointer); alive--; return 0; }
R cuMemHostGetDevicePointer_v2(P *out, void *host, unsigned flags) { NEED; *out = (P)(size_t)host; return flags ? 1 : 0; }
R cuPointerGetAttribute(void **out, int attribute, P pointer) { NEED; *out = NULL; return attribute == 1 ? 0 : 1; }
static R copy(void *to, const void *from, size_t size, H stream) {
    NEED; if (!stream) return 400; if (!capturing) memcpy(to, from, size); return 0;
}
R cuMemcpyHtoDAsync_v2(P to, const void *from, size_t size, H stream) { return copy((void *)(size_t)to, from, size, stream); }
R cuMemcpyDtoHAsync_v2(void *to, P from, size_t size, H stream) { return copy(to, (void *)(size_t)from, size, stream); }
R cuMemcpyDtoDAsync_v2(P to, P from, size_t size, H stream) {
    return copy((void *)(size_t)to, (void *)(size_t)from, size, stream);
}
R cuMemsetD8Async(P to, unsigned char byte, size_t size, H stream) {
    NEED; if (!stream) return 400; memset((void *)(size_t)to, byte, size); return 0;
}
R cuStreamCreateWithPriority(H *out, unsigned flags, int priority) {
    NEED; if (flags != 1 || priority > 0 || priority < -5) return 1; *out = malloc(1); alive++; return 0;
}
R cuCtxGetStreamPriorityRange(int *least, int *greatest) { NEED; *least = 0; *greatest = -5; return 0; }
R cuStreamDestroy_v2(H stream) { NEED; free(stream); alive--; return 0; }
R cuStreamSynchronize(H stream) { NEED; OUT(planted()); return stream ? 0 : 400; }
R cuStreamQuery(H stream) { NEED; return stream ? 0 : 400; }
R cuStreamWaitEvent(H stream, H event, unsigned flags) { NEED; return stream && event && !flags ? 0 : 400; }
R cuEventCreate(H *out, unsigned flags) { NEED; if (flags & ~3u) return 1; *out = malloc(1); alive++; return 0; }
R cuEventDestroy_v2(H event) { NEED; free(event); alive--; return 0; }
R cuEventRecord(H event, H stream) { NEED; return event && stream ? 0 : 400; }
R cuEventQuery(H event) { NEED; OUT(planted()); return event ? 0 : 400; }
R cuEventSynchronize(H event) { NEED; return event ? 0 : 400; }
R cuEventElapsedTime(float *ms, H start, H end) { NEED; *ms = 1.5f; return start && end ? 0 : 400; }
#if VERSION >= 12080
R cuEventElapsedTime_v2(float *ms, H start, H end) { R status = cuEventElapsedTime(ms, start, end); *ms = 2.5f; return status; }
#endif
R cuStreamBeginCapture_v2(H stream, int mode) { NEED; if (mode != 1 || !stream) return 1; capturing = 1; return 0; }
R cuStreamEndCapture(H stream, H *out) { NEED; capturing = 0; *out = malloc(1); alive++; return stream ? 0 : 400; }
R cuGraphInstantiateWithFlags(H *out, H graph, P flags) { NEED; *out = malloc(1); alive++; return graph && !flags ? 0 : 400; }
R cuGraphLaunch(H executable, H stream) { NEED; return executable && stream ? 0 : 400; }
R cuGraphExecDestroy(H executable) { NEED; free(executable); alive--; return 0; }
R cuGraphDestroy(H graph) { NEED; free(graph); alive--; return 0; }
R cuGetErrorName(R status, const char **text) { *text = "CUDA_ERROR_DOUBLE"; return status < 0; }
R cuGetErrorString(R status, const char **text) { *text = "an error of the double"; return status < 0; }

/* Which function a name means to a program that was written for a version of CUDA: the newest that is not newer than it,
   and that this driver has. As cudaTypedefs.h names them (PFN_cuEventElapsedTime_v12080: from 12.8 on). */
static const struct { const char *name; int since; const char *entry; } table[] = {
    {"cuDeviceTotalMem", 3020, "cuDeviceTotalMem_v2"}, {"cuDevicePrimaryCtxRelease", 11000, "cuDevicePrimaryCtxRelease_v2"},
    {"cuCtxPushCurrent", 4000, "cuCtxPushCurrent_v2"}, {"cuCtxPopCurrent", 4000, "cuCtxPopCurrent_v2"},
    {"cuMemGetInfo", 3020, "cuMemGetInfo_v2"}, {"cuMemAlloc", 3020, "cuMemAlloc_v2"}, {"cuMemFree", 3020, "cuMemFree_v2"},
    {"cuMemHostGetDevicePointer", 3020, "cuMemHostGetDevicePointer_v2"},
    {"cuMemcpyHtoDAsync", 3020, "cuMemcpyHtoDAsync_v2"},
    {"cuMemcpyDtoHAsync", 3020, "cuMemcpyDtoHAsync_v2"}, {"cuMemcpyDtoDAsync", 3020, "cuMemcpyDtoDAsync_v2"},
    {"cuStreamDestroy", 4000, "cuStreamDestroy_v2"}, {"cuEventDestroy", 4000, "cuEventDestroy_v2"},
    {"cuStreamBeginCapture", 10010, "cuStreamBeginCapture_v2"}, {"cuEventElapsedTime", 2000, "cuEventElapsedTime"},
    {"cuEventElapsedTime", 12080, "cuEventElapsedTime_v2"}, {"cuGraphInstantiate", 12000, "cuGraphInstantiateWithFlags"},
    {"cuGetProcAddress", 11030, "cuGetProcAddress"}, {"cuGetProcAddress", 12000, "cuGetProcAddress_v2"},
};

static R find(const char *symbol, void **out, int version, P flags, int *found) {
    const char *entry = NULL;
    int listed = 0;
    (void)flags;
    for (size_t index = 0; index < sizeof table / sizeof *table; index++) {
        if (strcmp(table[index].name, symbol)) continue;
        listed = 1;
        if (table[index].since <= version && table[index].since <= VERSION) entry = table[index].entry;
    }
    if (!listed) entry = symbol;    /* of one version */
    *out = entry ? dlsym(RTLD_DEFAULT, entry) : NULL;
    if (entry && !*out) { H self = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD); if (self) *out = dlsym(self, entry); }
    if (found) *found = *out ? 0 : listed ? 2 : 1;    /* 2: there, but not in this version */
    return *out ? 0 : 500;
}
R cuGetProcAddress(const char *symbol, void **out, int version, P flags) {
    return find(symbol, out, version, flags, NULL);
}
#if VERSION >= 12000
R cuGetProcAddress_v2(const char *symbol, void **out, int version, P flags, int *found) {
    return find(symbol, out, version, flags, found);
}
#endif
