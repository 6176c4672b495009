/* Answers the questions that torch asks CUDA before a kernel runs, as an H100 would. No kernel runs: memory is host
   memory, streams and events are addresses, all work is done at once. For fake tensors only. */
#include <driver_types.h>
#include <stdlib.h>
#include <string.h>

typedef void *Address;
#define DONE(name) int name() { return 0; }
#define MISSING(name) int name() { return 801; } /* not supported */
#define GIVE(name, type, value) int name(type *result) { *result = value; return 0; }

/* The device. */
GIVE(cudaGetDeviceCount, int, 1)
GIVE(cudaGetDevice, int, 0)
GIVE(cudaDriverGetVersion, int, 13000)
GIVE(cudaRuntimeGetVersion, int, 13000)
DONE(cudaSetDevice) DONE(cudaDeviceSynchronize) DONE(cudaGetLastError) DONE(cudaPeekAtLastError)

int cudaGetDeviceProperties(struct cudaDeviceProp *device, int number) {
    memset(device, 0, sizeof *device);
    strcpy(device->name, "pretended H100");
    device->major = 9;
    device->multiProcessorCount = 132;
    device->totalGlobalMem = 80ull << 30;
    device->warpSize = 32;
    device->maxThreadsPerBlock = 1024;
    device->maxThreadsPerMultiProcessor = 2048;
    device->sharedMemPerBlock = 48 << 10;
    device->sharedMemPerBlockOptin = 227 << 10;
    return 0;
}

int cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int number) {
    *value = attribute == cudaDevAttrComputeCapabilityMajor ? 9 : attribute == cudaDevAttrMultiProcessorCount ? 132
           : attribute == cudaDevAttrComputeCapabilityMinor ? 0 : 1;
    return 0;
}

/* Streams and events. */
int cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return 0; }
int cudaStreamIsCapturing(Address stream, int *status) { *status = 0; return 0; }
GIVE(cudaStreamCreateWithPriority, Address, malloc(8))
GIVE(cudaEventCreateWithFlags, Address, malloc(8))
DONE(cudaStreamSynchronize) DONE(cudaStreamQuery) DONE(cudaStreamWaitEvent) DONE(cudaThreadExchangeStreamCaptureMode)
DONE(cudaEventDestroy) DONE(cudaEventRecord) DONE(cudaEventRecordWithFlags) DONE(cudaEventQuery)
DONE(cudaEventSynchronize)

/* Memory. */
int cudaMalloc(Address *memory, size_t size) { *memory = aligned_alloc(512, (size + 511) / 512 * 512); return 0; }
int cudaHostAlloc(Address *memory, size_t size, unsigned flags) { return cudaMalloc(memory, size); }
int cudaMemGetInfo(size_t *unused, size_t *total) { *unused = 79ull << 30; *total = 80ull << 30; return 0; }
int cudaMemcpyAsync(Address to, Address from, size_t size) { memcpy(to, from, size); return 0; }
int cudaMemsetAsync(Address to, int value, size_t size) { memset(to, value, size); return 0; }
int cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, Address pointer) {
    memset(attributes, 0, sizeof *attributes);
    attributes->type = cudaMemoryTypeHost;
    return 0;
}
DONE(cudaFree) DONE(cudaFreeHost)

/* The driver below, which torch and triton load by name. */
GIVE(cuDriverGetVersion, int, 13000)
GIVE(cuDeviceGetCount, int, 1)
GIVE(cuDeviceGet, int, 0)
GIVE(cuCtxGetCurrent, Address, NULL)
GIVE(cuDevicePrimaryCtxRetain, Address, NULL)
int cuDeviceGetAttribute(int *value) { *value = 1; return 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = *active = 0; return 0; }
int cuGetErrorString(int error, const char **text) { *text = "a pretended device"; return 0; }
DONE(cuInit) DONE(cuCtxSetCurrent)
MISSING(cuPointerGetAttribute) MISSING(cuFuncGetAttribute) MISSING(cuFuncSetAttribute) MISSING(cuFuncSetCacheConfig)
MISSING(cuLaunchKernel) MISSING(cuLaunchCooperativeKernel) MISSING(cuLinkAddData_v2) MISSING(cuLinkComplete)
MISSING(cuLinkCreate_v2) MISSING(cuModuleGetFunction) MISSING(cuModuleLoad) MISSING(cuModuleLoadData)
MISSING(cuModuleLoadDataEx) MISSING(cuModuleUnload) MISSING(cuOccupancyMaxActiveBlocksPerMultiprocessor)
MISSING(cuTensorMapEncodeTiled)
