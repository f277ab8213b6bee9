// Random numbers of the device: torch's CPU generator under another device's name, so that a program draws
// the numbers that it would draw on the CPU. (CUDA's Philox gives other numbers for the same seed.)
#pragma once

#include <ATen/CPUGeneratorImpl.h>

namespace simgpu {

struct Generator final : c10::GeneratorImpl {
  explicit Generator(int64_t index);
  Generator(int64_t index, at::Generator inner);
  at::Generator inner;  // the CPU's

  void set_current_seed(uint64_t seed) override { inner.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { inner.set_offset(offset); }
  uint64_t get_offset() const override { return inner.get_offset(); }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override { return inner.seed(); }
  void set_state(const c10::TensorImpl& state) override { inner.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return inner.unsafeGetGeneratorImpl()->get_state(); }

 private:
  Generator* clone_impl() const override;
};

const at::Generator& default_generator();

}  // namespace simgpu
