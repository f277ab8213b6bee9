// The fake CUDA runtime: streams and events. Work is done when it is given, so nothing is ever waited for; the log says
// which waits were asked for. torch.cuda._sleep alone takes time, a virtual one, so that queries and elapsed times answer
// as if it were still going on.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <initializer_list>

#include "log.h"
#include "runtime.h"

namespace {

using Time = std::atomic<int64_t>;  // in nanoseconds, of a virtual clock

void reach(Time& time, int64_t to) {
  if (time < to) time = to;
}

struct Stream {
  unsigned number;
  int priority;
  Pending pending{};
  Time end{0};  // of the work that it was given
};

struct Event {
  unsigned number;
  bool timed, recorded;
  Pending pending{};
  Time end{0};
};

std::atomic<unsigned> streams{0}, events{0};
Time host{0}, last_end{0};

// Handles 0 to 2 are the default stream, CUDA's names for it.
bool is_default(void* stream) { return reinterpret_cast<uintptr_t>(stream) <= 2; }

Stream& stream_of(void* handle) {
  static Stream of_default{0, 0};
  return is_default(handle) ? of_default : *static_cast<Stream*>(handle);
}

Event& event_of(void* handle) { return *static_cast<Event*>(handle); }

template <typename Queried>
int query(Queried& one) {
  if (one.end <= host) return one.pending.query();
  host += 1000;
  return kNotReady;
}

}  // namespace

void Pending::begin() {
  static const unsigned times = [] {
    const char* told = getenv("STREAMRACE_REAL_BUILD_UNREADY");
    return told == nullptr ? 0u : static_cast<unsigned>(atoi(told));
  }();
  left = times;
}

int Pending::query() {
  if (left == 0) return kSuccess;
  --left;
  return kNotReady;
}

unsigned number_of(void* stream) { return stream_of(stream).number; }

void work_on(void* stream, int64_t nanoseconds) {
  auto& of = stream_of(stream);
  of.pending.begin();
  reach(of.end, host);
  reach(last_end, of.end += nanoseconds);
}

void wait_for(void* stream) { reach(host, stream_of(stream).end); }

extern "C" {

// For the fake NCCL, whose calls are logged with the same numbers.
unsigned streamrace_number_of(void* stream) { return number_of(stream); }

int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return kSuccess;
}

int cudaStreamCreateWithPriority(void** stream, unsigned, int priority) {
  auto* made = new Stream{++streams, priority};
  *stream = made;
  log_call("stream %u priority %d device %d", made->number, priority, current_device());
  return kSuccess;
}

int cudaStreamCreateWithFlags(void** stream, unsigned flags) { return cudaStreamCreateWithPriority(stream, flags, 0); }
int cudaStreamCreate(void** stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }

int cudaStreamDestroy(void* stream) {
  if (is_default(stream)) return failed(kInvalidHandle);
  delete static_cast<Stream*>(stream);
  return kSuccess;
}

int cudaStreamGetPriority(void* stream, int* priority) {
  *priority = stream_of(stream).priority;
  return kSuccess;
}

int cudaStreamSynchronize(void* stream) {
  log_call("synchronize stream %u", number_of(stream));
  wait_for(stream);
  return kSuccess;
}

int cudaDeviceSynchronize() {
  log_call("synchronize device %d", current_device());
  reach(host, last_end);
  return kSuccess;
}

int cudaStreamQuery(void* stream) { return query(stream_of(stream)); }

int cudaStreamIsCapturing(void*, int* captures) {
  *captures = 0;
  return kSuccess;
}

int cudaStreamGetCaptureInfo(void*, int* captures) {
  *captures = 0;
  return kSuccess;
}

int cudaThreadExchangeStreamCaptureMode(int*) { return kSuccess; }

int cudaStreamWaitEvent(void* stream, void* event, unsigned) {
  log_call("wait stream %u event %u", number_of(stream), event_of(event).number);
  reach(stream_of(stream).end, event_of(event).end);
  return kSuccess;
}

int cudaEventCreateWithFlags(void** event, unsigned flags) {
  constexpr unsigned kDisableTiming = 2;
  *event = new Event{++events, (flags & kDisableTiming) == 0, false};
  return kSuccess;
}

int cudaEventCreate(void** event) { return cudaEventCreateWithFlags(event, 0); }

int cudaEventDestroy(void* event) {
  delete static_cast<Event*>(event);
  return kSuccess;
}

int cudaEventRecord(void* event, void* stream) {
  log_call("record event %u stream %u", event_of(event).number, number_of(stream));
  event_of(event).recorded = true;
  event_of(event).pending.begin();
  event_of(event).end = std::max<int64_t>(stream_of(stream).end, host);
  return kSuccess;
}

int cudaEventRecordWithFlags(void* event, void* stream, unsigned) { return cudaEventRecord(event, stream); }
int cudaEventQuery(void* event) { return query(event_of(event)); }

int cudaEventSynchronize(void* event) {
  log_call("synchronize event %u", event_of(event).number);
  event_of(event).pending.left = 0;
  reach(host, event_of(event).end);
  return kSuccess;
}

int cudaEventElapsedTime(float* milliseconds, void* first, void* second) {
  for (void* one : {first, second}) {
    if (!event_of(one).timed || !event_of(one).recorded) return failed(kInvalidHandle);
  }
  for (void* one : {first, second}) {
    if (event_of(one).end > host) return kNotReady;
  }
  *milliseconds = static_cast<float>(event_of(second).end - event_of(first).end) / 1e6f;
  return kSuccess;
}

int cudaLaunchHostFunc(void* stream, void (*function)(void*), void* argument) {
  log_call("host function stream %u", number_of(stream));
  function(argument);
  return kSuccess;
}

int cudaStreamAddCallback(void* stream, void (*function)(void*, int, void*), void* argument, unsigned) {
  log_call("host function stream %u", number_of(stream));
  function(stream, kSuccess, argument);
  return kSuccess;
}

}  // extern "C"
