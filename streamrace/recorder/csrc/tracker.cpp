#include "tracker.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "callsite.h"
#include "ranges.h"

namespace simgpu {

using schema::How;

constexpr int64_t kNobodyKnows = -1;  // when the GPU starts and ends work

Tracker& tracker() {
  static auto* one = new Tracker;
  return *one;
}

Running*& running() {
  static thread_local Running* innermost = nullptr;
  return innermost;
}

static thread_local bool is_quiet = false;
Quiet::Quiet() : before(std::exchange(is_quiet, true)) {}
Quiet::~Quiet() { is_quiet = before; }
bool follows() { return tracker().on && !is_quiet && python_alive && tracker().captures.load(std::memory_order_relaxed) == 0; }
void set_quiet(bool on) { is_quiet = on; }

void Tracker::begin() {
  formers = {}, busy_ = {0}, held.clear();
  several = false, gpu_ = -1, made_ = 0, reserved_ = 0;
  numbers.clear(), streams_.clear(), markers_.clear(), pending_.clear(), blocks_.clear(), pinned_.clear();
  began_ = std::chrono::steady_clock::now();
  stream_of(0);
}

int64_t Tracker::now() const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - began_).count();
}

int64_t Tracker::stream_of(uintptr_t handle) {
  auto known = streams_.find(handle);
  if (known != streams_.end()) return known->second;
  auto number = static_cast<int64_t>(streams_.size());
  if (number >= schema::kHost) ++number;  // that number stands for the host
  streams_[handle] = number;
  trace().note(WordKind::kStreamName, {number});
  return number;
}

uintptr_t Tracker::handle_of(c10::Stream stream) {
  static auto* handles = new std::unordered_map<int64_t, uintptr_t>;  // under Python's lock
  int expected = -1;
  if (!gpu_.compare_exchange_strong(expected, stream.device_index()) && expected != stream.device_index()) several = true;
  if (stream.id() == 0 || !python_alive) return static_cast<uintptr_t>(stream.id());
  int state = PyGILState_Ensure();
  auto known = handles->find(stream.id());
  if (known == handles->end())
    known = handles->emplace(stream.id(), static_cast<uintptr_t>(stream_handle(stream.id(), stream.device_index()))).first;
  uintptr_t handle = known->second;
  PyGILState_Release(state);
  return handle;
}

uintptr_t Tracker::current() {
  c10::impl::VirtualGuardImpl guard(c10::kCUDA);
  return handle_of(guard.getStream(guard.getDevice()));
}

// -- memory ------------------------------------------------------------------------------------------------

Tracked& Tracker::add(std::unordered_map<uintptr_t, Tracked>& blocks, uintptr_t data, size_t nbytes, int64_t stream) {
  auto& block = blocks[data];
  block = {++made_, data, nbytes, stream, {}, {}};
  return block;
}

void Tracker::made(uintptr_t data, int64_t stream, int64_t site, int64_t reserved) {
  if (blocks_.count(data)) freed(data);  // by a call that was not seen
  // A segment that is new begins with the block that it was needed for, and has no former owner, also if an earlier one was
  // at its addresses: before an allocation fails, the allocator gives back what it has cached, for which torch has no callback.
  if (reserved > reserved_) formers.take_away(data, reserved - std::exchange(reserved_, reserved));
  pending_[data] = {stream, site};
}

void Tracker::freed(uintptr_t data) {
  if (pending_.erase(data)) return;  // no tensor had it: only a kernel, on the stream that it was allocated for
  auto found = blocks_.find(data);
  if (found == blocks_.end()) return;
  auto& block = found->second;
  trace().note(WordKind::kFree, {block.number, now()});
  formers.let_go(block.number, block.data, block.nbytes);
  blocks_.erase(found);
}

Tracked* Tracker::block_of(const at::Tensor& tensor) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  auto data = reinterpret_cast<uintptr_t>(storage->data());
  if (!data) return nullptr;
  auto known = blocks_.find(data);
  auto pending = pending_.find(data);
  if (known != blocks_.end() && pending == pending_.end()) {
    known->second.nbytes = std::max(known->second.nbytes, storage->nbytes());
    return &known->second;
  }
  if (pending == pending_.end()) return &add(blocks_, data, storage->nbytes(), -1);  // older than the recording, or not torch's
  auto [stream, site] = pending->second;
  pending_.erase(pending);
  auto& block = add(blocks_, data, storage->nbytes(), stream);
  trace().note(WordKind::kAlloc, {block.number, static_cast<int64_t>(block.nbytes), stream, now(), site});
  formers.hand_out(block.number, data, block.nbytes, site);
  return &block;
}

Tracked* Tracker::pinned_block_of(const at::Tensor& tensor, bool ask) {
  auto data = reinterpret_cast<uintptr_t>(tensor.storage().unsafeGetStorageImpl()->data());
  if (!data) return nullptr;
  auto known = pinned_.find(data);
  if (known != pinned_.end()) {
    auto lives = known->second.storage->lock();
    if (lives && lives.get() == tensor.storage().unsafeGetStorageImpl()) return &known->second;
    trace().note(WordKind::kFree, {known->second.number, now()});
    pinned_.erase(known);
  }
  if (!ask) return nullptr;
  Quiet asking;
  if (!tensor.is_pinned()) return nullptr;
  auto& block = add(pinned_, data, tensor.storage().nbytes(), -1);
  block.storage = tensor.storage().getWeakStorageImpl();
  trace().note(WordKind::kAlloc, {block.number, static_cast<int64_t>(block.nbytes), -1, now(), 0});
  return &block;
}

void Tracker::touch(const at::Tensor& tensor, std::vector<Access>& accesses) {
  if (!tensor.defined() || !tensor.is_cuda() || tensor.layout() != at::kStrided || tensor.numel() == 0) return;
  if (Tracked* block = block_of(tensor)) accesses.push_back(range_of(tensor, block->number, 0, true));
}

void Tracker::used_by(Tracked& block, int64_t stream) {
  if (stream == block.stream || std::find(block.recorded.begin(), block.recorded.end(), stream) != block.recorded.end()) return;
  block.recorded.push_back(stream);
  trace().note(WordKind::kRecordStream, {block.number, stream});
}

// -- order -------------------------------------------------------------------------------------------------

void Tracker::recorded(uintptr_t event, uintptr_t stream) {
  int64_t number = stream_of(stream), marker = ++trace().markers;
  markers_[event] = marker;
  trace().note(WordKind::kRecord, {marker, number});
}

void Tracker::waits(uintptr_t event, uintptr_t stream, int64_t site) {
  auto known = markers_.find(event);
  if (known != markers_.end()) trace().note(WordKind::kWait, {stream_of(stream), known->second, site});
}

void Tracker::host_waits(int64_t stream, How how, int64_t site) {
  int64_t marker = ++trace().markers, time = now();
  trace().note(WordKind::kRecord, {marker, stream});
  trace().note(WordKind::kHostWait, {marker, static_cast<int64_t>(how), site, time, time});
}

void Tracker::host_waits_for(uintptr_t event, How how, int64_t site) {
  auto known = markers_.find(event);
  int64_t time = now();
  if (known != markers_.end()) trace().note(WordKind::kHostWait, {known->second, static_cast<int64_t>(how), site, time, time});
}

void Tracker::host_waits_for_all(int64_t site) {
  for (int64_t number : busy_) host_waits(number, How::kSynchronize, site);
}

// -- work --------------------------------------------------------------------------------------------------

void Tracker::launch(const Running& call, const Accesses& accesses) {
  busy_.insert(call.stream);
  trace().launch(call.stream, call.kernel, accesses, call.site, now(), kNobodyKnows, kNobodyKnows, -1, nullptr);
}

void Tracker::host_access(int64_t kernel, const Accesses& accesses, int64_t site) {
  static bool named = false;
  if (!std::exchange(named, true)) trace().note(WordKind::kStreamName, {schema::kHost});
  int64_t time = now();
  trace().launch(schema::kHost, kernel, accesses, site, time, time, time, 0, nullptr);
  host_waits(schema::kHost, How::kRead, site);
}

void Tracker::issue(Running& call) {
  if (std::exchange(call.issued, true)) return;
  auto work = std::make_shared<Work>();
  work->collective = true;
  work->group = call.group, work->number = ++numbers[call.group];
  work->end = Work::kUnknown;
  work->link = work->call = name_id("");
  int64_t stream = call.over >= 0 ? call.over : call.stream;
  busy_.insert(stream);
  if (nccl_records && stream != call.stream)
    for (auto* accesses : {&call.accesses.reads, &call.accesses.writes})
      for (auto& access : *accesses)
        for (auto& [_, block] : blocks_)  // few are alive, and these releases of torch are old
          if (block.number == access.block) used_by(block, stream);
  trace().launch(stream, call.kernel, call.accesses, call.site, now(), kNobodyKnows, kNobodyKnows, -1, work, call.root, call.stream);
}

}  // namespace simgpu
