// The fake CUDA runtime: memory and copies. Device memory is the host's, and a copy happens when it is asked for.
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "log.h"
#include "runtime.h"

static constexpr size_t kGrain = size_t{2} << 20;  // of cudaMalloc on GPUs, for large blocks

static size_t rounded(size_t bytes) { return (bytes + kGrain - 1) / kGrain * kGrain; }

extern "C" size_t streamrace_memory() {
  static const size_t bytes = [] {
    const char* told = getenv("STREAMRACE_REAL_BUILD_MEMORY");
    return told == nullptr ? size_t{80} << 30 : static_cast<size_t>(strtoull(told, nullptr, 10));
  }();
  return bytes;
}

// One device's memory: addresses without pages until they are touched, given out from the lowest that is free. torch's
// allocator prefers lower addresses among blocks of one size, so their order must be the same in each run.
struct Memory {
  char* begin = nullptr;
  std::map<char*, size_t> given, mapped;
  size_t used = 0;

  bool has(const char* at) const {
    auto found = mapped.upper_bound(const_cast<char*>(at));
    if (found != mapped.begin() && at < std::prev(found)->first + std::prev(found)->second) return true;
    return begin != nullptr && at >= begin && at < begin + 2 * streamrace_memory() - kGrain;
  }

  char* take(size_t bytes) {
    if (begin == nullptr) {
      void* mapped = mmap(nullptr, 2 * streamrace_memory(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (mapped == MAP_FAILED) return nullptr;
      begin = reinterpret_cast<char*>(rounded(reinterpret_cast<uintptr_t>(mapped)));
    }
    if (bytes > streamrace_memory() - used) return nullptr;
    char* at = begin;
    for (auto& [start, size] : given) {
      if (static_cast<size_t>(start - at) >= bytes) break;
      at = start + size;
    }
    if (static_cast<size_t>(at - begin) + bytes + kGrain > 2 * streamrace_memory()) return nullptr;
    given[at] = bytes;
    used += bytes;
    return at;
  }

  bool give_back(char* at) {
    auto found = given.find(at);
    if (found == given.end()) return false;
    madvise(at, found->second, MADV_DONTNEED);
    used -= found->second;
    given.erase(found);
    return true;
  }
};

static std::mutex lock;
static std::vector<Memory>& memories() {
  static std::vector<Memory> made(device_count());
  return made;
}
static std::map<const char*, size_t> pinned;

static bool is_pinned(const void* pointer) {
  auto* at = static_cast<const char*>(pointer);
  auto found = pinned.upper_bound(at);
  return found != pinned.begin() && at < std::prev(found)->first + std::prev(found)->second;
}

// The next copy of this many bytes from the device to the host delivers `answer`: an operator whose kernels counted
// something on a GPU (nonzero) gets the count from values.cpp.
static thread_local struct {
  long long value;
  bool set;
} answer;

static void copy(void* to, const void* from, size_t bytes) { memmove(to, from, bytes); }

extern "C" {

void streamrace_answer(long long value) { answer = {value, true}; }
void streamrace_no_answer() { answer.set = false; }

int cudaMalloc(void** at, size_t bytes) {
  std::lock_guard<std::mutex> held(lock);
  *at = memories()[current_device()].take(rounded(bytes));
  log_call("malloc %zu device %d%s", bytes, current_device(), *at == nullptr ? " fails" : "");
  return *at == nullptr ? failed(kOutOfMemory) : kSuccess;
}

int cudaFree(void* at) {
  if (at == nullptr) return kSuccess;
  std::lock_guard<std::mutex> held(lock);
  for (auto& memory : memories()) {
    if (!memory.give_back(static_cast<char*>(at))) continue;
    log_call("free");
    return kSuccess;
  }
  return failed(kInvalidValue);
}

size_t streamrace_in_use(int device) {
  std::lock_guard<std::mutex> held(lock);
  return memories()[device].used;
}

// Memory that the driver maps into addresses reserved before (expandable segments): 0 if there is so much of it.
int streamrace_take(int device, size_t bytes) {
  std::lock_guard<std::mutex> held(lock);
  auto& used = memories()[device].used;
  if (bytes > streamrace_memory() - used) return kOutOfMemory;
  used += bytes;
  return kSuccess;
}

void streamrace_give_back(int device, size_t bytes) {
  std::lock_guard<std::mutex> held(lock);
  memories()[device].used -= bytes;
}

void streamrace_map(int device, void* at, size_t bytes) {
  std::lock_guard<std::mutex> held(lock);
  memories()[device].mapped[static_cast<char*>(at)] = bytes;
}

void streamrace_unmap(void* at) {
  std::lock_guard<std::mutex> held(lock);
  for (auto& memory : memories()) {
    auto found = memory.mapped.find(static_cast<char*>(at));
    if (found == memory.mapped.end()) continue;
    madvise(at, found->second, MADV_DONTNEED);
    memory.mapped.erase(found);
  }
}

int cudaMemGetInfo(size_t* free, size_t* total) {
  std::lock_guard<std::mutex> held(lock);
  *total = streamrace_memory();
  *free = *total - memories()[current_device()].used;
  return kSuccess;
}

int cudaHostRegister(void* at, size_t bytes, unsigned) {
  std::lock_guard<std::mutex> held(lock);
  pinned[static_cast<char*>(at)] = bytes;
  return kSuccess;
}

int cudaHostUnregister(void* at) {
  std::lock_guard<std::mutex> held(lock);
  return pinned.erase(static_cast<char*>(at)) != 0 ? kSuccess : failed(kInvalidValue);
}

int cudaHostAlloc(void** at, size_t bytes, unsigned flags) {
  if (posix_memalign(at, 4096, bytes) != 0) return failed(kOutOfMemory);
  return cudaHostRegister(*at, bytes, flags);
}

int cudaFreeHost(void* at) {
  int error = cudaHostUnregister(at);
  if (error == kSuccess) free(at);
  return error;
}

struct PointerAttributes {  // of CUDA 13: also a reserve at its end
  int type, device;
  void *device_pointer, *host_pointer;
  long reserved[8];
};

static_assert(sizeof(PointerAttributes) == 88, "cudaPointerAttributes of CUDA 13");

int cudaPointerGetAttributes(PointerAttributes* of, const void* pointer) {
  enum { kUnregistered, kHost, kDevice };
  std::lock_guard<std::mutex> held(lock);
  *of = {kUnregistered, -1, nullptr, const_cast<void*>(pointer), {}};
  auto* at = static_cast<const char*>(pointer);
  if (is_pinned(at)) {
    of->type = kHost;
    of->device = current_device();
    of->device_pointer = of->host_pointer;
  }
  for (size_t device = 0; device < memories().size(); ++device) {
    if (!memories()[device].has(at)) continue;
    *of = {kDevice, static_cast<int>(device), const_cast<void*>(pointer), nullptr, {}};
  }
  return kSuccess;
}

int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int kind, void* stream) {
  static const char* const kKinds[] = {"host to host", "host to device", "device to host", "device to device", "copy"};
  const char* waits = "";
  if (kind == 2) {
    // CUDA Runtime API, "API synchronization behavior": a copy to pageable memory returns when it is done.
    std::lock_guard<std::mutex> held(lock);
    waits = is_pinned(to) ? "" : " pageable";
  }
  log_call("copy %s %zu stream %u%s", kKinds[kind < 0 || kind > 4 ? 4 : kind], bytes, number_of(stream), waits);
  work_on(stream);
  if (*waits != 0) wait_for(stream);
  copy(to, from, bytes);
  if (kind == 2 && answer.set && (bytes == 4 || bytes == 8)) {
    memcpy(to, &answer.value, bytes);  // the machine is little-endian, as CUDA's are
    answer.set = false;
  }
  return kSuccess;
}

int cudaMemcpy(void* to, const void* from, size_t bytes, int kind) { return cudaMemcpyAsync(to, from, bytes, kind, nullptr); }

int cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, void* stream) {
  return cudaMemcpyAsync(to, from, bytes, 3, stream);
}

int cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, int, void* stream) {
  log_call("copy rows %zu stream %u", width * height, number_of(stream));
  work_on(stream);
  for (size_t row = 0; row < height; ++row) {
    copy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
  }
  return kSuccess;
}

int cudaMemsetAsync(void* at, int value, size_t bytes, void* stream) {
  log_call("set %zu stream %u", bytes, number_of(stream));
  work_on(stream);
  memset(at, value, bytes);
  return kSuccess;
}

int cudaMemset(void* at, int value, size_t bytes) { return cudaMemsetAsync(at, value, bytes, nullptr); }

}  // extern "C"
