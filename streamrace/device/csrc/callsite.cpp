#include "callsite.h"

#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "lock.h"
#include "trace.h"

namespace simgpu {

bool python_alive = true;

namespace {

// What reported() says of a code object (callsites.py).
enum { kNotRecorded, kRecorded, kBegin, kOwn, kBackward };
constexpr int kLeastDepth = 6;  // frames recorded, and more until one is of the user's own files
constexpr int kMostDepth = 32;
struct Key {
  void* codes[kMostDepth];
  int instructions[kMostDepth];
  int count = 0;
  bool own = false;  // has a frame of the user's own files
  bool operator==(const Key& other) const {
    if (count != other.count) return false;
    for (int i = 0; i < count; ++i)
      if (codes[i] != other.codes[i] || instructions[i] != other.instructions[i]) return false;
    return true;
  }
};
struct Hash {
  size_t operator()(const Key& key) const {
    size_t hash = key.count;
    for (int i = 0; i < key.count; ++i)
      hash = (hash ^ reinterpret_cast<size_t>(key.codes[i]) ^ (static_cast<size_t>(key.instructions[i]) << 48)) * 0x9E3779B97F4A7C15ull;
    return hash;
  }
};

int (*is_reported)(void*) = nullptr;
int64_t (*define_stack)(const void* const*, const int*, int) = nullptr;
void (*hand_on)() = nullptr;
int64_t (*define_backward)(int64_t) = nullptr;
int64_t (*define_replayed)(int64_t, int64_t) = nullptr;
void* main_thread = nullptr;
// All under Python's lock. Code objects in the map are never released, so that addresses stay unique.
std::unordered_map<void*, int> codes;
std::unordered_map<Key, int64_t, Hash> stacks;
std::unordered_map<int64_t, int64_t> backward_of;
std::map<std::pair<int64_t, int64_t>, int64_t> replayed_at;

// Where the nodes of autograd's graph were created: torch identifies each by the thread of the forward pass and a number
// that counts up there (torch/csrc/autograd/node.h, sequence_nr). The latest nodes of each thread are remembered: nodes
// of a recomputed checkpoint are created on autograd's thread, under numbers that were used before.
struct Made {
  uint64_t number = 0;
  int64_t site = 0;
};
constexpr size_t kRemembered = 1 << 18;
std::mutex made_mutex;
std::unordered_map<uint64_t, std::vector<Made>> made_by;  // thread
thread_local uint64_t seen = 0;  // this thread's nodes below this number are remembered, or never will be

void remember(uint64_t number, int64_t site) {
  std::lock_guard guard(made_mutex);
  auto& made = made_by[at::RecordFunction::currentThreadId()];
  size_t place = number % kRemembered;
  if (place >= made.size()) made.resize(std::min(kRemembered, std::max(place + 1, 2 * made.size())));
  made[place] = {number, site};
}

// The forward line of the node that autograd's engine runs on this thread; 0 if unknown.
int64_t forward_site() {
  auto node = torch::autograd::get_current_node();
  // CopySlices is created after the kernel of its operator: its number may be that of the next operator's node.
  if (!node || dynamic_cast<torch::autograd::CopySlices*>(node.get())) return 0;
  std::lock_guard guard(made_mutex);
  auto& made = made_by[node->thread_id()];
  size_t place = node->sequence_nr() % kRemembered;
  return place < made.size() && made[place].number == node->sequence_nr() ? made[place].site : 0;
}

int kind_of(void* frame) {
  void* code = PyFrame_GetCode(frame);
  auto known = codes.find(code);
  if (known == codes.end()) {
    Py_IncRef(code);
    known = codes.emplace(code, is_reported(code)).first;
  }
  Py_DecRef(code);
  return known->second;
}

// Appends the frames of this one and its callers.
void walk(void* frame, Key& key) {
  while (frame) {
    int kind = kind_of(frame);
    if (kind == kBegin) {  // the code that runs the program, and its callers, are not part of it
      Py_DecRef(frame);
      return;
    }
    if (kind == kRecorded || kind == kOwn) {
      void* code = PyFrame_GetCode(frame);
      key.codes[key.count] = code;
      key.instructions[key.count++] = PyFrame_GetLasti(frame);
      key.own |= kind == kOwn;
      Py_DecRef(code);
    }
    void* back = key.count < (key.own ? kLeastDepth : kMostDepth) ? PyFrame_GetBack(frame) : nullptr;
    Py_DecRef(frame);
    frame = back;
  }
}

// Appends the frames of the main thread if it waits in backward(), for a hook that autograd's thread has called.
void walk_backward(Key& key) {
  void* frame = PyThreadState_GetFrame(main_thread);
  if (frame && kind_of(frame) == kBackward) return walk(frame, key);
  if (frame) Py_DecRef(frame);
}

// An exception that is being raised: torch frees memory and waits for events meanwhile, and Python must not be called
// with it pending.
class Pending {
 public:
  Pending() { PyErr_Fetch(&type_, &value_, &trace_); }
  ~Pending() { PyErr_Restore(type_, value_, trace_); }
  Pending(const Pending&) = delete;
  Pending& operator=(const Pending&) = delete;

 private:
  void *type_ = nullptr, *value_ = nullptr, *trace_ = nullptr;
};

}  // namespace

void give_call_sites(int (*reported)(void*), int64_t (*define)(const void* const*, const int*, int), int64_t (*backward)(int64_t),
                     int64_t (*replayed)(int64_t, int64_t)) {
  is_reported = reported;
  define_stack = define;
  define_backward = backward;
  define_replayed = replayed;
  if (!main_thread) {
    int state = PyGILState_Ensure();
    main_thread = PyThreadState_Get();
    PyGILState_Release(state);
  }
}

void give_hand_on(void (*given)()) { hand_on = given; }

int64_t call_site() {
  if (!trace().on || !is_reported || !python_alive) return 0;
  int state = PyGILState_Ensure();
  auto pending = std::make_optional<Pending>();
  if (trace().full() && hand_on) hand_on();
  Key key;
  walk(PyThreadState_GetFrame(PyThreadState_Get()), key);
  int64_t number = -1;
  if (key.count == 0) {  // autograd's thread, in a node that is not Python's
    if (int64_t forward = forward_site()) {
      auto known = backward_of.find(forward);
      if (known == backward_of.end()) known = backward_of.emplace(forward, define_backward(forward)).first;
      number = known->second;
    } else {
      walk(PyThreadState_GetFrame(main_thread), key);
    }
  } else if (!key.own && key.count < kMostDepth && PyThreadState_Get() != main_thread &&
             torch::autograd::get_current_graph_task_id() >= 0) {
    walk_backward(key);
  }
  if (number < 0) {
    auto found = stacks.find(key);
    if (found == stacks.end())
      found = stacks.emplace(key, define_stack(key.codes, key.instructions, key.count)).first;
    number = found->second;
  }
  pending.reset();
  PyGILState_Release(state);
  return number;
}

int64_t replayed_site(int64_t captured, int64_t replay) {
  if (!trace().on || !define_replayed || !python_alive || !captured) return replay;
  int state = PyGILState_Ensure();
  auto known = replayed_at.find({captured, replay});
  if (known == replayed_at.end()) known = replayed_at.emplace(std::pair{captured, replay}, define_replayed(captured, replay)).first;
  PyGILState_Release(state);
  return known->second;
}

bool may_have_made_node() { return trace().on && at::GradMode::is_enabled() && at::sequence_number::peek() != seen; }

int64_t call_site_of_node() {
  int64_t site = call_site();
  seen = at::sequence_number::peek();
  if (site) remember(seen - 1, site);
  return site;
}

void site_of_next_node(int64_t site) {
  if (site) remember(at::sequence_number::peek(), site);
}

}  // namespace simgpu
