#include "allocator.h"

#include "probes.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "callsite.h"
#include "capture.h"
#include "dry.h"
#include "gpu_trace.h"
#include "ranges.h"
#include "recorder.h"
#include "unwritten.h"

#include <optional>
#include <tuple>
#include <unordered_map>

namespace simgpu {

void (*out_of_memory)(int64_t, int64_t, int64_t, int64_t) = nullptr;

struct Memory;
struct Segment {
  Memory* memory;
  int64_t number;  // a later chunk has higher addresses on the device
  char* data;
  size_t size;
  char* used;  // memory from here on was never handed out
  bool small;
  bool expandable = false;  // a range of addresses, whose pages have memory where a chunk is mapped: see expandable.h
  Chunk* first = nullptr;
  int64_t pool = 0;        // a pool of CUDA graphs; 0: the common one
  Block* whole = nullptr;  // of such a pool: in the trace its memory is one block, as a replay has it by address
};

struct Chunk {
  char* data;
  size_t size;
  int64_t stream;
  Segment* segment;
  bool free = true, mapped = true;
  Chunk *before = nullptr, *behind = nullptr;  // within the segment
  Block* block = nullptr;                      // its owner
};

namespace {

// Sizes as in CUDACachingAllocator.cpp.
constexpr size_t kRound = 512, kSmall = 1 << 20, kSmallSegment = 2 << 20, kMiddle = 10 << 20, kMiddleSegment = 20 << 20;

struct BySize {
  bool operator()(const Chunk* a, const Chunk* b) const {
    if (a->size != b->size) return a->size < b->size;
    if (!a->segment || !b->segment) return !a->segment && b->segment;  // a search key sorts before its equals
    return a->segment != b->segment ? a->segment->number < b->segment->number : a->data < b->data;
  }
};
using Pool = std::set<Chunk*, BySize>;

bool is_small(const Chunk& chunk) { return chunk.segment->small; }

struct ByAddress {
  bool operator()(const Chunk* a, const Chunk* b) const {
    return a->segment != b->segment ? a->segment->number < b->segment->number : a->data < b->data;
  }
};

struct Held {  // freed, but a stream that record_stream named may still use it
  Chunk* chunk;
  std::vector<Instant> until;
};

}  // namespace

// The memory of one device.
struct Memory {
  std::map<std::tuple<int64_t, int64_t, bool>, Pool> pools;  // by pool, by stream, and whether small
  std::map<std::pair<int64_t, bool>, std::set<Chunk*, ByAddress>> unmapped;  // by stream, and whether small
  std::vector<Held> held;
  int64_t total = INT64_MAX, allowed = INT64_MAX;
  c10::CachingDeviceAllocator::DeviceStats stats;
};

namespace {

struct State {
  std::map<int, Memory> memories;  // by device
  int64_t total = INT64_MAX, allowed = INT64_MAX;  // of each
  std::vector<Chunk*> captured;  // held until the capture ends
  std::map<const char*, Segment*> segments;
  std::map<int64_t, int64_t> graphs;                // by pool: the graphs that use it
  std::unordered_map<int64_t, Block*> live;         // by number, once `followed`
  bool followed = false;
  bool expandable = false;  // segments are, from now on
  bool overdrawn = false;  // what does not fit is counted, and allocated none the less
  int64_t parts = 0;
  int64_t blocks = 0, segments_made = 0;
};
State& state() {
  static auto* one = new State;
  return *one;
}

Memory& memory_of(int index) {  // a process with one device has one memory, whatever the device is called
  auto [place, fresh] = state().memories.try_emplace(device().several() ? index : 0);
  if (fresh) place->second.total = state().total, place->second.allowed = state().allowed;
  return place->second;
}
auto& stats_of(const Chunk& chunk) { return chunk.segment->memory->stats; }

void count(c10::CachingAllocator::StatArray& stat, const Chunk& chunk, size_t by, bool less = false) {
  using c10::CachingAllocator::StatType;
  for (auto type : {StatType::AGGREGATE, is_small(chunk) ? StatType::SMALL_POOL : StatType::LARGE_POOL}) {
    auto& one = stat[static_cast<size_t>(type)];
    less ? one.decrease(by) : one.increase(by);
  }
}

int64_t sum(const c10::CachingAllocator::StatArray& stat) { return stat[0].current; }

Pool& pool_of(const Chunk& chunk) { return chunk.segment->memory->pools[{chunk.segment->pool, chunk.stream, is_small(chunk)}]; }

auto& unmapped_of(const Chunk& chunk) { return chunk.segment->memory->unmapped[{chunk.stream, chunk.segment->small}]; }

void merge(Chunk*& into, Chunk* other) {  // neighbours; `other` is removed
  if (other->before == into) {
    into->behind = other->behind;
    if (into->behind) into->behind->before = into;
  } else {
    into->before = other->before;
    if (into->before) into->before->behind = into;
    into->data = other->data;
    if (!into->before) into->segment->first = into;
  }
  into->size += other->size;
  delete other;
}

// Merges a free chunk, which is in no set, with neighbours of its kind.
void merge_with_neighbours(Chunk*& chunk) {
  for (Chunk* other : {chunk->before, chunk->behind}) {
    if (!other || !other->free || other->mapped != chunk->mapped) continue;
    if (other->mapped) pool_of(*other).erase(other);
    else unmapped_of(*other).erase(other);
    merge(chunk, other);
  }
}

void give_back(Chunk* chunk) {
  count(stats_of(*chunk).active, *chunk, 1, true);
  count(stats_of(*chunk).active_bytes, *chunk, chunk->size, true);
  chunk->free = true;
  merge_with_neighbours(chunk);
  pool_of(*chunk).insert(chunk);
}

void look_at_held(Memory& memory) {
  auto& held = memory.held;
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

// Forgets a block of the trace that has ended.
void forget_block(const Block& block) {
  probes().dropped(block.number);
  unwritten().dropped(block.number);
  dry().dropped(block.number);
  block_freed(block);
}

// The memory of a pool of CUDA graphs no longer exists.
void drop_whole(Segment& segment) {
  record_free(*segment.whole);
  forget_block(*segment.whole);
  delete std::exchange(segment.whole, nullptr);
}

#include "expandable.h"

// Gives free segments back. Pending work may use them: their memory is released once all of it is done.
// cudaFree waits for the device, so the host's time passes. CUDA does not promise this, so it is no order.
void empty_cache(Memory& memory) {
  auto freed = memory.stats.num_device_free;
  for (auto& [key, pool] : memory.pools) {
    if (auto used = state().graphs.find(std::get<0>(key)); used != state().graphs.end() && used->second > 0) continue;
    for (auto place = pool.begin(); place != pool.end();) {
      Chunk* chunk = *place;
      if (chunk->before || chunk->behind || chunk->segment->expandable) {
        ++place;
        continue;
      }
      place = pool.erase(place);
      count(memory.stats.reserved_bytes, *chunk, chunk->segment->size, true);
      count(memory.stats.segment, *chunk, 1, true);
      ++memory.stats.num_device_free;
      if (chunk->segment->whole) drop_whole(*chunk->segment);
      formers().take_away(reinterpret_cast<uintptr_t>(chunk->data), chunk->size);
      state().segments.erase(chunk->data);
      probes().given_back(chunk->data, chunk->data + chunk->size);
      Instant last;
      for (int64_t stream = 0; stream < timeline().streams(); ++stream) last.join(timeline().position(stream));
      timeline().shadow(last, [segment = chunk->segment] {
        if (dry().on) give_addresses_back(segment->data, segment->size);
        else std::free(segment->data);
        delete segment;
      });
      delete chunk;
    }
  }
  if (memory.stats.num_device_free > freed && !captures().any()) device().meet(-1);
  unmap(memory);
}

// format_size in CUDACachingAllocator.cpp.
std::string readable(int64_t nbytes) {
  if (nbytes <= 1024) return c10::str(nbytes, " bytes");
  const char* units[] = {" KiB", " MiB", " GiB"};
  int unit = 0;
  while (unit < 2 && nbytes > int64_t{1024} << 10 * (unit + 1)) ++unit;
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", static_cast<double>(nbytes) / static_cast<double>(int64_t{1024} << 10 * unit));
  return text + std::string(units[unit]);
}

// Gives cached memory back (CUDACachingAllocator's release_cached_blocks). No capture going on, the host first waits for
// the streams for which record_stream keeps memory. No program may rely on that, so it is no order.
void release_cached(Memory& memory) {
  if (captures().any()) {
    look_at_held(memory);
    return empty_cache(memory);
  }
  ++memory.stats.num_sync_all_streams;
  for (auto& held : std::exchange(memory.held, {})) {
    for (auto& until : held.until) timeline().synchronize(until);
    give_back(held.chunk);
  }
  empty_cache(memory);
}

void refuse_memory(Memory& memory, size_t whole) {
  auto reserved = sum(memory.stats.reserved_bytes), allocated = sum(memory.stats.allocated_bytes), free = std::max(memory.total - reserved, int64_t{0});
  if (out_of_memory) out_of_memory(device().used_index(), static_cast<int64_t>(whole), memory.total, free);
  TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", readable(static_cast<int64_t>(whole)),
                   ". GPU ", device().used_index(), " has a total capacity of ", readable(memory.total), " of which ", readable(free), " is free. ",
                   "Including non-PyTorch memory, this process has ", readable(reserved), " memory in use. ",
                   memory.allowed < memory.total ? readable(memory.allowed) + " allowed; " : "", "Of the allocated memory ", readable(allocated),
                   " is allocated by PyTorch, and ", readable(reserved - allocated), " is reserved by PyTorch but unallocated."
                   " (A simulated GPU: STREAMRACE_MEMORY=40GiB gives it another size.)");
}

Chunk* new_segment(Memory& memory, size_t whole, int64_t stream, bool small, int64_t pool, int64_t site) {
  char* data = dry().on ? addresses(whole) : memory_of_host(whole);
  auto* chunk = new Chunk{data, whole, stream, new Segment{&memory, ++state().segments_made, data, whole, data, small}};
  auto* segment = chunk->segment;
  segment->first = chunk;
  segment->pool = pool;
  state().segments[data] = segment;
  if (pool) {
    segment->whole = make_block(whole, data, stream, site);
    unwritten().made(segment->whole->number, data, static_cast<int64_t>(whole));
  }
  count(memory.stats.reserved_bytes, *chunk, whole);
  count(memory.stats.segment, *chunk, 1);
  ++memory.stats.num_device_alloc;
  return chunk;
}

// Reserves new memory of the device, `whole` bytes of which are asked for now. If there is none left, cached memory is
// given back.
Chunk* reserve(Memory& memory, size_t size, size_t whole, int64_t stream, bool small, int64_t pool, int64_t site) {
  TORCH_CHECK_WITH(OutOfMemoryError, whole < size_t{1} << 60, "CUDA out of memory. Tried to allocate more than 1EB memory.");
  bool expands = state().expandable && !pool;
  auto made = [&](bool anyway) -> Chunk* {
    bool fits = sum(memory.stats.reserved_bytes) <= (expands && memory.allowed == memory.total ? INT64_MAX : memory.allowed) - static_cast<int64_t>(whole);
    if (!fits && !anyway) return nullptr;
    return expands ? expand(memory, size, stream, small, anyway) : new_segment(memory, whole, stream, small, pool, site);
  };
  if (Chunk* chunk = made(false)) return chunk;
  ++memory.stats.num_alloc_retries;
  release_cached(memory);
  if (Chunk* chunk = made(false)) return chunk;
  ++memory.stats.num_ooms;
  if (!state().overdrawn) refuse_memory(memory, whole);
  return made(true);
}

Chunk* find(Memory& memory, size_t size, int64_t stream, int64_t site) {
  bool small = size <= kSmall;
  int64_t of = captures().pool_of(stream);
  Pool& pool = memory.pools[{of, stream, small}];
  Chunk wanted{nullptr, size, stream, nullptr};
  auto place = pool.lower_bound(&wanted);
  Chunk* chunk;
  if (state().expandable || !memory.unmapped.empty()) place = best_to_expand(pool, place);
  if (place != pool.end()) {
    chunk = *place;
    pool.erase(place);
  } else {
    size_t round = 2 << 20;
    size_t whole = small ? kSmallSegment : size < kMiddle ? kMiddleSegment : (size + round - 1) / round * round;
    chunk = reserve(memory, size, whole, stream, small, of, site);
  }
  size_t rest = chunk->size - size;
  if (small || state().expandable ? rest >= kRound : rest > kSmall) {
    Chunk* tail = split(*chunk, size);
    pool_of(*tail).insert(tail);
  }
  chunk->free = false;
  return chunk;
}

void free_block(void* context) {
  Lock lock;
  auto* block = static_cast<Block*>(context);
  tell(&Told::trace_gpu_memory_deallocation, reinterpret_cast<uintptr_t>(block->data));
  Chunk* chunk = block->chunk;
  chunk->block = nullptr;
  if (!chunk->segment->whole) {
    record_free(*block);
    forget_block(*block);
  }
  count(stats_of(*chunk).allocation, *chunk, 1, true);
  count(stats_of(*chunk).allocated_bytes, *chunk, chunk->size, true);
  count(stats_of(*chunk).requested_bytes, *chunk, block->nbytes, true);
  std::vector<Instant> until;
  // Of a captured stream the position is that of its eager work: no capture hands such memory out again.
  for (int64_t stream : block->recorded) until.push_back(timeline().position(stream));
  if (until.empty()) give_back(chunk);
  else if (chunk->segment->whole && captures().pool_of(chunk->stream) == chunk->segment->pool) state().captured.push_back(chunk);
  else chunk->segment->memory->held.push_back({chunk, std::move(until)});
  delete block;
}

Block* new_block(int64_t number, size_t nbytes, char* data, int64_t stream) {
  auto* block = new Block{number, nbytes, data, stream};
  block->alias = c10::Storage(c10::Storage::use_byte_size_t(), nbytes, c10::DataPtr(data, c10::Device(c10::kCPU)), nullptr, false);
  return block;
}

// An allocation in a pool of CUDA graphs is a part of the block that the trace has.
Block* make_part(size_t nbytes, const Chunk& chunk, int64_t site) {
  auto& segment = *chunk.segment;
  Block* block = new_block(segment.whole->number, nbytes, chunk.data, chunk.stream);
  block->shift = chunk.data - segment.data;
  block->part = ++state().parts;
  trace().note(WordKind::kPoolPart, {block->part, block->number, block->shift, block->shift + static_cast<int64_t>(nbytes), site});
  return block;
}

struct DeviceAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t nbytes) override {
    if (nbytes > 0 && (!device().bound() || device().several())) device().bind(device().chosen());
    c10::Device here(c10::kCUDA, static_cast<c10::DeviceIndex>(device().bound() ? device().used_index() : device().chosen()));
    if (nbytes == 0) return {nullptr, nullptr, &free_block, here};
    int64_t site = Allocating::site();
    Lock lock;
    auto& memory = memory_of(device().used_index());
    look_at_held(memory);
    Chunk* chunk = find(memory, (nbytes + kRound - 1) / kRound * kRound, Device::current(), site);
    char *end = chunk->data + chunk->size, *& used = chunk->segment->used;
    if (end > used && !dry().on) {
      std::memset(std::max(used, chunk->data), 0xFF, static_cast<size_t>(end - std::max(used, chunk->data)));
      used = end;
    }
    Block* block = chunk->segment->whole ? make_part(nbytes, *chunk, site) : make_block(nbytes, chunk->data, chunk->stream, site);
    block->chunk = chunk;
    chunk->block = block;
    if (!chunk->segment->whole) {
      unwritten().made(block->number, chunk->data, static_cast<int64_t>(nbytes));
      record_reuse(*block, site);
    }
    for (auto* stat : {&memory.stats.allocation, &memory.stats.active}) count(*stat, *chunk, 1);
    for (auto* stat : {&memory.stats.allocated_bytes, &memory.stats.active_bytes}) count(*stat, *chunk, chunk->size);
    count(memory.stats.requested_bytes, *chunk, nbytes);
    tell(&Told::trace_gpu_memory_allocation, reinterpret_cast<uintptr_t>(block->data));
    return {block->data, block, &free_block, here};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false, "streamrace: memory of the device is copied by a launch, not by its allocator");
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    Lock lock;
    for (auto& [index, memory] : state().memories) release_cached(memory);
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    Lock lock;
    if (data.get_deleter() == &free_block && data.get_context()) record_stream(*static_cast<Block*>(data.get_context()), device().number_of(stream));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex of) override {
    Lock lock;
    auto& memory = memory_of(of);
    auto all = memory.stats;
    all.max_split_size = -1;
    for (auto& [key, pool] : memory.pools)
      for (Chunk* chunk : pool)
        if ((chunk->before || chunk->behind) && !chunk->segment->expandable) {
          count(all.inactive_split, *chunk, 1);
          count(all.inactive_split_bytes, *chunk, chunk->size);
        }
    return all;
  }
  void resetAccumulatedStats(c10::DeviceIndex of) override { each(of, [](auto& stat) { stat.reset_accumulated(); }); }
  void resetPeakStats(c10::DeviceIndex of) override { each(of, [](auto& stat) { stat.reset_peak(); }); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex of) OVERRIDE_SINCE_10 { return memory_info(of); }

 private:
  template <typename Do>
  void each(c10::DeviceIndex of, Do work) {
    Lock lock;
    auto& all = memory_of(of).stats;
    for (auto* stats : {&all.allocation, &all.segment, &all.active, &all.allocated_bytes, &all.reserved_bytes, &all.active_bytes,
                        &all.requested_bytes})
      for (auto& stat : *stats) work(stat);
  }
};

}  // namespace

static Segment* segment_of(const char* data);

void size_memory(int index, int64_t total, int64_t allowed) {
  if (index < 0) state().total = total, state().allowed = allowed;
  else memory_of(index);
  for (auto& [of, memory] : state().memories)
    if (index < 0 || &memory == &memory_of(index)) memory.total = total, memory.allowed = allowed;
}

void overdraw_memory() { state().overdrawn = true; }

void expand_segments(bool expandable) { state().expandable = expandable; }

int device_of_memory(const void* data) {
  Segment* segment = device().several() ? segment_of(static_cast<const char*>(data)) : nullptr;
  for (auto& [index, memory] : state().memories)
    if (segment && segment->memory == &memory) return index;
  return device().index;
}

std::pair<size_t, size_t> memory_info(int index) {
  Lock lock;
  auto& memory = memory_of(index);
  auto left = memory.total - sum(memory.stats.reserved_bytes);  // negative if more is allowed than exists
  return {static_cast<size_t>(std::max(left, int64_t{0})), static_cast<size_t>(memory.total)};
}

int64_t& Allocating::here() {
  thread_local int64_t site = -1;
  return site;
}
int64_t Allocating::site() { return here() >= 0 ? here() : call_site(); }

char* memory_of_host(size_t size) {
  void* data = std::aligned_alloc(4096, (size + 4095) / 4096 * 4096);
  TORCH_CHECK_WITH(OutOfMemoryError, data, "streamrace: the host has no ", size, " bytes of memory left, which the simulated GPU uses");
  return static_cast<char*>(data);
}

Block* make_block(size_t nbytes, char* data, int64_t stream, int64_t site) {
  auto* block = new_block(++state().blocks, nbytes, data, stream);
  if (state().followed) state().live[block->number] = block;
  probes().made(block->number, data);
  dry().made(block->number, nbytes, stream == kHost);
  trace().note(WordKind::kAlloc, {block->number, static_cast<int64_t>(nbytes), stream, timeline().now, site});
  return block;
}

int64_t blocks_made() { return state().blocks; }

Block* block_of(const c10::StorageImpl* storage) { return block_of(storage->data_ptr()); }

Block* block_of(const c10::DataPtr& data) {
  auto deleter = data.get_deleter();
  return deleter == &free_block || deleter == &free_pinned ? static_cast<Block*>(data.get_context()) : nullptr;
}

// Offset of the tensor's storage in the block: not 0 if a part of pinned memory came through numpy.
static int64_t shift_of(const at::Tensor& tensor, const Block& block) {
  auto* data = static_cast<const char*>(tensor.storage().data());
  return data ? data - block.data : 0;
}

void add_access(const at::Tensor& tensor, const Block& block, std::vector<Access>& accesses) {
  if ((!trace().on && !dry().on && !captures().any()) || tensor.numel() == 0) return;
  accesses.push_back(range_of(tensor, block.number, block.shift + shift_of(tensor, block), trace().on || captures().any()));
}

at::Tensor alias(const at::Tensor& tensor, Block& block) {
  auto keys = c10::DispatchKeySet(c10::DispatchKey::CPU);
  auto made = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(block.alias), keys, tensor.dtype());
  auto* impl = made.unsafeGetTensorImpl();
  auto shift = shift_of(tensor, block), item = static_cast<int64_t>(tensor.itemsize());
  TORCH_CHECK(shift % item == 0, "streamrace: pinned memory that begins between two numbers of its type: copy it first");
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), shift / item + tensor.storage_offset());
  if (tensor.is_conj()) impl->_set_conj(true);
  if (tensor.is_neg()) impl->_set_neg(true);
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return made;
}

void record_stream(Block& block, int64_t stream) {
  auto& recorded = block.recorded;
  if (stream == block.stream || std::find(recorded.begin(), recorded.end(), stream) != recorded.end()) return;
  recorded.push_back(stream);
  trace().note(WordKind::kRecordStream, {block.number, stream});
}

void resize_storage(c10::StorageImpl* storage, size_t nbytes, int64_t site) {
  size_t held = storage->nbytes();
  if (nbytes == held) return;
  OnDevice on(storage->device().index());
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
    if (recorder().on) recorder().copy(trace().ops + 1, {bytes(*to), to}, {bytes(*from), from});
    auto& costs = device().costs;
    auto nominal = costs.kernel ? static_cast<int64_t>(costs.kernel(name_of(kernel), static_cast<int64_t>(2 * common), nullptr, 0, 0, nullptr)) : 2000;
    auto copied = [to = to->data, from = from->data, common] { std::memcpy(to, from, common); };
    bool real = dry().fits(static_cast<int64_t>(common)) && dry().known(accesses.reads);
    device().launch(Device::current(), kernel, accesses, nominal, dry().on ? Effect() : copied, site);
    if (dry().on && real) copied();
    dry().wrote(accesses.writes, real);
  }
  storage->set_data_ptr_noswap(std::move(fresh));
  storage->set_nbytes(nbytes);
}

Formers& formers() {
  static auto* one = new Formers;
  return *one;
}

void record_free(const Block& block) {
  trace().note(WordKind::kFree, {block.number, timeline().now});
  formers().let_go(block.number, reinterpret_cast<uintptr_t>(block.data), block.nbytes);
}

void record_reuse(const Block& block, int64_t site) {
  formers().hand_out(block.number, reinterpret_cast<uintptr_t>(block.data), block.nbytes, site);
}

void block_freed(const Block& block) {
  if (!state().followed) return;
  state().live.erase(block.number);
  captures().freed(block.number);
}

void follow_blocks() {
  if (std::exchange(state().followed, true)) return;
  for (auto& [data, segment] : state().segments)
    for (Chunk* chunk = segment->first; chunk; chunk = chunk->behind)
      if (chunk->block) state().live[chunk->block->number] = chunk->block;
  each_pinned_block([](Block& block) { state().live[block.number] = &block; });
}

static Segment* segment_of(const char* data) {
  auto behind = state().segments.upper_bound(data);
  if (behind == state().segments.begin()) return nullptr;
  Segment* segment = std::prev(behind)->second;
  return data < segment->data + segment->size ? segment : nullptr;
}

static Chunk* chunk_of(const Segment& segment, const char* data) {
  Chunk* chunk = segment.first;
  while (chunk && data >= chunk->data + chunk->size) chunk = chunk->behind;
  return chunk;
}

std::pair<const char*, int64_t> whereabouts(const Access& access) {
  auto found = state().live.find(access.block);
  if (found == state().live.end()) return {nullptr, -1};
  const char* data = found->second->data + access.lo;
  if (found->second->stream == kHost) return {data, -1};
  Segment* segment = segment_of(data);
  Chunk* chunk = segment && segment->whole ? chunk_of(*segment, data) : nullptr;
  return {data, chunk && chunk->block ? chunk->block->part : -1};
}

Block* block_at(const char* data) {
  Segment* segment = segment_of(data);
  if (!segment) return pinned_block_of(data);
  Chunk* chunk = chunk_of(*segment, data);
  Block* block = chunk ? chunk->block : nullptr;
  return block && data < block->data + block->nbytes ? block : nullptr;
}

std::optional<std::vector<Access>> owners_of(const char* data, int64_t nbytes) {
  std::vector<Access> made;
  auto add = [&](const Block& block) {
    const char *from = std::max<const char*>(data, block.data), *to = std::min<const char*>(data + nbytes, block.data + block.nbytes);
    if (from < to) made.push_back({block.number, block.shift + (from - block.data), block.shift + (to - block.data), 0});
  };
  Segment* segment = segment_of(data);
  if (!segment) {
    Block* block = pinned_block_of(data);
    if (block) add(*block);
    return is_pinned_memory(data) ? std::optional(made) : std::nullopt;
  }
  for (Chunk* chunk = chunk_of(*segment, data); chunk && chunk->data < data + nbytes; chunk = chunk->behind)
    if (chunk->block) add(*chunk->block);
  return made;
}

void use_pool(int64_t pool, int64_t by) {
  state().graphs[pool] += by;
}

void end_captured() {
  for (Chunk* chunk : std::exchange(state().captured, {})) give_back(chunk);
}

c10::DeviceAllocator* device_allocator() {
  static auto* one = new DeviceAllocator;
  return one;
}

REGISTER_ALLOCATOR(c10::kCUDA, device_allocator())

}  // namespace simgpu
