// Pinned memory of the host, allocated like at::CachingHostAllocator: sizes are powers of two, and a block is handed out
// again once the streams whose copies used it have reached their position at its free. What is allocated in the capture of a
// CUDA graph is of the graph's pool (ATen/core/CachingHostAllocator.h). Also handles memory of the
// program that cudaHostRegister pinned (CUDA Runtime API, "Memory Management").
#include <c10/core/impl/alloc_cpu.h>

#include <algorithm>
#include <cstring>

#include "capture.h"
#include "dry.h"
#include "recorder.h"
#include "probes.h"

namespace simgpu {
namespace {

using PinnedKey = std::pair<int64_t, size_t>;  // the pool, and the size

struct PinnedHeld {  // freed, but streams may still use it
  PinnedKey key;
  char* data;
  std::vector<Instant> until;
  bool passed() {
    return std::all_of(until.begin(), until.end(), [](Instant& one) { return timeline().passed(one); });
  }
};

struct Pinned {
  std::map<const char*, Block*> used;
  std::vector<PinnedHeld> held;
  std::map<PinnedKey, std::vector<char*>> free;  // the last one is handed out first
};
Pinned& pinned() {
  static auto* one = new Pinned;
  return *one;
}

size_t rounded(size_t nbytes) {
  size_t size = 64;
  while (size < nbytes) size *= 2;
  return size;
}

void look_at_pinned() {
  std::vector<PinnedHeld> still;
  for (auto& one : pinned().held)
    if (one.passed()) pinned().free[one.key].push_back(one.data);
    else still.push_back(std::move(one));
  pinned().held = std::move(still);
}

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t nbytes) override {
    if (nbytes == 0) return {nullptr, nullptr, &free_pinned, c10::kCPU};
    watch_pinned_memory();
    int64_t site = Allocating::site();
    Lock lock;
    size_t size = rounded(nbytes);
    char* data = nullptr;
    int64_t pool = captures().pool_of(Device::current());
    look_at_pinned();
    auto& free = pinned().free[{pool, size}];
    if (!free.empty()) {
      data = free.back();
      free.pop_back();
      timeline().catch_up();  // its new owner may read it at once
    } else {
      bool hollow = dry().on && !dry().fits(static_cast<int64_t>(size));
      data = hollow ? addresses(size) : memory_of_host(size);
      if (!hollow) std::memset(data, 0xFF, size);
    }
    Block* block = make_block(nbytes, data, kHost, site);
    block->pool = pool;
    record_reuse(*block, site);
    recorder().pinned(*block);
    pinned().used[data] = block;
    return {data, block, &free_pinned, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }
};

}  // namespace

static void forget(Block* block) {
  record_free(*block);
  recorder().unpinned(block->number);
  probes().dropped(block->number);
  dry().dropped(block->number);
  pinned().used.erase(block->data);
  block_freed(*block);
  delete block;
}

void free_pinned(void* context) {
  Lock lock;
  auto* block = static_cast<Block*>(context);
  if (block->pool && block->captured) return;  // the graphs' copies use it: it is never handed out again
  PinnedHeld held{{block->pool, rounded(block->nbytes)}, block->data, {}};
  for (int64_t stream : block->recorded) held.until.push_back(timeline().position(stream));
  if (held.until.empty()) pinned().free[held.key].push_back(held.data);
  else pinned().held.push_back(std::move(held));
  forget(block);
}

Block* pinned_block_of(const void* address) {
  auto& used = pinned().used;
  auto* at = static_cast<const char*>(address);
  auto behind = used.upper_bound(at);
  if (behind == used.begin()) return nullptr;
  Block* block = std::prev(behind)->second;
  return at < block->data + block->nbytes ? block : nullptr;
}

Block* pinned_block_of(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.has_storage() ? pinned_block_of(tensor.storage().data()) : nullptr;
}

void each_pinned_block(const std::function<void(Block&)>& look) {
  for (auto& [data, block] : pinned().used) look(*block);
}

bool is_pinned_memory(const char* data) {
  if (pinned_block_of(data)) return true;
  auto has = [data](const PinnedKey& key, const char* begin) { return data >= begin && data < begin + key.second; };
  for (auto& one : pinned().held)
    if (has(one.key, one.data)) return true;
  for (auto& [key, all] : pinned().free)
    for (char* begin : all)
      if (has(key, begin)) return true;
  return false;
}

void record_event(const at::Tensor& host, Block& block, int64_t stream) {
  if (captures().of(stream)) {  // nothing runs yet: the program must keep memory from outside of the graph for the replays
    block.captured = true;
    return;
  }
  recorder().used(block, stream);
  if (block.registered) {  // no allocator keeps it until then: the program must not unregister it too early
    if (std::find(block.recorded.begin(), block.recorded.end(), stream) == block.recorded.end()) block.recorded.push_back(stream);
    return;
  }
  if (block_of(host.storage().unsafeGetStorageImpl()) == &block || host.data_ptr() == block.data) record_stream(block, stream);
}

c10::Allocator* pinned_allocator() {
  static auto* one = new PinnedAllocator;
  return one;
}

#pragma GCC visibility push(default)
extern "C" {

// Both return CUDA's error number, or 0.
int simgpu_host_register(char* data, int64_t nbytes) {
  if (!data || nbytes <= 0) return 1;  // cudaErrorInvalidValue
  watch_pinned_memory();
  int64_t site = Allocating::site();
  Lock lock;
  if (Block* last = pinned_block_of(data + nbytes - 1); last || pinned_block_of(data)) return 712;  // ...AlreadyRegistered
  auto behind = pinned().used.lower_bound(data);
  if (behind != pinned().used.end() && behind->first < data + nbytes) return 712;
  Block* block = make_block(static_cast<size_t>(nbytes), data, kHost, site);
  block->registered = true;
  record_reuse(*block, site);
  recorder().refuse("memory that cudaHostRegister pinned holds what the program had put there before, which a recording does not know");
  pinned().used[data] = block;
  return 0;
}

// The memory is the program's, which may free it now: so the streams' work on it is completed before. CUDA does not
// promise that it waits for them; so this is no order in the trace.
int simgpu_host_unregister(const char* data) {
  Lock lock;
  auto place = pinned().used.find(data);
  if (place == pinned().used.end() || !place->second->registered) return 713;  // cudaErrorHostMemoryNotRegistered
  Block* block = place->second;
  auto streams = block->recorded;
  for (int64_t stream : streams) timeline().synchronize(timeline().position(stream));
  forget(block);
  return 0;
}

}  // extern "C"
#pragma GCC visibility pop

}  // namespace simgpu
