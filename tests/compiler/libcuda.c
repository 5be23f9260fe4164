// A driver without a GPU, compiled against CUDA's own header: says what it was called with. What a function takes, and where the
// fields of a structure lie, is the header's word.
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAY(...) (printf(__VA_ARGS__), printf("\n"), fflush(stdout))
#define OK return CUDA_SUCCESS

static size_t nodes;
static CUgraphNode last[1];
static CUcontext contexts[64];
static int depth;

CUresult cuInit(unsigned flags) { OK; }
CUresult cuGetErrorString(CUresult code, const char **text) { *text = "text"; OK; }
CUresult cuGetErrorName(CUresult code, const char **text) { *text = "NAME"; OK; }
CUresult cuDeviceGetCount(int *n) { *n = 2; OK; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { *device = ordinal; OK; }
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute number, CUdevice device) { *value = 1000 * number + device; OK; }
#undef cuDeviceGetUuid
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) { memset(uuid->bytes, 0xA0 + device, 16); OK; }
CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) { SAY("flags %d %u", device, flags); OK; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) { *context = (CUcontext)(0xC0L + device); OK; }
CUresult cuCtxGetCurrent(CUcontext *context) { *context = depth ? contexts[depth - 1] : NULL; OK; }
CUresult cuCtxPushCurrent(CUcontext context) { contexts[depth++] = context; OK; }
CUresult cuCtxPopCurrent(CUcontext *context) { *context = contexts[--depth]; OK; }
CUresult cuModuleLoadData(CUmodule *module, const void *image) { SAY("load %s", (const char *)image); *module = (CUmodule)7; OK; }
CUresult cuModuleUnload(CUmodule module) { OK; }
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) { *function = (CUfunction)strdup(name); OK; }
CUresult cuFuncLoad(CUfunction function) { OK; }
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  SAY("attribute %s %s %d", (char *)function,
      attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ? "shared"
      : attribute == CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED ? "cluster" : "other", value);
  OK;
}
CUresult cuMemAlloc(CUdeviceptr *address, size_t size) { *address = (CUdeviceptr)aligned_alloc(256, (size + 255) / 256 * 256); OK; }
CUresult cuMemFree(CUdeviceptr address) { free((void *)address); OK; }
CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props) {
  SAY("pool %d %d %d %d %zu", props->allocType == CU_MEM_ALLOCATION_TYPE_PINNED, props->handleTypes,
      props->location.type == CU_MEM_LOCATION_TYPE_DEVICE, props->location.id, props->maxSize + props->usage);
  *pool = (CUmemoryPool)9;
  OK;
}
CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
  SAY("keeps %d %d", attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, *(cuuint64_t *)value == ~(cuuint64_t)0);
  OK;
}
CUresult cuMemPoolDestroy(CUmemoryPool pool) { OK; }
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream) {
  SAY("from pool %zu %ld %ld", size, (long)pool, (long)stream);
  return cuMemAlloc(address, size);
}
CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) { return cuMemFree(address); }
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t size, CUstream stream) { memcpy((void *)to, from, size); OK; }
CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t size, CUstream stream) { memcpy(to, (void *)from, size); OK; }
CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) { memcpy((void *)to, (void *)from, size); OK; }
CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext there, CUdeviceptr from, CUcontext here, size_t size, CUstream stream) {
  SAY("peer %lx %lx %zu", (long)there, (long)here, size);
  memcpy((void *)to, (void *)from, size);
  OK;
}
CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t size, CUstream stream) {
  SAY("zero %u %zu", value, size);
  memset((void *)to, value, size);
  OK;
}
CUresult cuStreamCreate(CUstream *stream, unsigned flags) { SAY("stream %d", flags == CU_STREAM_NON_BLOCKING); *stream = (CUstream)0x51; OK; }
CUresult cuStreamDestroy(CUstream stream) { OK; }
CUresult cuStreamSynchronize(CUstream stream) { OK; }
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) { *status = CU_STREAM_CAPTURE_STATUS_NONE; OK; }
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) { SAY("wait %ld %lx %u", (long)stream, (long)event, flags); OK; }
CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode) {
  SAY("capture %lx %d", (long)stream, mode == CU_STREAM_CAPTURE_MODE_RELAXED);
  OK;
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) { *graph = (CUgraph)0x61; OK; }
CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *number, CUgraph *graph,
                                const CUgraphNode **found, const CUgraphEdgeData **edges, size_t *count) {
  *status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  last[0] = (CUgraphNode)(0x100 + nodes);
  *found = last;
  *edges = NULL;
  *count = 1;
  OK;
}
CUresult cuEventCreate(CUevent *event, unsigned flags) { *event = (CUevent)(0xE0L + flags); OK; }
CUresult cuEventDestroy(CUevent event) { OK; }
CUresult cuEventRecord(CUevent event, CUstream stream) { OK; }
CUresult cuEventSynchronize(CUevent event) { OK; }
CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) { *milliseconds = 2.5f; OK; }
#undef cuEventElapsedTime
CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) { *milliseconds = 2.5f; OK; }
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra) {
  nodes++;
  printf("launch %s grid %u %u %u block %u %u %u shared %u stream %lx first %llx", (char *)function, config->gridDimX,
         config->gridDimY, config->gridDimZ, config->blockDimX, config->blockDimY, config->blockDimZ, config->sharedMemBytes,
         (long)config->hStream, *(unsigned long long *)arguments[0] & 0xff);
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute *one = &config->attrs[i];
    if (one->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
      printf(" cluster %u %u %u", one->value.clusterDim.x, one->value.clusterDim.y, one->value.clusterDim.z);
    else if (one->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
      printf(" early %d", one->value.programmaticStreamSerializationAllowed);
  }
  SAY("%s", extra == NULL ? "" : " extra");
  OK;
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec *instance, CUgraph graph, unsigned long long flags) {
  SAY("instantiate %lx %llu", (long)graph, flags);
  *instance = (CUgraphExec)0x71;
  OK;
}
CUresult cuGraphExecKernelNodeSetParams(CUgraphExec instance, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params) {
  SAY("update %lx %lx %s grid %u %u %u block %u %u %u shared %u nothing else %d", (long)instance, (long)node,
      (char *)params->func, params->gridDimX, params->gridDimY, params->gridDimZ, params->blockDimX, params->blockDimY,
      params->blockDimZ, params->sharedMemBytes, params->extra == NULL && params->kern == NULL && params->ctx == NULL);
  OK;
}
CUresult cuGraphLaunch(CUgraphExec instance, CUstream stream) { SAY("graph %lx %ld", (long)instance, (long)stream); OK; }
CUresult cuGraphExecDestroy(CUgraphExec instance) { OK; }
CUresult cuGraphDestroy(CUgraph graph) { OK; }
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  SAY("map %d type %d rank %u at %lx sizes %lu %lu strides %lu box %u %u steps %u %u plain %d swizzle %d promotion %d zeros %d",
      (int)((size_t)map % 64), type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rank, (long)address & 0xff, sizes[0], sizes[1],
      strides[0], box[0], box[1], steps[0], steps[1], interleave == CU_TENSOR_MAP_INTERLEAVE_NONE,
      swizzle == CU_TENSOR_MAP_SWIZZLE_64B, promotion == CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  memset(map, 0xAB, sizeof *map);
  OK;
}
