// The fake CUDA runtime: devices, their properties, errors. The properties are those of the simulated device
// (streamrace/device/cuda.py), so that torch decides alike on both.
#include <dlfcn.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "runtime.h"

#ifndef DRIVER_FILES
#define DRIVER_FILES "/proc/driver/nvidia", "/dev/nvidiactl", "/dev/nvhost-ctrl", "/dev/dxg"
#endif

// Where there is a GPU, a program that gets this library by mistake would compute nothing and not notice.
__attribute__((constructor)) static void refuse_beside_a_driver() {
  for (const char* file : {DRIVER_FILES}) {
    struct stat found;
    if (stat(file, &found) != 0) continue;
    fprintf(stderr, "streamrace: the fake CUDA libraries are for tests on machines without a GPU, and %s shows that this one has a driver\n", file);
    abort();
  }
}

static thread_local int chosen_device = 0;
static thread_local int last_error = kSuccess;
static bool used[64];

int failed(int error) {
  if (error != kNotReady) last_error = error;
  return error;
}

int device_count() {
  static const int count = [] {
    const char* told = getenv("STREAMRACE_REAL_BUILD_DEVICES");
    return told == nullptr ? 1 : atoi(told);
  }();
  return count;
}

int current_device() { return chosen_device; }

// cudaDeviceProp of CUDA 13 (driver_types.h): 77 fields, of which torch reads these.
struct Properties {
  char name[256];
  unsigned char uuid[16];
  char luid[8];
  unsigned luid_device_node_mask;
  size_t total_memory, shared_memory_per_block;
  int registers_per_block, warp_size;
  size_t pitch;
  int threads_per_block, threads_dim[3], grid_size[3];
  size_t constant_memory;
  int major, minor;
  size_t texture_alignment, texture_pitch_alignment;
  int multiprocessors, integrated, can_map_host_memory;
  int textures_and_surfaces[39];
  size_t surface_alignment;
  int concurrent_kernels, ecc, pci_bus, pci_device, pci_domain, tcc, engines, unified_addressing, memory_bus_width;
  int l2_cache, persisting_l2_cache, threads_per_multiprocessor, stream_priorities, global_l1, local_l1;
  size_t shared_memory_per_multiprocessor;
  int registers_per_multiprocessor, managed_memory, multi_gpu_board, multi_gpu_board_group, host_atomics;
  int pageable_access, concurrent_managed_access, compute_preemption, host_pointer_for_registered, cooperative_launch;
  size_t shared_memory_per_block_optin;
  int pageable_access_uses_host_tables, direct_managed_access, blocks_per_multiprocessor, access_policy_window;
  size_t reserved_shared_memory_per_block;
  int flags[20], reserved[56];
};
static_assert(sizeof(Properties) == 1008, "cudaDeviceProp of CUDA 13");
static_assert(offsetof(Properties, l2_cache) == 596, "cudaDeviceProp of CUDA 13");
static_assert(offsetof(Properties, shared_memory_per_block_optin) == 672, "cudaDeviceProp of CUDA 13");

extern "C" {

size_t streamrace_memory();
int streamrace_used(int device) { return used[device & 63]; }

int cudaGetDeviceCount(int* count) {
  *count = device_count();
  return kSuccess;
}

int cudaGetDevice(int* device) {
  *device = chosen_device;
  return kSuccess;
}

int cudaSetDevice(int device) {
  if (device < 0 || device >= device_count()) return failed(kInvalidDevice);
  chosen_device = device;
  used[device & 63] = true;
  return kSuccess;
}

int cudaDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}

int cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

int cudaGetDeviceProperties(Properties* of, int device) {
  if (device < 0 || device >= device_count()) return failed(kInvalidDevice);
  memset(of, 0, sizeof *of);
  strcpy(of->name, "Simulated GPU");
  of->uuid[0] = device + 1;
  of->total_memory = streamrace_memory();
  of->major = 8;
  of->multiprocessors = 108;
  of->warp_size = 32;
  of->threads_per_block = 1024;
  of->threads_per_multiprocessor = 2048;
  of->blocks_per_multiprocessor = 32;
  of->shared_memory_per_block = 49152;
  of->shared_memory_per_block_optin = 166912;
  of->shared_memory_per_multiprocessor = 167936;
  of->registers_per_block = of->registers_per_multiprocessor = 65536;
  of->l2_cache = 40 << 20;
  of->texture_alignment = 512;
  of->unified_addressing = of->stream_priorities = of->concurrent_kernels = 1;
  of->pci_bus = device;
  for (int at = 0; at < 3; ++at) {
    of->threads_dim[at] = at < 2 ? 1024 : 64;
    of->grid_size[at] = at == 0 ? 2147483647 : 65535;
  }
  return kSuccess;
}

// Attributes as cudaDeviceAttr numbers them; torch and the libraries in it ask for few.
int cudaDeviceGetAttribute(int* value, int attribute, int device) {
  if (device < 0 || device >= device_count()) return failed(kInvalidDevice);
  switch (attribute) {
    case 16: *value = 108; break;      // multiprocessors
    case 39: *value = 2048; break;     // threads per multiprocessor
    case 75: *value = 8; break;        // compute capability
    case 76: *value = 0; break;
    case 8: *value = 49152; break;     // shared memory per block
    case 81: *value = 167936; break;   // per multiprocessor
    case 97: *value = 166912; break;   // opt in
    case 82: *value = 65536; break;    // registers per multiprocessor
    case 10: *value = 32; break;       // warp
    case 1: case 2: *value = 1024; break;
    case 5: *value = 2147483647; break;
    case 106: *value = 32; break;      // blocks per multiprocessor
    default: *value = 0;
  }
  return kSuccess;
}

int cudaDeviceGetPCIBusId(char* text, int length, int device) {
  snprintf(text, length, "0000:%02x:00.0", device);
  return kSuccess;
}

int cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return kSuccess;
}

int cudaDeviceEnablePeerAccess(int, unsigned) { return kSuccess; }

int cudaGetLastError() {
  int error = last_error;
  last_error = kSuccess;
  return error;
}

int cudaPeekAtLastError() { return last_error; }

const char* cudaGetErrorName(int error) {
  switch (error) {
    case kSuccess: return "cudaSuccess";
    case kInvalidValue: return "cudaErrorInvalidValue";
    case kOutOfMemory: return "cudaErrorMemoryAllocation";
    case kInvalidDevice: return "cudaErrorInvalidDevice";
    case kInvalidHandle: return "cudaErrorInvalidResourceHandle";
    case kNotReady: return "cudaErrorNotReady";
    case 801: return "cudaErrorNotSupported";
    default: return "cudaErrorUnknown";
  }
}

const char* cudaGetErrorString(int error) {
  switch (error) {
    case kSuccess: return "no error";
    case kInvalidValue: return "invalid argument";
    case kOutOfMemory: return "out of memory";
    case kInvalidDevice: return "invalid device ordinal";
    case kInvalidHandle: return "invalid resource handle";
    case kNotReady: return "device not ready";
    case 801: return "operation not supported";
    default: return "unknown error";
  }
}

int cudaProfilerStart() { return kSuccess; }
int cudaProfilerStop() { return kSuccess; }

static int unsupported() { return 801; }

// torch asks for functions of the driver, and calls few of them: those of driver.cpp; all others are not supported.
int cudaGetDriverEntryPointByVersion(const char* name, void** found, unsigned, unsigned long long, int* result) {
  static void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  void* symbol = driver == nullptr ? nullptr : dlsym(driver, name);
  *found = symbol == nullptr ? reinterpret_cast<void*>(unsupported) : symbol;
  if (result != nullptr) *result = 0;
  return kSuccess;
}

}  // extern "C"
