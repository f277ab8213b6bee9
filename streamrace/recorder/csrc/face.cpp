// What Python calls of the recorder, through ctypes; with tensors, as an operator.
#include <torch/library.h>

#include "callsite.h"
#include "packed.h"
#include "ranges.h"
#include "tracker.h"

namespace simgpu {
namespace {

// The host reads a tensor past torch's operators, or the program gets its address (`how`).
void host_reads(const at::Tensor& tensor, c10::string_view name, c10::string_view how) {
  if (!tracker().on || !tensor.is_cpu() || !tensor.has_storage()) return;
  int64_t site = call_site();
  Lock lock;
  Tracked* block = tracker().pinned_block_of(tensor, false);
  if (!block || tensor.numel() == 0) return;
  Accesses accesses;
  accesses.reads.push_back(range_of(tensor, block->number, 0, true));
  tracker().host_access(name_id(std::string(name)), accesses, site);
  if (!how.empty()) trace().note(WordKind::kExport, {block->number, name_id(std::string(how)), site, tracker().now()});
}

// A collective of a backend whose collectives are no operators of c10d, on the stream with this handle.
void collective(const std::string& kind, const std::vector<at::Tensor>& reads, const std::vector<at::Tensor>& writes, int64_t group,
                int64_t root, int64_t stream) {
  if (!tracker().on) return;
  Running call;
  call.site = call_site(), call.kernel = name_id("nccl::" + kind), call.group = group, call.root = root;
  uintptr_t current = tracker().current();
  Lock lock;
  call.stream = tracker().stream_of(current), call.over = tracker().stream_of(static_cast<uintptr_t>(stream));
  for (auto& one : reads) tracker().touch(one, call.accesses.reads);
  for (auto& one : writes) tracker().touch(one, call.accesses.writes);
  tracker().issue(call);
}

void hides(const std::string& name, c10::List<std::string> arguments, const std::string& when) {
  std::vector<std::string> all;
  for (const std::string& one : arguments) all.push_back(one);
  hides_too(name, all, when);
}

TORCH_LIBRARY(streamrace, m) {
  m.def("collective(str kind, Tensor[] reads, Tensor[] writes, int group, int root, int stream) -> ()",
        torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, [](std::string kind, std::vector<at::Tensor> reads, std::vector<at::Tensor> writes, int64_t group, int64_t root, int64_t stream) { collective(kind, reads, writes, group, root, stream); }));
  m.def("host_reads(Tensor tensor, str name, str how) -> ()", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, host_reads));
  m.def("hides(str name, str[] arguments, str when) -> ()", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, hides));
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// Returns 0, or 1 if another tool has taken torch's callbacks.
int recorder_begin(int (*frame)(void*), int64_t (*define)(const void* const*, const int*, int), int64_t (*backward)(int64_t),
                   void (*hand_on)(), int64_t (*stream_handle)(int64_t, int64_t),
                   int64_t (*group_number)(const char*, int64_t, int64_t), int64_t (*global_rank)(const char*, int64_t)) {
  if (others_listen()) return 1;
  give_call_sites(frame, define, backward, nullptr);
  give_hand_on(hand_on);
  Lock lock;
  tracker().stream_handle = stream_handle, tracker().group_number = group_number, tracker().global_rank = global_rank;
  trace().begin(true);
  tracker().begin();
  tracker().on = true;
  listen();
  return 0;
}

void recorder_end() {
  Lock lock;
  tracker().on = false;
  trace().on = false;
  stop_listening();
}

// In a fork, in which another thread may have held the lock.
void recorder_abandon() {
  tracker().on = false;
  trace().on = false;
}

// From now on the stream is held, by `hold`, before work of this stack.
void recorder_hold(int64_t site, void (*hold)()) {
  Lock lock;
  tracker().held.insert(site);
  tracker().hold = hold;
}

void recorder_nccl_records(int on) { tracker().nccl_records = on != 0; }

// Between both calls this thread's waits and frees are not the program's.
void recorder_quiet(int on) { set_quiet(on != 0); }

// A capture of a CUDA graph begins (1) or ends (-1).
void recorder_captures(int more) { tracker().captures += more; }

int64_t recorder_now() { return tracker().now(); }
int recorder_used_several() { return tracker().several; }

// The program asked an event, or a stream (`event` 0), and it was done.
void recorder_asked(int64_t event, int64_t stream) {
  if (!tracker().on) return;
  int64_t site = call_site();
  Lock lock;
  if (event) tracker().host_waits_for(static_cast<uintptr_t>(event), schema::How::kQuery, site);
  else tracker().host_waits(tracker().stream_of(static_cast<uintptr_t>(stream)), schema::How::kQuery, site);
}

// The allocator has given memory back to the driver, which waits for the GPU: these segments are left, in twos.
void recorder_segments(const int64_t* segments, int64_t count) {
  Lock lock;
  std::vector<std::pair<uintptr_t, size_t>> all;
  for (int64_t at = 0; at < count; ++at) all.emplace_back(segments[2 * at], segments[2 * at + 1]);
  tracker().formers.keep(std::move(all));
}

// The stack of the call, for a record that Python makes; the record's place in the trace.
int64_t recorder_call_site() { return call_site(); }
void recorder_mark(int64_t number) {
  Lock lock;
  trace().note(WordKind::kMark, {number});
}

const int64_t* recorder_take(int64_t* words, int everything) {
  Lock lock;
  return trace().take(words, everything != 0);
}

const char* recorder_packed(const int64_t* words, int64_t count, int64_t* at, int64_t* made) {
  static auto* packed = new Packed;
  pack(words, count, *at, *packed);
  made[0] = static_cast<int64_t>(packed->bytes.size()), made[1] = packed->operations, made[2] = packed->op;
  return packed->bytes.data();
}

}  // extern "C"
#pragma GCC visibility pop
}  // namespace simgpu
