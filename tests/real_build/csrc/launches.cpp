// The fake CUDA runtime: kernels, which have names and do nothing.
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "log.h"
#include "runtime.h"

namespace {

std::mutex lock;

std::unordered_map<const void*, const char*>& names() {
  static std::unordered_map<const void*, const char*> made;
  return made;
}

// Kernels are launched in two calls, <<<...>>>: the first pushes the configuration, which the second takes.
thread_local struct {
  Dim3 grid, block;
  size_t shared;
  void* stream;
} configuration;

int launch(const void* kernel, void* stream, void** arguments) {
  std::lock_guard<std::mutex> held(lock);
  auto found = names().find(kernel);
  const char* name = found == names().end() ? "?" : found->second;
  log_call("launch stream %u %.200s", number_of(stream), name);
  bool sleeps = strstr(name, "11spin_kernelEl") != nullptr;  // torch.cuda._sleep, whose cycles last a nanosecond here
  work_on(stream, sleeps ? *static_cast<int64_t*>(arguments[0]) : 0);
  return kSuccess;
}

// cudaLaunchConfig_t.
struct Configuration {
  Dim3 grid, block;
  size_t shared;
  void *stream, *attributes;
  unsigned count;
};

// The beginning of cudaFuncAttributes of CUDA 13.
struct FunctionAttributes {
  size_t shared, constant, local;
  int threads_per_block, registers, ptx_version, binary_version;
  int others[26];
};
static_assert(sizeof(FunctionAttributes) == 144, "cudaFuncAttributes of CUDA 13");

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void*) {
  static void* handle[8];
  return handle;
}

void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }

void __cudaRegisterFunction(void**, const char* function, char*, const char* name, int, void*, void*, void*, void*, int*) {
  std::lock_guard<std::mutex> held(lock);
  names()[function] = name;
}

void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}

unsigned __cudaPushCallConfiguration(Dim3 grid, Dim3 block, size_t shared, void* stream) {
  configuration = {grid, block, shared, stream};
  return 0;
}

int __cudaPopCallConfiguration(Dim3* grid, Dim3* block, size_t* shared, void* stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  *static_cast<void**>(stream) = configuration.stream;
  return kSuccess;
}

int __cudaGetKernel(void** kernel, const void* function) {
  *kernel = const_cast<void*>(function);
  return kSuccess;
}

int cudaLaunchKernel(const void* kernel, Dim3, Dim3, void** arguments, size_t, void* stream) { return launch(kernel, stream, arguments); }
int __cudaLaunchKernel(void* kernel, Dim3, Dim3, void** arguments, size_t, void* stream) { return launch(kernel, stream, arguments); }
int cudaLaunchCooperativeKernel(const void* kernel, Dim3, Dim3, void** arguments, size_t, void* stream) { return launch(kernel, stream, arguments); }
int cudaLaunchKernelExC(const Configuration* of, const void* kernel, void** arguments) { return launch(kernel, of->stream, arguments); }

int cudaFuncGetAttributes(FunctionAttributes* of, const void*) {
  memset(of, 0, sizeof *of);
  of->threads_per_block = 1024;
  of->registers = 32;
  of->ptx_version = of->binary_version = 80;
  return kSuccess;
}

int cudaFuncSetAttribute(const void*, int, int) { return kSuccess; }

int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int threads, size_t, unsigned) {
  *blocks = threads > 0 ? 2048 / threads : 1;
  return kSuccess;
}

int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* kernel, int threads, size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, kernel, threads, shared, 0);
}

int cudaGetSymbolAddress(void** at, const void* symbol) {
  *at = const_cast<void*>(symbol);
  return kSuccess;
}

int cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, int) { return kSuccess; }

}  // extern "C"
