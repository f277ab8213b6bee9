// The device: its streams, what orders them, and how work is given to them. CUDA's semantics
// (CUDA C++ Programming Guide, "Asynchronous Concurrent Execution").
#pragma once

#include <string>

#include "lock.h"
#include "timeline.h"
#include "trace.h"

namespace simgpu {

// Streams by number: the default one, then torch's pools, from which torch.cuda.Stream() takes them in turn
// (c10/cuda/CUDAStream.cpp: 32 for each priority, so the 33rd is the first again). The last is no stream of the
// device: it stands in the trace for what the host itself does to pinned memory.
constexpr int64_t kPool = 32;
constexpr int64_t kHost = 1 + 2 * kPool;
static_assert(kHost == schema::kHost);

struct Marker {  // a position in a stream
  int64_t number = 0;
  Instant instant;
};

using schema::How;  // kCopy: the host gives, kRead: it takes

struct Costs {
  int64_t launch_ns = 5000;       // of the host, for each launch
  int64_t synchronize_ns = 5000;  // of the host, for a blocking call beyond the wait
  int64_t query_ns = 1000;        // asking takes time too, or a host that asks in a loop would never get on
  // Nanoseconds of a kernel by itself. `shapes`: of its tensors, results last, each as dimensions (type << 8) and then sizes.
  // `switches`: the operator's arguments that are true or false, a bit each, the first the lowest.
  // `flops`, where it is given, gets its floating point operations.
  double (*kernel)(const char* name, int64_t nbytes, const int64_t* shapes, int64_t count, int64_t switches, int64_t* flops) = nullptr;
  double (*factor)(const char* name, int64_t stream) = nullptr;  // by which this timing stretches it there; 0: it costs nothing
};

class Device {
 public:
  Costs costs;
  bool deferred = true;  // false: each launch is waited for at once, without an order in the trace
  int count = 1;         // how many there are to be seen; a process uses one of them
  int index = 0;         // that one, or the one that it would use now
  int64_t blocked = 0;   // nanoseconds that the host stood still
  int64_t flops = 0;     // floating point operations that were issued
  bool answers = true;   // false: who asks whether work is done is always told that it is not

  // The current device is each thread's own, as with CUDA, and it may be any: used is the first of which memory is
  // taken, or to which work is given, and from then on another is refused.
  int chosen() const;
  void choose(int index);
  void bind(int index);
  bool bound() const { return bound_; }
  bool foreign(int index) const { return bound_ && index != this->index; }  // nothing is ever done on such a one

  static int64_t& current();  // this thread's stream, of the device that is used
  int64_t next_stream(bool high_priority);

  Marker record(int64_t stream);
  void wait(int64_t stream, const Marker& marker, int64_t site);
  void host_wait(const Marker& marker, How how, int64_t site);
  bool query(const Marker& marker, int64_t site);
  void synchronize(int64_t site);  // all streams
  void synchronize(int64_t stream, How how, int64_t site);  // all that was given to this one
  // The host waits where no program may rely on it: for one stream, or (below 0) until all work is done.
  void meet(int64_t stream);

  // Gives work to `stream`. `nominal`: its nanoseconds before this timing stretches it.
  WorkPtr launch(int64_t stream, int64_t kernel, const Accesses& accesses, int64_t nominal, Effect effect, int64_t site);
  // What the host does itself, now.
  void host_access(int64_t kernel, const Accesses& accesses, int64_t site);
  void forget_factors() { factors_.clear(); }

  Effect guarded(int64_t kernel, Effect effect);  // a kernel's error is told where the host waits, as CUDA's are
  void fail(const std::string& error);
  void raise();                                   // the first such error, if any
  bool used() const { return used_; }
  void see(int count, int index);

 private:
  std::map<std::pair<int64_t, int64_t>, double> factors_;
  int64_t taken_[2] = {0, 0};
  std::string error_;
  bool used_ = false, bound_ = false;
  void name(int64_t stream);
  std::vector<bool> named_;
};

Device& device();

}  // namespace simgpu
