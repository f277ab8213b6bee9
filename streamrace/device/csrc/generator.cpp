#include "generator.h"

#include "device.h"

namespace simgpu {

static c10::Device on(int64_t index) { return {c10::kCUDA, static_cast<c10::DeviceIndex>(index)}; }

Generator::Generator(int64_t index) : Generator(index, at::detail::createCPUGenerator()) {}

Generator::Generator(int64_t index, at::Generator inner_)
    : GeneratorImpl(on(index), c10::DispatchKeySet(c10::DispatchKey::CUDA)), inner(std::move(inner_)) {}

Generator* Generator::clone_impl() const { return new Generator(device_.index(), inner.clone()); }

const at::Generator& default_generator() {
  static auto* one = new at::Generator(at::make_generator<Generator>(int64_t{device().index}));
  return *one;
}

}  // namespace simgpu
