// Answers questions about CUDA from torch's code that does not link it. torch requests these hooks once, while it is
// imported: this library must be loaded before.
#include <ATen/detail/CUDAHooksInterface.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include "allocator.h"
#include "callsite.h"
#include "generator.h"

namespace at {

class CUDAHooks final : public CUDAHooksInterface {
 public:
  explicit CUDAHooks(CUDAHooksArgs) {}
#if STREAMRACE_TORCH_SINCE(6)
  void init() const override {}
#else
  void initCUDA() const override {}
  const Generator& getDefaultCUDAGenerator(DeviceIndex index) const override { return simgpu::default_generator(index); }
#endif
  bool hasCUDA() const override { return true; }
  bool hasCUDART() const override { return true; }
  bool isBuilt() const OVERRIDE_SINCE_7 { return true; }
  bool isAvailable() const OVERRIDE_SINCE_7 { return true; }
  bool hasPrimaryContext(DeviceIndex index) const override { return index == simgpu::device().index || simgpu::device().uses(index); }
  DeviceIndex deviceCount() const override { return static_cast<DeviceIndex>(simgpu::device().count); }
  int getNumGPUs() const override { return simgpu::device().count; }
  DeviceIndex current_device() const override { return getCurrentDevice(); }
  DeviceIndex getCurrentDevice() const override { return c10::impl::getDeviceGuardImpl(kCUDA)->getDevice().index(); }
  void setCurrentDevice(DeviceIndex index) const override { exchangeDevice(index); }
  DeviceIndex exchangeDevice(DeviceIndex index) const override {
    return c10::impl::getDeviceGuardImpl(kCUDA)->exchangeDevice({kCUDA, index}).index();
  }
  DeviceIndex maybeExchangeDevice(DeviceIndex index) const override { return index < 0 ? getCurrentDevice() : exchangeDevice(index); }
  const Generator& getDefaultGenerator(DeviceIndex index) const OVERRIDE_SINCE_6 { return simgpu::default_generator(index); }
  Generator getNewGenerator(DeviceIndex index) const OVERRIDE_SINCE_6 {
    return make_generator<simgpu::Generator>(int64_t{index < 0 ? getCurrentDevice() : index});
  }
  Device getDeviceFromPtr(void* data) const override {
    simgpu::Lock lock;
    return {kCUDA, static_cast<DeviceIndex>(simgpu::device_of_memory(data))};
  }
  bool isPinnedPtr(const void* data) const override {
    simgpu::Lock lock;
    return simgpu::pinned_block_of(data) != nullptr;
  }
  Allocator* getPinnedMemoryAllocator() const override { return simgpu::pinned_allocator(); }
  Allocator* getCUDADeviceAllocator() const override { return simgpu::device_allocator(); }
  std::string showConfig() const override { return "a simulated GPU"; }
  void deviceSynchronize(DeviceIndex index) const override {
    int64_t site = simgpu::call_site();
    simgpu::Lock lock;
    if (!simgpu::device().foreign(index)) simgpu::device().synchronize(site, index);
  }
};

REGISTER_CUDA_HOOKS(CUDAHooks)

}  // namespace at

namespace c10d {
namespace {

// DDP's logger measures its steps: here by the host's clock, as no work of the device may depend on it.
struct StepTimer final : Timer {
  explicit StepTimer(c10::Device) {}
  void record(Event event) override {
    simgpu::Lock lock;
    getTimeRef(event) = simgpu::timeline().now;
  }
  std::optional<int64_t> measureDifference(Event from, Event to) override {
    int64_t began = getTimeRef(from), ended = getTimeRef(to);
    return began < 0 || ended < began ? std::nullopt : std::optional<int64_t>(ended - began);
  }
};
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kCUDA, StepTimer)

}  // namespace
}  // namespace c10d
