// Functions for Python in addition to torch's own interfaces: plain functions, called through ctypes (the library may
// not link torch's Python part, as it is loaded before it), and a few operators for functions that take a tensor.
#include <ATen/EmptyTensor.h>
#include <pthread.h>
#include <torch/library.h>
#include <unistd.h>

#include <exception>
#include <thread>

#include "callsite.h"
#include "capture.h"
#include "deviations.h"
#include "dry.h"
#include "fallback.h"
#include "generator.h"
#include "operators.h"
#include "packed.h"
#include "recorder.h"
#include "probes.h"
#include "python_calls.h"
#include "unwritten.h"
#include "wider.h"

namespace simgpu {
namespace {

std::string problem;

template <typename Do>
int64_t told(Do work) {  // an error is passed to Python as a sentence (simgpu_problem)
  try {
    return work();
  } catch (const c10::Error& failure) {
    problem = failure.what_without_backtrace();
    return -1;
  } catch (const std::exception& failure) {
    problem = failure.what();
    return -1;
  }
}

void add(const at::TensorList tensors, bool written, Accesses& accesses) {
  for (const auto& one : tensors)
    if (one.is_cuda()) place_of(one, written, accesses);
}

using Callback = void (*)(int64_t ticket, int64_t moment);
Callback run_python = nullptr;

Effect python(int64_t ticket, int64_t moment) {
  if (ticket < 0) return nullptr;
  return [ticket, moment] {
    if (!python_alive) return;
    // gloo's thread would ask for the time to profile its own collective, and wait for the lock that this one has.
    at::DisableRecordFunctionGuard unprofiled;
    bool before = std::exchange(executing, true);
    run_python(ticket, moment);
    executing = before;
  };
}

// Issues work with accesses named by the issuer, and Python functions (by ticket) as its effects at start and end.
// `group` negative: a kernel of `duration`. Otherwise this rank's part in collective `number` of `group`, whose end
// is open until all `members` have arrived.
int64_t issue(at::TensorList reads, at::TensorList writes, c10::string_view kernel, int64_t stream, int64_t duration,
              int64_t ticket, int64_t group, int64_t number, at::IntArrayRef members, int64_t root, int64_t issuer, int64_t nominal,
              int64_t late, double alone, c10::string_view link, c10::string_view call) {
  int64_t site = call_site();
  Lock lock;
  Accesses accesses;
  add(reads, false, accesses);
  add(writes, true, accesses);
  int64_t name = name_id(std::string(kernel));
  if (group < 0) {
    device().launch(stream, name, accesses, duration, python(ticket, 1), site);
    dry().wrote(accesses.writes, false);
    return trace().ops;
  }
  Rendezvous rendezvous{group, duration, late, root, issuer, nominal, alone, name_id(std::string(link)), name_id(std::string(call)), {}, python(ticket, 0), python(ticket, 1)};
  rendezvous.members.assign(members.begin(), members.end());
  device().launch(stream, name, accesses, rendezvous, number, site);
  dry().wrote(accesses.writes, false);
  return trace().ops;
}

// Issues a kernel whose effect, a Python function (by ticket), reports what it accesses within the memory of `bounds`.
int64_t issue_late(at::TensorList bounds, c10::string_view kernel, int64_t stream, int64_t duration, int64_t ticket) {
  int64_t site = call_site();
  Lock lock;
  Accesses accesses;
  accesses.late = true;
  for (const auto& one : bounds)
    if (Block* block = block_of(one.storage().unsafeGetStorageImpl()))
      accesses.reads.push_back({block->number, block->shift, block->shift + static_cast<int64_t>(block->nbytes), 0});
  device().launch(stream, name_id(std::string(kernel)), accesses, duration, python(ticket, 1), site);
  return trace().ops;
}

// Checks whether the tensor holds the same values as in a live run.
bool known(const at::Tensor& tensor) {
  Lock lock;
  Block* block = tensor.is_cuda() ? block_of(tensor.storage().unsafeGetStorageImpl()) : pinned_block_of(tensor);
  if (!dry().on || !block) return true;
  Accesses accesses;
  add_access(tensor, *block, accesses.reads);
  return dry().known(accesses.reads);
}

// Reads the tensor by the host: waits for the current stream, and returns nothing.
void look(const at::Tensor& tensor, c10::string_view name) {
  int64_t site = call_site();
  Lock lock;
  Accesses accesses;
  place_of(tensor, false, accesses);
  OnDevice on(tensor.device().index());
  device().launch(Device::current(), name_id(std::string(name)), accesses, 2000, nullptr, site);
  device().synchronize(Device::current(), How::kRead, site);
}

// Notes that the tensor's bytes were written, with known values or not.
void wrote(const at::Tensor& tensor, bool known) {
  Lock lock;
  Accesses accesses;
  place_of(tensor, true, accesses);
  dry().wrote(accesses.writes, known);
}

at::Tensor alias_of(const at::Tensor& tensor) {
  Lock lock;
  Block* block = block_of(tensor.storage().unsafeGetStorageImpl());
  TORCH_CHECK(block || tensor.numel() == 0, "streamrace: this tensor's memory does not come from the simulated GPU's allocator");
  return block ? alias(tensor, *block) : at::detail::empty_cpu(tensor.sizes(), tensor.scalar_type());
}

std::vector<int64_t> place(const at::Tensor& tensor) {  // block, first byte, end
  Block* block = block_of(tensor.storage().unsafeGetStorageImpl());
  if (!block) return {-1, 0, 0};
  Accesses accesses;
  Lock lock;
  bool on = std::exchange(trace().on, true);
  add_access(tensor, *block, accesses.reads);
  trace().on = on;
  if (accesses.reads.empty()) return {block->number, 0, 0};
  return {block->number, accesses.reads[0].lo, accesses.reads[0].hi};
}

void resize_storage_(const at::Tensor& whole, int64_t nbytes) {
  int64_t site = call_site();
  Lock lock;
  resize_storage(whole.storage().unsafeGetStorageImpl(), static_cast<size_t>(nbytes), site);
}

// Replaces a library's own CUDA kernel, which cannot run here, by the CPU's kernel, as for all operators without one.
void fall_back(const std::string& name, const std::string& overload) {
  static auto* kept = new std::vector<c10::RegistrationHandleRAII>;  // never destroyed, like the library
  kept->push_back(c10::Dispatcher::singleton().registerImpl({name, overload}, c10::DispatchKey::CUDA,
                                                            c10::KernelFunction::makeFromBoxedFunction<&fallback>(),
                                                            std::nullopt, nullptr, "streamrace"));
}

// Returns the state of the CPU's generator for one draw of `count` numbers.
at::Tensor draw(int64_t count) {
  Lock lock;
  TORCH_CHECK(!captures().of(Device::current()), "streamrace: the dropout of a recurrent layer in a CUDA graph cannot be simulated: run the layer without a graph");
  return static_cast<Generator*>(default_generator().unsafeGetGeneratorImpl())->draw(count).get_state();
}

void tell_hidden(const std::string& name, const std::vector<std::string>& arguments, const std::string& when) {
  hides(name, arguments, when);
}

void take_whole_(const std::string& name) { take_whole(name); }

TORCH_LIBRARY(simgpu, m) {
  m.def("issue(Tensor[] reads, Tensor(a!)[] writes, str kernel, int stream, int duration, int ticket, int group, int number, "
        "int[] members, int root, int issuer, int nominal, int late, float alone, str link, str call) -> int",
        torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, issue));
  m.def("issue_late(Tensor[] bounds, str kernel, int stream, int duration, int ticket) -> int",
        torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, issue_late));
  m.def("default_generator(int index) -> Generator?",
        torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, [](int64_t index) -> at::Generator { return default_generator(index); }));
  m.def("let_draw(int graph, Generator? generator) -> ()",
        torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, [](int64_t graph, const at::Generator& generator) {
          Lock lock;
          captures().let_draw(graph, static_cast<Generator*>(generator.unsafeGetGeneratorImpl())->shared_state());
        }));
  m.def("draw(int count) -> Tensor", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, draw));
  m.def("alias(Tensor tensor) -> Tensor", torch::dispatch(c10::DispatchKey::CUDA, alias_of));
  m.def("falls_back(str name, str overload) -> ()", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, fall_back));
  m.def("hides(str name, str[] arguments, str when) -> ()", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, tell_hidden));
  m.def("take_whole(str name) -> ()", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, take_whole_));
  m.def("take_wider(str name, ScalarType dtype) -> ()",
        torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, [](const std::string& name, at::ScalarType dtype) { take_wider(name, dtype); }));
  m.def("part(Tensor tensor) -> int", torch::dispatch(c10::DispatchKey::CUDA, [](const at::Tensor& tensor) -> int64_t {
          Block* block = block_of(tensor.storage().unsafeGetStorageImpl());
          return block ? block->part : -1;
        }));
  m.def("place(Tensor tensor) -> int[]", torch::dispatch(c10::DispatchKey::CUDA, place));
  m.def("known(Tensor tensor) -> bool", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, known));
  m.def("look(Tensor tensor, str name) -> ()", torch::dispatch(c10::DispatchKey::CUDA, look));
  m.def("wrote(Tensor tensor, bool known) -> ()", torch::dispatch(c10::DispatchKey::CUDA, wrote));
  m.def("resize_storage(Tensor whole, int nbytes) -> ()", torch::dispatch(c10::DispatchKey::CUDA, resize_storage_));
}

// Keeps a fork from finding the device locked by a thread that does not exist in the child.
Lock* while_forking;
struct AtFork {
  AtFork() {
    pthread_atfork([] { while_forking = new Lock; }, [] { delete while_forking; },
                   [] { new (&device_mutex()) std::recursive_mutex; });  // its owner has another number in the child
  }
} at_fork;

// A thread that requests the interpreter while it ends is ended by it (pthread_exit, until Python 3.13). Ending it inside
// torch aborted the process, as the stack is unwound through destructors. Such a thread sleeps until the process has ended,
// as it does from Python 3.14 on.
std::thread::id ending;
std::terminate_handler abort_as_before;
[[noreturn]] void rest() {
  if (std::current_exception() || std::this_thread::get_id() == ending) {
    if (abort_as_before) abort_as_before();
    std::abort();
  }
  for (;;) pause();
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

const char* simgpu_problem() { return problem.c_str(); }

void simgpu_devices(int count, int index, int rank) {
  device().see(count, index);
  timeline().rank = rank;
}
void simgpu_rank(int rank) { timeline().rank = rank; }
int simgpu_used() { return device().used(); }
void simgpu_deferred(int on) { device().deferred = on != 0; }
void simgpu_python_ends() {
  python_alive = false;
  ending = std::this_thread::get_id();
  abort_as_before = std::set_terminate(rest);
}

void simgpu_costs(int64_t launch_ns, int64_t synchronize_ns, int64_t query_ns, int64_t call_ns,
                  double (*kernel)(const char*, int64_t, const int64_t*, int64_t, int64_t, int64_t*), double (*factor)(const char*, int64_t)) {
  Lock lock;
  device().costs = {launch_ns, synchronize_ns, query_ns, call_ns, kernel, factor};
  device().forget_factors();
}

void simgpu_count_calls(const char* const* prefixes, const int* kinds, int count) { count_calls(prefixes, kinds, count); }

int64_t simgpu_now() { return timeline().now; }
int64_t simgpu_tail() {  // when all work given to the device is done; -1: that depends on other ranks
  Lock lock;
  int64_t last = 0;
  for (int64_t id = 0; id < timeline().streams(); ++id) {
    if (!timeline().stream(id).settle()) return -1;
    last = std::max(last, timeline().stream(id).known);
  }
  return last;
}
int64_t simgpu_effective() { return timeline().effective; }
int64_t simgpu_current_stream() { return Device::current(); }
void simgpu_set_stream(int64_t stream) { Device::current() = stream; }
int simgpu_index() { return device().used_index(); }
int simgpu_chosen() { return device().chosen(); }
int simgpu_set_index(int index) {  // -1: there is a problem
  return static_cast<int>(told([index] {
    c10::impl::getDeviceGuardImpl(c10::kCUDA)->setDevice({c10::kCUDA, static_cast<c10::DeviceIndex>(index)});
    return 0;
  }));
}
int simgpu_synchronize() {
  return static_cast<int>(told([] {
    int64_t site = call_site();
    Lock lock;
    device().synchronize(site);
    return 0;
  }));
}
int64_t simgpu_advance(int64_t nanoseconds) {
  Lock lock;
  return timeline().now += nanoseconds;
}
int64_t simgpu_blocked() { return device().blocked; }
int64_t simgpu_operations() { return trace().ops; }
int64_t simgpu_flops() { return device().flops; }
void simgpu_answers(int on) { device().answers = on != 0; }
void simgpu_forget_factors() {
  Lock lock;
  device().forget_factors();
}
void simgpu_observe(int64_t stream, int64_t ticket) {  // negative: when all streams are done
  Lock lock;
  Instant instant;
  for (int64_t one = 0; one < timeline().streams(); ++one)
    if (stream < 0 || one == stream) instant.join(timeline().position(one));
  instant.join(timeline().position(std::max(stream, int64_t{0})));
  timeline().shadow(instant, python(ticket, 1));
}
void simgpu_overrides(int (*overridden)(int, int64_t)) { event_overridden = overridden; }
int64_t simgpu_attend() {
  return told([] {
    Lock lock;
    timeline().attend(timeline().now);
    return int64_t{0};
  });
}
int64_t simgpu_drain() {
  return told([] {
    Lock lock;
    device().meet(-1);
    device().raise();
    return int64_t{0};
  });
}

void simgpu_trace(int on, int (*frame)(void*), int64_t (*define)(const void* const*, const int*, int), int64_t (*backward)(int64_t),
                  int64_t (*replayed)(int64_t, int64_t)) {
  give_call_sites(frame, define, backward, replayed);
  Lock lock;
  trace().joins = dry().on;
  trace().launched = [](const Accesses& accesses, bool collective) { probes().launched(accesses, collective); };
  trace().wrote = [](const std::vector<Access>& accesses) { probes().wrote(accesses), unwritten().release(accesses); };
  trace().begin(on != 0);
}
const int64_t* simgpu_trace_take(int64_t* words, int everything) {
  Lock lock;
  return trace().take(words, everything != 0);
}
// Packs words that were taken; `made`: bytes, operations, the last one's number. The bytes are valid until the next call.
const char* simgpu_trace_packed(const int64_t* words, int64_t count, int64_t* at, int64_t* made) {
  static auto* packed = new Packed;
  Lock lock;
  pack(words, count, *at, *packed);
  made[0] = static_cast<int64_t>(packed->bytes.size()), made[1] = packed->operations, made[2] = packed->op;
  return packed->bytes.data();
}
// Capture and replay of CUDA graphs (capture.h). Negative: there is a problem.
int64_t simgpu_capture_begin(int64_t stream, int64_t pool, int mode) {
  return told([&] {
    Lock lock;
    return captures().begin(stream, pool, static_cast<Graph::Mode>(mode));
  });
}
int64_t simgpu_capture_end(int64_t graph) {
  return told([&] {
    Lock lock;
    return captures().end(graph);
  });
}
int64_t simgpu_capturing(int64_t stream) {  // the graph that captures the stream; 0: none
  Lock lock;
  Graph* graph = captures().of(stream);
  return graph ? graph->number : 0;
}
// See Captures::replay.
int64_t simgpu_replay(int64_t graph, int64_t from, int64_t collective) {
  int64_t site = call_site();
  return told([&] {
    Lock lock;
    return captures().replay(graph, from, collective, site);
  });
}
void simgpu_graph_drop(int64_t graph) {
  Lock lock;
  captures().drop(graph);
}
// Returns a captured stream and the one that has its nodes in a replay, by position; the end is 0, 0.
void simgpu_graph_stream(int64_t graph, int64_t position, int64_t* found) {
  Lock lock;
  auto all = captures().streams(graph);
  auto place = static_cast<size_t>(position);
  found[0] = place < all.size() ? all[place].first : 0;
  found[1] = place < all.size() ? all[place].second : 0;
}
void simgpu_several(int most) {  // the number of devices that the process may use
  Lock lock;
  device().most = most;
}
int simgpu_most() { return device().most; }
// Writes the device of a stream, and its place there (Device::place_of).
void simgpu_stream_place(int64_t stream, int64_t* found) {
  Lock lock;
  auto [index, place] = device().place_of(stream);
  found[0] = index, found[1] = place;
}
int64_t simgpu_default_stream(int index) {
  Lock lock;
  return device().default_stream(index);
}
int64_t simgpu_hidden_stream() {
  Lock lock;
  return device().hidden_stream();
}

void simgpu_mark(int64_t number) {  // marks the position of a record that Python created
  Lock lock;
  trace().note(WordKind::kMark, {number});
}
void simgpu_record(int on) {
  Lock lock;
  recorder().begin(on != 0);
}
const char* simgpu_recorded(int64_t number, int64_t* nbytes) {
  Lock lock;
  auto& bytes = recorder().bytes(number);
  *nbytes = static_cast<int64_t>(bytes.size());
  return bytes.data();
}
void simgpu_forget(int64_t number) {
  Lock lock;
  recorder().forget(number);
}
const char* simgpu_kernel_name(int64_t id) {
  Lock lock;
  return name_of(id);
}

void simgpu_report(int writes, const int64_t* ranges, int64_t count) {
  Lock lock;
  trace().report(writes != 0, ranges, count);
}
int simgpu_block_at(int64_t address, int64_t* found) {  // its first byte and end, its number, and where it begins in the trace's block
  Lock lock;
  Block* block = block_at(reinterpret_cast<const char*>(address));
  if (!block) return 0;
  auto begin = reinterpret_cast<int64_t>(block->data);
  found[0] = begin, found[1] = begin + static_cast<int64_t>(block->nbytes), found[2] = block->number, found[3] = block->shift;
  return 1;
}
int64_t simgpu_reporting() {
  Lock lock;
  return trace().reporting();
}
void simgpu_failed(const char* sentence) { device().fail(sentence); }
void simgpu_effects(Callback run) { run_python = run; }
void simgpu_exchange(void (*post)(int64_t, int64_t, const int*, int, int64_t), int (*receive)(double), void (*promise)(int64_t),
                     void (*stand)()) {
  timeline().exchange = {post, receive, promise, stand};
}
void simgpu_arrived(int64_t group, int64_t number, int rank, int64_t time) {
  Lock lock;
  timeline().arrived(group, number, rank, time);
}
void simgpu_promised(int rank, int64_t floor) { timeline().promised(rank, floor); }
void simgpu_broken(const char* sentence) { timeline().broken = sentence; }

void simgpu_deviate_never() { deviations().never(); }
void simgpu_jitter(double percent, int64_t seed, int64_t rank) { deviations().jitter(percent, seed, rank); }
int64_t simgpu_delay(int64_t stream, const char* kernel, int64_t occurrence, int64_t late, int64_t longer) {
  Lock lock;
  return deviations().delay(stream, name_id(kernel), occurrence, {late, longer});
}
void simgpu_delay_operation(int64_t op, int64_t late, int64_t longer) {
  Lock lock;
  deviations().delay_operation(op, {late, longer});
}
int simgpu_delay_met(int64_t delay) { return deviations().met(delay); }

void simgpu_probes_begin() {
  Lock lock;
  probes().begin();
}
const int64_t* simgpu_probes_take(int64_t from, int64_t most, int64_t* words) {
  Lock lock;
  return probes().take(from, most, words);
}

// Fills unwritten memory with NaN if `every`, or in the blocks of these pairs (a rank, its block); else with numbers.
// `copies`: data that are only copied to the host count.
void simgpu_unwritten(int every, const int64_t* pairs, int64_t count, int copies) {
  Lock lock;
  std::set<std::pair<int64_t, int64_t>> poisoned;
  for (int64_t at = 0; at < count; ++at) poisoned.emplace(pairs[2 * at], pairs[2 * at + 1]);
  unwritten().begin(every != 0, std::move(poisoned), copies != 0);
}

void simgpu_dry(int64_t real, int (*asked)(const char*, int, double*)) {
  Lock lock;
  dry().begin(real, asked);
}
void simgpu_dry_refusal(const char* sentence) { dry().refusal = sentence; }
const char* simgpu_dry_dissent() {
  Lock lock;
  problem.clear();
  for (auto& name : dry().dissent) problem += name + "\n";
  return problem.c_str();
}

void simgpu_hand_on(void (*hand_on)()) { give_hand_on(hand_on); }
void simgpu_memory(int index, int64_t total, int64_t allowed) {
  Lock lock;
  size_memory(index, total, allowed);
}
void simgpu_overdraw_memory() { overdraw_memory(); }
void simgpu_expand_segments(int expandable) { expand_segments(expandable != 0); }
void simgpu_out_of_memory(void (*told)(int64_t, int64_t, int64_t, int64_t)) { out_of_memory = told; }

// Memory statistics that older versions of torch do not request themselves (streamrace/device/versions.py): nine statistics of
// three pools with four numbers each, then free and total bytes.
const int64_t* simgpu_memory_told() {
  static std::vector<int64_t> told;
  auto all = device_allocator()->getDeviceStats(static_cast<c10::DeviceIndex>(device().used_index()));
  auto [free, total] = memory_info(device().used_index());
  told.clear();
  for (auto* stat : {&all.allocation, &all.segment, &all.active, &all.inactive_split, &all.allocated_bytes, &all.reserved_bytes,
                     &all.active_bytes, &all.inactive_split_bytes, &all.requested_bytes})
    for (auto& pool : *stat) told.insert(told.end(), {pool.current, pool.peak, pool.allocated, pool.freed});
  told.insert(told.end(), {static_cast<int64_t>(free), static_cast<int64_t>(total)});
  return told.data();
}
void simgpu_memory_do(int what) {
  if (what == 0) device_allocator()->emptyCache();
  if (what == 1) device_allocator()->resetPeakStats(static_cast<c10::DeviceIndex>(device().used_index()));
  if (what == 2) device_allocator()->resetAccumulatedStats(static_cast<c10::DeviceIndex>(device().used_index()));
}

}  // extern "C"
#pragma GCC visibility pop
}  // namespace simgpu
