// Random numbers of the device. A generator's state is CUDA's (ATen/cuda/CUDAGeneratorImpl.h): a seed and an offset,
// which each draw increases by a multiple of 4, by as much as CUDA's kernels do. The numbers are not Philox's: a draw
// uses a CPU generator created from seed and offset alone. So equal states give equal numbers, whatever was drawn
// before, on any rank; and the first draw after a seed gives the numbers that the CPU draws first.
#pragma once

#include <ATen/CPUGeneratorImpl.h>

#include <memory>

namespace simgpu {

struct Graph;

struct GeneratorState {
  uint64_t seed = c10::default_rng_seed_val, offset = 0;
};

struct Generator final : c10::GeneratorImpl {
  using State = GeneratorState;
  explicit Generator(int64_t index, std::shared_ptr<State> state = std::make_shared<State>());

  // Returns the CPU's generator for one draw of `count` numbers, and advances this one.
  at::Generator draw(int64_t count);
  const std::shared_ptr<State>& shared_state() const { return state_; }

  // While a stream is captured, the state on its thread is that of the capture: the offset counts from the graph's beginning.
  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override { return state_->seed; }
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  void graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& state) override;
  c10::intrusive_ptr<c10::GeneratorImpl> graphsafe_get_state() const override;

 private:
  Generator* clone_impl() const override;
  void set_offset_here(uint64_t offset);
  Graph* captured() const;  // of which its draws are part
  std::shared_ptr<State> state_;  // shared with generators that were obtained "graphsafe"
};

// Returns the CPU's generator for the draw that this state comes to, and by how much a draw of `count` numbers advances it.
at::Generator numbers_at(const GeneratorState& state);
uint64_t offset_of(int64_t count);

// Returns the generator of a device; negative: of the current device.
const at::Generator& default_generator(int64_t index = -1);

}  // namespace simgpu
