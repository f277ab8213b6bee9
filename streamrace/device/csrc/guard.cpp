// Implements streams and events for torch's own code: autograd's engine records and waits through this guard, so
// the trace has the order that it creates.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "allocator.h"
#include "callsite.h"
#include "capture.h"
#include "gpu_trace.h"

namespace simgpu {

int (*event_overridden)(int, int64_t) = nullptr;

namespace {

// Checks whether an override replaces a wait here (streamrace/device/overrides.py). To be called without the lock.
bool overridden(bool waits, int64_t stream) { return event_overridden && python_alive && event_overridden(waits, stream); }

struct Event {
  Marker marker;
  c10::DeviceIndex of = 0;  // the device that recorded it first
  bool timed = false;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }

  c10::Device exchangeDevice(c10::Device to) const override {
    c10::Device before = getDevice();
    setDevice(to);
    return before;
  }
  c10::Device getDevice() const override { return {c10::kCUDA, static_cast<c10::DeviceIndex>(device().chosen())}; }
  void setDevice(c10::Device to) const override {
    if (to.index() >= device().count) no_device();
    uncheckedSetDevice(to);
  }
  [[noreturn]] static void no_device() {
    auto told = c10::str("CUDA error: invalid device ordinal (streamrace: there ", device().count == 1 ? "is 1 simulated GPU" : c10::str("are ", device().count, " simulated GPUs"),
                         "; --gpus gives a process more)");
#if STREAMRACE_TORCH_SINCE(8)
    throw c10::AcceleratorError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, 101, told);  // cudaErrorInvalidDevice
#else
    TORCH_CHECK(false, told);
#endif
  }
  void uncheckedSetDevice(c10::Device to) const noexcept override {
    if (to.index() >= 0) device().choose(to.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(device().count); }

  // A device that this process does not use has only its default stream.
  c10::Stream stream(c10::Device of, int64_t number) const {
    return c10::Stream(c10::Stream::UNSAFE, of, device().foreign(of.index()) ? 0 : number);
  }
  c10::Device named(c10::Device of) const { return of.index() < 0 ? getDevice() : of; }
  c10::Stream getStream(c10::Device of) const noexcept override {
    of = named(of);
    return stream(of, device().foreign(of.index()) ? 0 : device().current(of.index()));
  }
  c10::Stream getDefaultStream(c10::Device of) const override {
    of = named(of);
    return stream(of, device().foreign(of.index()) ? 0 : device().default_stream(of.index()));
  }
  c10::Stream fresh(c10::Device of, bool high) const {
    Lock lock;
    of = named(of);
    check(of.index());
    return stream(of, device().next_stream(of.index(), high));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device of, bool high) const override { return fresh(of, high); }
  c10::Stream getNewStream(c10::Device of, int priority) const override { return fresh(of, priority < 0); }
  c10::Stream exchangeStream(c10::Stream to) const noexcept override {
    c10::Stream before = getStream(to.device());
    if (!device().foreign(to.device_index())) device().current(to.device_index()) = device().number_of(to);
    return before;
  }
  void check(c10::DeviceIndex of) const {
    if (device().foreign(of)) device().bind(of);  // raises an error
  }
  void* getStreamNativeHandle(const c10::Stream one) const OVERRIDE_SINCE_11 { return reinterpret_cast<void*>(one.id()); }

  void record(void** event, const c10::Stream& on, const c10::DeviceIndex, const c10::EventFlag flag) const override {
    Lock lock;
    check(on.device_index());
    bool fresh = !*event;
    if (fresh) *event = new Event{{}, on.device_index()};
    auto address = reinterpret_cast<uintptr_t>(*event);
    if (fresh) tell(&Told::trace_gpu_event_creation, address);
    auto* one = static_cast<Event*>(*event);
    TORCH_CHECK(one->of == on.device_index(), "Event device ", int{one->of}, " does not match recording stream's device ", int{on.device_index()}, ".");
    one->marker = device().record(device().number_of(on));
    one->timed = flag == c10::EventFlag::BACKEND_DEFAULT;
    tell(&Told::trace_gpu_event_record, address, device().number_of(on));
  }
  void block(void* event, const c10::Stream& on) const override {
    if (!event || overridden(true, device().number_of(on))) return;  // never recorded: no wait
    int64_t site = call_site();
    Lock lock;
    check(on.device_index());
    device().wait(device().number_of(on), static_cast<Event*>(event)->marker, site);
    tell(&Told::trace_gpu_event_wait, reinterpret_cast<uintptr_t>(event), device().number_of(on));
  }
  bool queryEvent(void* event) const override {
    if (!event) return true;
    int64_t site = call_site();
    Lock lock;
    return device().query(static_cast<Event*>(event)->marker, site);
  }
  void synchronizeEvent(void* event) const override {
    if (!event || overridden(false, Device::current())) return;
    int64_t site = call_site();
    Lock lock;
    tell(&Told::trace_gpu_event_synchronization, reinterpret_cast<uintptr_t>(event));
    device().host_wait(static_cast<Event*>(event)->marker, How::kSynchronize, site);
  }
  // Called by torch's futures for the streams on which their callbacks run.
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& on) const override {
    Lock lock;
    if (Block* block = block_of(data)) record_stream(*block, device().number_of(on));
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    if (!event) return;
    Lock lock;
    tell(&Told::trace_gpu_event_deletion, reinterpret_cast<uintptr_t>(event));
    delete static_cast<Event*>(event);
  }
  double elapsedTime(void* from, void* to, const c10::DeviceIndex) const override {
    Lock lock;
    TORCH_CHECK(from && to, "Both events must be recorded before calculating elapsed time.");
    TORCH_CHECK(static_cast<Event*>(from)->of == static_cast<Event*>(to)->of, "CUDA error: invalid resource handle (the events are of two devices)");
    auto &first = static_cast<Event*>(from)->marker.instant, &last = static_cast<Event*>(to)->marker.instant;
    TORCH_CHECK(timeline().passed(first) && timeline().passed(last),
                "CUDA error: device not ready (synchronize the events before asking for the time between them)");
    first.settle(), last.settle();
    return static_cast<double>(last.known - first.known) / 1e6;
  }

  bool isStreamCapturing(const c10::Stream& one) const OVERRIDE_SINCE_13 {
    Lock lock;
    return captures().of(device().number_of(one)) != nullptr;
  }
  bool queryStream(const c10::Stream& one) const override {
    if (device().foreign(one.device_index())) return true;
    int64_t site = call_site();
    Lock lock;
    captures().refuse_synchronize(device().number_of(one));
    return device().query(device().record(device().number_of(one)), site);
  }
  void synchronizeStream(const c10::Stream& one) const override {
    if (device().foreign(one.device_index())) return;
    int64_t site = call_site();
    Lock lock;
    device().synchronize(device().number_of(one), How::kSynchronize, site);
  }
  void synchronizeDevice(const c10::DeviceIndex of) const OVERRIDE_SINCE_6 {
    if (device().foreign(of)) return;
    int64_t site = call_site();
    Lock lock;
    device().synchronize(site, of);
  }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

}  // namespace
}  // namespace simgpu
