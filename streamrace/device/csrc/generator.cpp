#include "generator.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Generator.h>

#include <algorithm>
#include <cstring>
#include <deque>

#include "capture.h"
#include "numbers.h"

namespace simgpu {

static c10::Device on(int64_t index) { return {c10::kCUDA, static_cast<c10::DeviceIndex>(index)}; }

Generator::Generator(int64_t index, std::shared_ptr<State> state)
    : GeneratorImpl(on(index), c10::DispatchKeySet(c10::DispatchKey::CUDA)), state_(std::move(state)) {}

at::Generator numbers_at(const GeneratorState& state) { return numbers_at(state.seed, state.offset); }

uint64_t offset_of(int64_t count) {
  // calc_execution_policy (ATen/native/cuda/DistributionTemplates.h) on the GPU of streamrace/device/cuda.py: as many
  // blocks of 256 threads as 108 multiprocessors hold; each thread takes four numbers at a time.
  constexpr int64_t kBlock = 256, kBlocks = 108 * (2048 / kBlock), kUnroll = 4;
  int64_t blocks = std::min(kBlocks, (count + kBlock - 1) / kBlock);
  return count > 0 ? static_cast<uint64_t>(((count - 1) / (kBlock * blocks * kUnroll) + 1) * kUnroll) : 0;
}

at::Generator Generator::draw(int64_t count) {
  if (Graph* graph = captured()) return captures().draw(*graph, state_, count);
  auto made = numbers_at(*state_);
  state_->offset += offset_of(count);
  return made;
}

void Generator::set_current_seed(uint64_t seed) {
  if (captured()) {
    TORCH_CHECK(seed == state_->seed, "CUDAGeneratorImpl::set_current_seed can be called during stream capture only if new seed is the same as the original seed.");
    return;
  }
  *state_ = {seed, 0};
}

Graph* Generator::captured() const { return captures().of(simgpu::device().current(device_.index())); }

static void refuse_in_capture(const char* call) {
  TORCH_CHECK(!captures().of(Device::current()), "Cannot call CUDAGeneratorImpl::", call, " during CUDA graph capture. If you need this call to be captured, please file an issue.");
}

void Generator::set_offset(uint64_t offset) {
  refuse_in_capture("set_offset");
  set_offset_here(offset);
}

void Generator::set_offset_here(uint64_t offset) {
  TORCH_CHECK(offset % 4 == 0, "offset must be a multiple of 4");
  Graph* graph = captured();
  (graph ? graph->drawn[state_] : state_->offset) = offset;
}

uint64_t Generator::get_offset() const {
  refuse_in_capture("get_offset");
  return state_->offset;
}

uint64_t Generator::seed() {
  refuse_in_capture("seed");
  set_current_seed(c10::detail::getNonDeterministicRandom(true));
  return state_->seed;
}

void Generator::set_state(const c10::TensorImpl& given) {
  at::detail::check_rng_state(given);
  auto nbytes = given.numel();
  TORCH_CHECK(nbytes == 16 || nbytes == 8, "RNG state is wrong size");
  State read;
  std::memcpy(&read.seed, given.data(), 8);
  if (nbytes == 16) std::memcpy(&read.offset, static_cast<const char*>(given.data()) + 8, 8);
  set_current_seed(read.seed);
  set_offset_here(read.offset);
}

c10::intrusive_ptr<c10::TensorImpl> Generator::get_state() const {
  auto made = at::detail::empty_cpu({16}, at::kByte);
  std::memcpy(made.data_ptr(), &state_->seed, 8);
  Graph* graph = captured();
  uint64_t offset = graph ? graph->drawn[state_] : state_->offset;
  std::memcpy(static_cast<char*>(made.data_ptr()) + 8, &offset, 8);
  return made.getIntrusivePtr();
}

void Generator::graphsafe_set_state(const c10::intrusive_ptr<c10::GeneratorImpl>& given) {
  auto* other = dynamic_cast<Generator*>(given.get());
  TORCH_CHECK(other, "Expected a CUDA Generator");
  state_ = other->state_;
}

c10::intrusive_ptr<c10::GeneratorImpl> Generator::graphsafe_get_state() const {
  return c10::make_intrusive<Generator>(int64_t{device_.index()}, state_);
}

Generator* Generator::clone_impl() const { return new Generator(device_.index(), std::make_shared<State>(*state_)); }

const at::Generator& default_generator(int64_t index) {
  static auto* all = new std::deque<at::Generator>;  // its elements keep their addresses
  auto wanted = static_cast<size_t>(index < 0 ? device().chosen() : index);
  while (all->size() <= wanted) all->push_back(at::make_generator<Generator>(static_cast<int64_t>(all->size())));
  return (*all)[wanted];
}

}  // namespace simgpu
