// The fake CUDA runtime: streams and events. Work is done when it is given, so nothing is ever waited for; the log says
// which waits were asked for.
#include <atomic>
#include <cstdlib>
#include <initializer_list>

#include "log.h"
#include "runtime.h"

namespace {

struct Stream {
  unsigned number;
  int priority;
  Pending pending;
};

struct Event {
  unsigned number;
  bool timed, recorded;
  Pending pending;
};

std::atomic<unsigned> streams{0}, events{0};
Pending of_default_stream;

// Handles 0 to 2 are the default stream, CUDA's names for it.
bool is_default(void* stream) { return reinterpret_cast<uintptr_t>(stream) <= 2; }

Event& event_of(void* handle) { return *static_cast<Event*>(handle); }

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

unsigned number_of(void* stream) { return is_default(stream) ? 0 : static_cast<Stream*>(stream)->number; }

void work_on(void* stream) { (is_default(stream) ? of_default_stream : static_cast<Stream*>(stream)->pending).begin(); }

extern "C" {

// For the fake NCCL, whose calls are logged with the same numbers.
unsigned streamrace_number_of(void* stream) { return number_of(stream); }

int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return kSuccess;
}

int cudaStreamCreateWithPriority(void** stream, unsigned, int priority) {
  auto* made = new Stream{++streams, priority, {}};
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
  *priority = is_default(stream) ? 0 : static_cast<Stream*>(stream)->priority;
  return kSuccess;
}

int cudaStreamSynchronize(void* stream) {
  log_call("synchronize stream %u", number_of(stream));
  return kSuccess;
}

int cudaDeviceSynchronize() {
  log_call("synchronize device %d", current_device());
  return kSuccess;
}

int cudaStreamQuery(void* stream) {
  return (is_default(stream) ? of_default_stream : static_cast<Stream*>(stream)->pending).query();
}

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
  return kSuccess;
}

int cudaEventCreateWithFlags(void** event, unsigned flags) {
  constexpr unsigned kDisableTiming = 2;
  *event = new Event{++events, (flags & kDisableTiming) == 0, false, {}};
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
  return kSuccess;
}

int cudaEventRecordWithFlags(void* event, void* stream, unsigned) { return cudaEventRecord(event, stream); }
int cudaEventQuery(void* event) { return event_of(event).pending.query(); }

int cudaEventSynchronize(void* event) {
  log_call("synchronize event %u", event_of(event).number);
  event_of(event).pending.left = 0;
  return kSuccess;
}

int cudaEventElapsedTime(float* milliseconds, void* first, void* second) {
  for (void* one : {first, second}) {
    if (!event_of(one).timed || !event_of(one).recorded) return failed(kInvalidHandle);
  }
  *milliseconds = 0;
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
