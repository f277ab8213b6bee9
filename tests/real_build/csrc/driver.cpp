// The fake CUDA driver: a context for each device that the runtime has used, and memory that is mapped into addresses
// reserved before, of which torch makes expandable segments. Stubs are all that is not here.
#include <dlfcn.h>
#include <sys/mman.h>

#include <cstddef>
#include <map>
#include <mutex>
#include <utility>

// Both libraries are loaded with torch; the driver does not link with the runtime, as CUDA's does not.
static bool used(int device) {
  static auto ask = reinterpret_cast<int (*)(int)>(dlsym(RTLD_DEFAULT, "streamrace_used"));
  return ask == nullptr || ask(device) != 0;
}

template <typename Function>
static Function* runtime(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

// The beginning of CUmemAllocationProp.
struct MemoryProperties {
  int type, handle_types, location_type, device;
};

// Memory of a device by its handle: which device has it, and how many bytes.
static std::mutex lock;
static std::map<unsigned long long, std::pair<int, size_t>> memory;

extern "C" {

int cuMemAddressReserve(void** at, size_t bytes, size_t, void*, unsigned long long) {
  *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return *at == MAP_FAILED ? 2 : 0;
}

int cuMemAddressFree(void* at, size_t bytes) { return munmap(at, bytes); }

int cuMemCreate(unsigned long long* handle, size_t bytes, const MemoryProperties* of, unsigned long long) {
  static auto take = runtime<int(int, size_t)>("streamrace_take");
  static unsigned long long made = 0;
  if (take(of->device, bytes) != 0) return 2;  // CUDA_ERROR_OUT_OF_MEMORY
  std::lock_guard<std::mutex> held(lock);
  memory[*handle = ++made] = {of->device, bytes};
  return 0;
}

int cuMemRelease(unsigned long long handle) {
  static auto give_back = runtime<void(int, size_t)>("streamrace_give_back");
  std::lock_guard<std::mutex> held(lock);
  auto found = memory.find(handle);
  if (found == memory.end()) return 1;  // CUDA_ERROR_INVALID_VALUE
  give_back(found->second.first, found->second.second);
  memory.erase(found);
  return 0;
}

int cuMemMap(void* at, size_t bytes, size_t, unsigned long long handle, unsigned long long) {
  static auto map = runtime<void(int, void*, size_t)>("streamrace_map");
  std::lock_guard<std::mutex> held(lock);
  auto found = memory.find(handle);
  if (found == memory.end()) return 1;
  map(found->second.first, at, bytes);
  return 0;
}

int cuMemUnmap(void* at, size_t) {
  static auto unmap = runtime<void(void*)>("streamrace_unmap");
  unmap(at);
  return 0;
}

int cuMemSetAccess(void*, size_t, const void*, size_t) { return 0; }

int cuInit(unsigned) { return 0; }

int cuCtxGetCurrent(void** context) {
  static char some;
  *context = &some;
  return 0;
}

int cuCtxSetCurrent(void*) { return 0; }

int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}

int cuDeviceGetAttribute(int* value, int, int) {
  *value = 0;  // what torch asks for is not supported: copies of other machines, memory that is cast to several devices
  return 0;
}

int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  *flags = 0;
  *active = used(device);
  return 0;
}

}  // extern "C"
