#include "allocator.h"

#include <c10/core/impl/alloc_cpu.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "gpu_trace.h"

namespace simgpu {

struct Segment {
  char* data;
  size_t size;
  char* used;  // memory behind it was never handed out
};

struct Chunk {
  char* data;
  size_t size;
  int64_t stream;
  Segment* segment;
  bool free = true;
  Chunk *before = nullptr, *behind = nullptr;  // within the segment
  std::vector<Ghost> ghosts;
};

namespace {

// Sizes as in CUDACachingAllocator.cpp.
constexpr size_t kRound = 512, kSmall = 1 << 20, kSmallSegment = 2 << 20, kMiddle = 10 << 20, kMiddleSegment = 20 << 20;

struct BySize {
  bool operator()(const Chunk* a, const Chunk* b) const {
    return a->size != b->size ? a->size < b->size : a->data < b->data;
  }
};
using Pool = std::set<Chunk*, BySize>;

struct Held {  // freed, but a stream that record_stream named may still be at work on it
  Chunk* chunk;
  std::vector<Instant> until;
};

struct State {
  std::map<std::pair<int64_t, bool>, Pool> pools;  // by stream, and whether small
  std::vector<Held> held;
  std::set<int64_t> untold;  // blocks freed, not yet told
  std::map<const char*, Block*> pinned;  // changed and read under pinned_mutex()
  std::map<size_t, std::vector<std::pair<Block*, std::vector<Instant>>>> pinned_free;
  int64_t blocks = 0;
  MemoryStats stats;
};
State& state() {
  static auto* one = new State;
  return *one;
}

// For questions from threads that may not wait for the device, as gloo's, for which an effect waits. Held for a look.
std::mutex& pinned_mutex() {
  static auto* one = new std::mutex;
  return *one;
}

char* reserve(size_t size) {
  void* data = std::aligned_alloc(4096, (size + 4095) / 4096 * 4096);
  TORCH_CHECK(data, "CUDA out of memory. Tried to allocate ", size, " bytes of the host's memory, which the simulated GPU uses.");
  return static_cast<char*>(data);
}

Pool& pool_of(const Chunk& chunk) { return state().pools[{chunk.stream, chunk.segment->size == kSmallSegment}]; }

void merge(Chunk*& into, Chunk* other) {  // neighbours; `other` is dropped
  if (other->before == into) {
    into->behind = other->behind;
    if (into->behind) into->behind->before = into;
  } else {
    into->before = other->before;
    if (into->before) into->before->behind = into;
    into->data = other->data;
  }
  into->size += other->size;
  into->ghosts.insert(into->ghosts.end(), other->ghosts.begin(), other->ghosts.end());
  delete other;
}

void give_back(Chunk* chunk) {
  chunk->free = true;
  for (Chunk* other : {chunk->before, chunk->behind}) {
    if (!other || !other->free) continue;
    pool_of(*other).erase(other);
    merge(chunk, other);
  }
  pool_of(*chunk).insert(chunk);
}

void look_at_held() {
  auto& held = state().held;
  auto passed = [](Held& one) {
    return std::all_of(one.until.begin(), one.until.end(), [](Instant& until) { return timeline().passed(until); });
  };
  for (size_t i = 0; i < held.size();) {
    if (passed(held[i])) {
      give_back(held[i].chunk);
      held.erase(held.begin() + static_cast<int64_t>(i));
    } else {
      ++i;
    }
  }
}

Chunk* find(size_t size, int64_t stream) {
  bool small = size <= kSmall;
  Pool& pool = state().pools[{stream, small}];
  Chunk wanted{nullptr, size, stream, nullptr};
  auto place = pool.lower_bound(&wanted);
  Chunk* chunk;
  if (place != pool.end()) {
    chunk = *place;
    pool.erase(place);
  } else {
    size_t round = 2 << 20;
    size_t whole = small ? kSmallSegment : size < kMiddle ? kMiddleSegment : (size + round - 1) / round * round;
    char* data = reserve(whole);
    chunk = new Chunk{data, whole, stream, new Segment{data, whole, data}};
    auto& stats = state().stats;
    stats.reserved += static_cast<int64_t>(whole);
    stats.reserved_peak = std::max(stats.reserved_peak, stats.reserved);
    ++stats.segments;
  }
  size_t rest = chunk->size - size;
  if (small ? rest >= kRound : rest > kSmall) {
    auto* tail = new Chunk{chunk->data + size, rest, stream, chunk->segment, true, chunk, chunk->behind};
    if (tail->behind) tail->behind->before = tail;
    chunk->behind = tail;
    chunk->size = size;
    for (auto& ghost : chunk->ghosts)
      if (ghost.hi > tail->data) tail->ghosts.push_back(ghost);
    pool_of(*tail).insert(tail);
  }
  chunk->free = false;
  return chunk;
}

Block* make_block(size_t nbytes, char* data, int64_t stream) {
  auto* block = new Block{++state().blocks, nbytes, data, stream};
  block->alias = c10::Storage(c10::Storage::use_byte_size_t(), nbytes, c10::DataPtr(data, c10::Device(c10::kCPU)), nullptr, false);
  trace().note(Kind::kAlloc, {block->number, static_cast<int64_t>(nbytes), stream, timeline().now});
  return block;
}

void free_block(void* context) {
  Lock lock;
  auto* block = static_cast<Block*>(context);
  tell(&Told::trace_gpu_memory_deallocation, reinterpret_cast<uintptr_t>(block->data));
  Chunk* chunk = block->chunk;
  state().untold.insert(block->number);
  chunk->ghosts.push_back({block->number, block->data, block->data + block->nbytes});
  for (int64_t older : block->ghosts) chunk->ghosts.push_back({older, block->data, block->data + block->nbytes});
  auto& stats = state().stats;
  stats.allocated -= static_cast<int64_t>(chunk->size);
  --stats.blocks;
  std::vector<Instant> until;
  for (int64_t stream : block->recorded) until.push_back(timeline().position(stream));
  if (until.empty()) give_back(chunk);
  else state().held.push_back({chunk, std::move(until)});
  delete block;
}

void free_pinned(void* context) {
  Lock lock;
  auto* block = static_cast<Block*>(context);
  state().untold.insert(block->number);
  std::vector<Instant> until;
  for (int64_t stream : block->recorded) until.push_back(timeline().position(stream));
  {
    std::lock_guard<std::mutex> look(pinned_mutex());
    state().pinned.erase(block->data);
  }
  size_t size = 64;
  while (size < block->nbytes) size *= 2;
  state().pinned_free[size].emplace_back(block, std::move(until));
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t nbytes) override {
    c10::Device here(c10::kCUDA, static_cast<c10::DeviceIndex>(device().index));
    if (nbytes == 0) return {nullptr, nullptr, &free_block, here};
    Lock lock;
    look_at_held();
    Chunk* chunk = find((nbytes + kRound - 1) / kRound * kRound, Device::current());
    char *end = chunk->data + chunk->size, *& used = chunk->segment->used;
    if (end > used) {
      std::memset(std::max(used, chunk->data), 0xFF, static_cast<size_t>(end - std::max(used, chunk->data)));
      used = end;
    }
    Block* block = make_block(nbytes, chunk->data, chunk->stream);
    block->chunk = chunk;
    for (auto& ghost : chunk->ghosts)
      if (ghost.lo < end && state().untold.count(ghost.block)) block->ghosts.push_back(ghost.block);
    chunk->ghosts.clear();
    auto& stats = state().stats;
    stats.allocated += static_cast<int64_t>(chunk->size);
    stats.allocated_peak = std::max(stats.allocated_peak, stats.allocated);
    ++stats.blocks, ++stats.allocations;
    tell(&Told::trace_gpu_memory_allocation, reinterpret_cast<uintptr_t>(block->data));
    return {block->data, block, &free_block, here};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false, "simgpu: memory of the device is copied by a launch, not by its allocator");
  }
};

// As at::CachingHostAllocator: sizes are powers of two, and a block is handed out again once the streams that
// copies used it on have passed.
struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t nbytes) override {
    if (nbytes == 0) return {nullptr, nullptr, &free_pinned, c10::kCPU};
    watch_pinned_memory();
    Lock lock;
    size_t size = 64;
    while (size < nbytes) size *= 2;
    Block* old = nullptr;
    auto& free = state().pinned_free[size];
    for (auto place = free.begin(); place != free.end(); ++place) {
      if (!std::all_of(place->second.begin(), place->second.end(), [](Instant& until) { return timeline().passed(until); })) continue;
      old = place->first;
      free.erase(place);
      break;
    }
    char* data = old ? old->data : reserve(size);
    if (old) timeline().catch_up();
    else std::memset(data, 0xFF, size);
    Block* block = make_block(nbytes, data, kHost);
    if (old) {
      block->ghosts.push_back(old->number);
      delete old;
    }
    std::lock_guard<std::mutex> look(pinned_mutex());
    state().pinned[data] = block;
    return {data, block, &free_pinned, c10::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }
};

}  // namespace

MemoryStats& memory_stats() { return state().stats; }

Block* block_of(const c10::StorageImpl* storage) {
  const auto& data = storage->data_ptr();
  auto deleter = data.get_deleter();
  return deleter == &free_block || deleter == &free_pinned ? static_cast<Block*>(data.get_context()) : nullptr;
}

Block* pinned_block_of(const void* address) {
  std::lock_guard<std::mutex> look(pinned_mutex());
  auto& pinned = state().pinned;
  auto* at = static_cast<const char*>(address);
  auto behind = pinned.upper_bound(at);
  if (behind == pinned.begin()) return nullptr;
  Block* block = std::prev(behind)->second;
  return at < block->data + block->nbytes ? block : nullptr;
}

void add_access(const at::Tensor& tensor, Block& block, std::vector<Access>& accesses) {
  if (!block.ghosts.empty()) {
    for (int64_t number : block.ghosts)
      if (state().untold.erase(number)) trace().note(Kind::kFree, {number, timeline().now});
    block.ghosts.clear();
  }
  if (!trace().on || tensor.numel() == 0) return;
  auto item = static_cast<int64_t>(tensor.itemsize());
  auto sizes = tensor.sizes(), strides = tensor.strides();
  int64_t lo = tensor.storage_offset() * item, layout = 0;
  if (tensor.is_contiguous()) {
    accesses.push_back({block.number, lo, lo + tensor.numel() * item, 0});
    return;
  }
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride, size
  for (size_t i = 0; i < sizes.size(); ++i)
    if (sizes[i] > 1 && strides[i] != 0) dims.emplace_back(strides[i], sizes[i]);
  std::sort(dims.begin(), dims.end());
  int64_t span = item, dense = 1;
  bool holes = false;
  for (auto& [stride, size] : dims) {
    span += (size - 1) * stride * item;
    holes |= stride > dense;
    dense = std::max(dense, stride * (size - 1) + dense);
  }
  if (holes) {
    for (auto& [stride, size] : dims) stride = std::exchange(size, stride * item);  // now size, stride in bytes
    layout = trace().layout_id(item, dims);
  }
  accesses.push_back({block.number, lo, lo + span, layout});
}

at::Tensor alias(const at::Tensor& tensor, Block& block) {
  auto keys = c10::DispatchKeySet(c10::DispatchKey::CPU);
  auto made = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(block.alias), keys, tensor.dtype());
  auto* impl = made.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  if (tensor.is_conj()) impl->_set_conj(true);
  if (tensor.is_neg()) impl->_set_neg(true);
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return made;
}

void record_stream(Block& block, int64_t stream) {
  auto& recorded = block.recorded;
  if (stream == block.stream || std::find(recorded.begin(), recorded.end(), stream) != recorded.end()) return;
  recorded.push_back(stream);
  trace().note(Kind::kRecordStream, {block.number, stream});
}

void resize_storage(c10::StorageImpl* storage, size_t nbytes, int64_t site) {
  size_t held = storage->nbytes();
  if (nbytes == held) return;
  auto fresh = device_allocator()->allocate(nbytes);
  if (size_t common = std::min(held, nbytes)) {
    static const int64_t kernel = name_id("cudaMemcpyAsync DtoD");
    auto *from = block_of(storage), *to = static_cast<Block*>(fresh.get_context());
    auto bytes = [common](Block& block) {
      auto whole = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(block.alias), c10::DispatchKeySet(c10::DispatchKey::CPU), caffe2::TypeMeta::Make<uint8_t>());
      whole.unsafeGetTensorImpl()->set_sizes_contiguous({static_cast<int64_t>(common)});
      return whole;
    };
    Accesses accesses;
    add_access(bytes(*from), *from, accesses.reads);
    add_access(bytes(*to), *to, accesses.writes);
    device().launch(Device::current(), kernel, accesses, device().costs.launch_ns,
                    [to = to->data, from = from->data, common] { std::memcpy(to, from, common); }, site);
  }
  storage->set_data_ptr_noswap(std::move(fresh));
  storage->set_nbytes(nbytes);
}

// Gives free segments back. Work that is still pending may use them: their memory goes once all of it is done.
// (cudaFree waits for the device; as nothing in CUDA promises that, it is no order here.)
void empty_cache() {
  for (auto& [key, pool] : state().pools) {
    for (auto place = pool.begin(); place != pool.end();) {
      Chunk* chunk = *place;
      if (chunk->before || chunk->behind) {
        ++place;
        continue;
      }
      place = pool.erase(place);
      state().stats.reserved -= static_cast<int64_t>(chunk->segment->size);
      --state().stats.segments;
      Instant last;
      for (int64_t stream = 0; stream < timeline().streams(); ++stream) last.join(timeline().position(stream));
      timeline().shadow(last, [segment = chunk->segment] {
        std::free(segment->data);
        delete segment;
      });
      delete chunk;
    }
  }
}

c10::Allocator* device_allocator() {
  static auto* one = new DeviceAllocator;
  return one;
}

c10::Allocator* pinned_allocator() {
  static auto* one = new PinnedAllocator;
  return one;
}

REGISTER_ALLOCATOR(c10::kCUDA, device_allocator())

}  // namespace simgpu
