// The events by which torch's profiler times CUDA's work without CUPTI: here, the device's virtual times. They are read
// off the clock, so a profile takes no time, orders nothing and is not in the trace.
#include <torch/csrc/profiler/stubs/base.h>

#include <chrono>

#include "device.h"
#include "lock.h"
#include "timeline.h"

namespace simgpu {
namespace {

using Marked = torch::profiler::impl::ProfilerVoidEventStub;

struct Profiler final : torch::profiler::impl::ProfilerStubs {
  void record(c10::DeviceIndex* index, Marked* event, int64_t* host_ns) const override {
    Lock lock;
    if (index) *index = static_cast<c10::DeviceIndex>(device().index);
    *event = std::make_shared<Instant>(timeline().position(Device::current()));
    if (host_ns) *host_ns = std::chrono::system_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  }
  // In microseconds. A collective at which other ranks have not arrived yet counts up to its earliest end.
  float elapsed(const Marked* from, const Marked* to) const override {
    Lock lock;
    auto time = [](const Marked& event) {
      auto& instant = *static_cast<Instant*>(event.get());
      return instant.settle() ? instant.known : instant.lower();
    };
    return static_cast<float>(time(*to) - time(*from)) / 1000;
  }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> look) const override { look(device().index); }
  void synchronize() const override {}
};

[[maybe_unused]] const bool registered = [] {
  static Profiler profiler;
  torch::profiler::impl::registerCUDAMethods(&profiler);
  return true;
}();

}  // namespace
}  // namespace simgpu
