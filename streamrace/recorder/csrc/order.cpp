// Streams, events and memory: c10's GPUTrace, of which torch.cuda._gpu_trace is the Python side.
//
// Python's side cannot be used: torch calls it while an exception is pending, as memory is freed during unwinding, and the
// interpreter then ends the program with a SystemError (docs/results/found.md).
#include <c10/core/impl/GPUTrace.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <array>
#include <cstring>

#include "callsite.h"
#include "tracker.h"
#include "versions.h"

namespace simgpu {
namespace {

using Table = c10::impl::PyInterpreterVTable;
using c10::DeviceType;
using c10::impl::GPUTrace;
using schema::How;

// In each, the stack is found before the lock is taken (lock.h).
void on_record(const void*, DeviceType, uintptr_t event, uintptr_t stream) {
  if (!follows()) return;
  Lock lock;
  auto* call = running();
  if (call && !call->effects->collective.empty() && tracker().stream_of(stream) == call->over) tracker().issue(*call);
  tracker().recorded(event, stream);
}

void on_wait(const void*, DeviceType, uintptr_t event, uintptr_t stream) {
  if (!follows()) return;
  int64_t site = call_site();
  Lock lock;
  tracker().waits(event, stream, site);
  auto* call = running();
  if (call && !call->effects->collective.empty() && tracker().stream_of(stream) != call->stream) call->over = tracker().stream_of(stream);
}

void on_event_synchronization(const void*, DeviceType, uintptr_t event) {
  if (!follows()) return;
  int64_t site = call_site();
  Lock lock;
  before_wait();
  tracker().host_waits_for(event, How::kSynchronize, site);
}

void on_stream_synchronization(const void*, DeviceType, uintptr_t stream) {
  if (!follows()) return;
  int64_t site = call_site();
  Lock lock;
  before_wait();
  tracker().host_waits(tracker().stream_of(stream), running() ? running()->how : How::kSynchronize, site);
}

void on_device_synchronization(const void*, DeviceType) {
  if (!follows()) return;
  int64_t site = call_site();
  Lock lock;
  before_wait();
  tracker().host_waits_for_all(site);
}

// The bytes that the current GPU's allocator ever got from the driver; 0 before torch 2.9, where it has another interface.
int64_t ever_reserved() {
#if STREAMRACE_TORCH_SINCE(9)
  auto device = c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice();
  return c10::getDeviceAllocator(c10::kCUDA)->getDeviceStats(device.index()).reserved_bytes[0].allocated;  // 0: of all pools
#else
  return 0;
#endif
}

void on_allocation(const void*, DeviceType, uintptr_t data) {
  if (!follows()) return;
  int64_t site = call_site();
  uintptr_t stream = tracker().current();
  int64_t reserved = ever_reserved();
  Lock lock;
  tracker().made(data, tracker().stream_of(stream), site, reserved);
}

void on_free(const void*, DeviceType, uintptr_t data) {
  if (!follows()) return;
  Lock lock;
  tracker().freed(data);
}

void on_event_deletion(const void*, DeviceType, uintptr_t event) {
  if (!follows()) return;
  Lock lock;
  tracker().event_gone(event);
}

void nothing() {}

// A table of virtual functions in which torch's ten stand at their places; the others are an interpreter's, which it never
// calls of this object. So no release of torch that adds one to the interpreter's needs another recorder. The place is
// what a pointer to a virtual member function holds (Itanium C++ ABI, 2.3).
class Listener {
 public:
  Listener() {
    slots_.fill(reinterpret_cast<void*>(nothing));
    put(&Table::trace_gpu_event_record, on_record);
    put(&Table::trace_gpu_event_wait, on_wait);
    put(&Table::trace_gpu_event_synchronization, on_event_synchronization);
    put(&Table::trace_gpu_stream_synchronization, on_stream_synchronization);
    put(&Table::trace_gpu_device_synchronization, on_device_synchronization);
    put(&Table::trace_gpu_memory_allocation, on_allocation);
    put(&Table::trace_gpu_memory_deallocation, on_free);
    put(&Table::trace_gpu_event_deletion, on_event_deletion);
  }

  const c10::impl::PyInterpreter* interpreter() const { return &interpreter_; }

 private:
  std::array<void*, 256> slots_;
  void** object_ = slots_.data();  // an object with nothing but the pointer to its table
  c10::impl::PyInterpreter interpreter_{reinterpret_cast<const Table*>(&object_)};

  template <typename Member, typename Function>
  void put(Member member, Function function) {
    uintptr_t word = 0;
    std::memcpy(&word, &member, sizeof word);
#if !defined(__aarch64__)
    word -= 1;  // there this bit tells that the function is virtual; on ARM another word does
#endif
    slots_.at(word / sizeof(void*)) = reinterpret_cast<void*>(function);
  }
};

const Listener& listener() {
  static auto* one = new Listener;
  return *one;
}

}  // namespace

bool others_listen() {
  const auto* now = GPUTrace::get_trace();
  return now != nullptr && now != listener().interpreter();
}

void listen_to_order() {
  GPUTrace::gpuTraceState.store(listener().interpreter(), std::memory_order_release);
  GPUTrace::haveState = true;
}

void stop_listening_to_order() {
  GPUTrace::gpuTraceState.store(nullptr, std::memory_order_release);
  GPUTrace::haveState = false;
}

}  // namespace simgpu
