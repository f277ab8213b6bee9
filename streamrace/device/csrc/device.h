// The device: its streams, their synchronisation, and how work is given to them. CUDA's semantics
// (CUDA C++ Programming Guide, "Asynchronous Concurrent Execution").
#pragma once

#include <c10/core/Stream.h>

#include <algorithm>
#include <array>
#include <string>

#include "lock.h"
#include "timeline.h"
#include "trace.h"

namespace simgpu {

// Streams by number: the default one, then torch's pools, from which torch.cuda.Stream() takes them in turn
// (c10/cuda/CUDAStream.cpp: 32 for each priority, so the 33rd is the first again). The last is no stream of the
// device: in the trace it holds the host's own accesses to pinned memory.
constexpr int64_t kPool = 32;
constexpr int64_t kHost = 1 + 2 * kPool;
static_assert(kHost == schema::kHost);

struct Graph;

struct Marker {  // a position in a stream
  int64_t number = 0;
  Instant instant;
  std::shared_ptr<Graph> graph;  // of a captured stream (capture.h): then `number` is its place among the graph's markers
};

// A rank's part in a collective. Effects: at its start and at its end.
struct Rendezvous {
  int64_t group, duration, late, root, issuer, nominal;
  double alone;
  int64_t link, call;
  std::vector<int> members;
  Effect read, write;
};

using schema::How;  // kCopy: the host writes, kRead: it reads

struct Costs {
  int64_t launch_ns = 5000;       // host time of each launch
  int64_t synchronize_ns = 5000;  // host time of a blocking call in addition to the wait
  int64_t query_ns = 1000;        // a query takes time, or a host that polls in a loop would make no progress
  int64_t call_ns = 0;            // host time of a call of one of the program's Python functions; 0: they are not counted
  // Nanoseconds of an undisturbed kernel. `shapes`: of its tensors, results last, each as dimensions (type << 8), then sizes.
  // `switches`: the operator's boolean arguments, one bit each, the first one lowest.
  // `flops`, if not null, receives its floating point operations.
  double (*kernel)(const char* name, int64_t nbytes, const int64_t* shapes, int64_t count, int64_t switches, int64_t* flops) = nullptr;
  double (*factor)(const char* name, int64_t stream) = nullptr;  // stretch of this timing on the stream; 0: it costs nothing
};

// One of the GPUs that the process uses. In the trace all streams have numbers of one sequence: those of the first GPU are
// torch's own, those of the others come behind the host's.
struct Gpu {
  int index;
  bool used = false;                             // its memory is used, or it is given work
  int64_t taken[2] = {0, 0};                 // of torch's pools
  std::array<int64_t, 1 + 2 * kPool> numbers{};  // by the stream's place in the GPU; 0: it has none yet (of the first: unused)
};

class Device {
 public:
  Costs costs;
  bool deferred = true;  // false: each launch is waited for at once, without an order in the trace
  int count = 1;         // number of visible devices
  int most = 1;          // of them a process uses at most so many
  int index = 0;         // the first device in use, or the one that would be used now
  int64_t blocked = 0;   // nanoseconds for which the host was blocked
  int64_t flops = 0;     // floating point operations that were issued
  bool answers = true;   // false: every query reports unfinished work

  // The current device is each thread's own, as with CUDA, and it may be any. A device whose memory is used, or which is
  // given work, is bound to the process; once there are `most` of them, other devices are refused.
  int chosen() const;
  void choose(int index);
  void bind(int index);
  bool bound() const { return bound_; }
  bool several() const { return most > 1; }
  bool foreign(int index) const {  // such a device is never used
    if (!several()) return bound_ && index != this->index;
    auto used = std::count_if(gpus_.begin(), gpus_.end(), [](const Gpu& one) { return one.used; });
    return used >= most && !uses(index);
  }
  bool uses(int index) const {
    return std::any_of(gpus_.begin(), gpus_.end(), [index](const Gpu& one) { return one.used && one.index == index; });
  }
  int used_index() const { return several() ? chosen() : index; }  // of the device that this thread uses

  static int64_t& current();  // this thread's stream, of the device that it uses
  int64_t& current(int index);  // the same, of this device
  int64_t next_stream(int index, bool high_priority);
  int64_t hidden_stream();    // one that no program can get
  int64_t default_stream(int index);
  // Our number of torch's stream: torch makes default streams itself, with number 0 on each device.
  int64_t number_of(const c10::Stream& one) { return one.id() == 0 ? default_stream(one.device_index()) : one.id(); }
  std::pair<int, int64_t> place_of(int64_t stream) const;  // its device, and its place there (0: the default; -1: hidden)

  Marker record(int64_t stream);
  void wait(int64_t stream, const Marker& marker, int64_t site);
  void host_wait(const Marker& marker, How how, int64_t site);
  bool query(const Marker& marker, int64_t site);
  void synchronize(int64_t site, int index = -1);  // all streams of this device; negative: of every device
  void synchronize(int64_t stream, How how, int64_t site);  // all work given to this stream
  // Lets the host wait without an order on which a program may rely: for one stream, or (negative) for all work.
  void meet(int64_t stream);

  // Gives work to `stream`. `nominal`: nanoseconds before this timing stretches it.
  WorkPtr launch(int64_t stream, int64_t kernel, const Accesses& accesses, int64_t nominal, Effect effect, int64_t site);
  // The same for a launch of a replay, which takes none of the host's time.
  WorkPtr enqueue(int64_t stream, int64_t kernel, const Accesses& accesses, int64_t nominal, Effect effect, int64_t site,
                  int64_t host_ns = 0);
  void host_launches() {
    host_called();
    timeline().now += costs.launch_ns;
  }
  void host_called();  // the program's Python functions that were called until now have taken their time
  // Gives the stream this rank's part in collective `number` of its group.
  void launch(int64_t stream, int64_t kernel, const Accesses& accesses, const Rendezvous& rendezvous, int64_t number, int64_t site);
  void enqueue(int64_t stream, int64_t kernel, const Accesses& accesses, const Rendezvous& rendezvous, int64_t number, int64_t site,
               int64_t host_ns = 0);
  // Records an access by the host itself, now.
  void host_access(int64_t kernel, const Accesses& accesses, int64_t site);
  void forget_factors() { factors_.clear(); }

  Effect guarded(int64_t kernel, Effect effect);  // a kernel's error is raised where the host waits, as with CUDA
  void fail(const std::string& error);
  void raise();                                   // raises the first such error, if any
  bool used() const { return used_; }
  void see(int count, int index);

 private:
  std::map<std::pair<int64_t, int64_t>, double> factors_;
  std::vector<Gpu> gpus_;  // that the process asked for, in this order
  std::vector<std::pair<int64_t, int64_t>> places_;  // of the streams behind the host's: GPU, place (-1: hidden)
  std::string error_;
  bool used_ = false, bound_ = false;
  void name(int64_t stream);
  std::vector<bool> named_;
  int64_t gpu(int index);  // its position
  int64_t number(int64_t gpu, int64_t place);
};

// In its scope this device is the thread's current one; nothing changes if the process uses one device, or for a negative index.
class OnDevice {
 public:
  explicit OnDevice(int index);
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = -2;
};

Device& device();

}  // namespace simgpu
