// Follows a real CUDA build of torch, and writes what it does as the simulated GPU's trace has it.
//
// torch tells of three kinds of things: operators (at::RecordFunction), streams, events and memory (c10's GPUTrace), and
// collectives, which are operators of their own. Nothing is read from the GPU, nothing waits, and no tensor is kept.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/core/StorageImpl.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "effects.h"
#include "formers.h"
#include "lock.h"
#include "trace.h"

namespace simgpu {

// An allocation. `pinned`: memory of the host, whose storage tells whether it still lives.
struct Tracked {
  int64_t number;
  uintptr_t data;
  size_t nbytes;
  int64_t stream;
  std::vector<int64_t> recorded;  // streams of record_stream
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage;
};

// An operator that runs in this thread, within `outer`.
struct Running final : at::ObserverContext {
  const Effects* effects = nullptr;
  Running* outer = nullptr;
  Accesses accesses;             // on the GPU, and of pinned memory by a copy
  Accesses host;                 // of pinned memory by the host's own kernel
  int64_t stream = 0, site = 0;
  int64_t kernel = 0;            // its name
  std::vector<const void*> given;  // storages of its arguments
  bool on_gpu = false;           // an argument is on the GPU
  bool inner = false;            // an operator within it was recorded
  bool waited = false;           // the host has waited within it
  bool copied = false;           // a copy within it was recorded
  bool waits_after = false;      // the host waits when it has ended, without a call that is seen
  schema::How how = schema::How::kRead;  // why the host waits within it
  // Of a collective.
  int64_t group = 0, root = -1;  // root: a global rank
  int64_t over = -1;             // the stream that was made to wait for the current one
  bool at_root = false, issued = false;
};

class Tracker {
 public:
  bool on = false;
  std::atomic<int> captures{0};  // CUDA graphs that are captured now: their launches are not executed
  Formers formers;
  int64_t (*stream_handle)(int64_t id, int64_t device) = nullptr;                       // Python's: a stream's handle
  // Python's: the number of a group, or of the pair of its members that send and receive; a member's global rank.
  int64_t (*group_number)(const char* name, int64_t source, int64_t target) = nullptr;
  int64_t (*global_rank)(const char* name, int64_t member) = nullptr;
  bool nccl_records = false;  // ProcessGroupNCCL calls record_stream, past all operators, for what a collective uses
  std::set<int64_t> held;  // the stacks before whose work the current stream is held
  void (*hold)() = nullptr;  // Python's: gives the stream a kernel that only takes time
  std::atomic<bool> several{false};  // more than one GPU was used, which are not told apart

  void begin();
  int64_t now() const;
  int64_t stream_of(uintptr_t handle);  // the number of a stream, which the trace then names
  uintptr_t handle_of(c10::Stream stream);  // takes Python's lock, so not to be called under the tracker's
  uintptr_t current();                      // the handle of the current stream; the same
  Tracked* block_of(const at::Tensor& tensor);                  // on the GPU; null if it has no memory
  Tracked* pinned_block_of(const at::Tensor& tensor, bool ask);  // `ask` CUDA whether it is pinned
  bool any_pinned() const { return !pinned_.empty(); }
  void touch(const at::Tensor& tensor, std::vector<Access>& accesses);  // adds what it covers of the GPU's memory
  void used_by(Tracked& block, int64_t stream);                 // record_stream

  void recorded(uintptr_t event, uintptr_t stream);
  void waits(uintptr_t event, uintptr_t stream, int64_t site);
  void host_waits(int64_t stream, schema::How how, int64_t site);
  void host_waits_for(uintptr_t event, schema::How how, int64_t site);
  void host_waits_for_all(int64_t site);
  void event_gone(uintptr_t event) { markers_.erase(event); }
  void made(uintptr_t data, int64_t stream, int64_t site, int64_t reserved);
  void freed(uintptr_t data);

  void launch(const Running& call, const Accesses& accesses);
  void host_access(int64_t kernel, const Accesses& accesses, int64_t site);
  void issue(Running& call);  // a collective, once
  std::unordered_map<int64_t, int64_t> numbers;  // of the collectives of each group

 private:
  struct Pending {
    int64_t stream, site;
  };
  std::chrono::steady_clock::time_point began_;
  std::unordered_map<uintptr_t, int64_t> streams_, markers_;
  std::unordered_map<uintptr_t, Pending> pending_;  // allocated, and of unknown size until a tensor is seen
  std::unordered_map<uintptr_t, Tracked> blocks_, pinned_;
  std::atomic<int> gpu_{-1};  // the index of the first that was used
  int64_t made_ = 0, reserved_ = 0;  // blocks; the bytes that the allocator ever got from the driver
  std::set<int64_t> busy_{0};  // streams that were given work
  Tracked& add(std::unordered_map<uintptr_t, Tracked>& blocks, uintptr_t data, size_t nbytes, int64_t stream);
};

Tracker& tracker();
Running*& running();  // the innermost operator of this thread

// Marks this thread as doing the tracker's own work, which is not recorded.
struct Quiet {
  bool before;
  Quiet();
  ~Quiet();
};
bool follows();  // whether what happens is the program's, and is executed
void set_quiet(bool on);

// Writes what is due before the host waits: the work of the innermost operator.
void before_wait();

void listen();  // to operators, streams, events and memory
void stop_listening();
bool others_listen();  // another tool, such as torch's sanitizer, listens to streams, events and memory

}  // namespace simgpu
