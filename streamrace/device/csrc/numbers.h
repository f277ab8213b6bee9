// The numbers that a draw gets, of the seed and the offset of the device's generator (generator.h) alone.
#pragma once

#include <ATen/CPUGeneratorImpl.h>

namespace simgpu {

// Vigna's splitmix64, which seeds states of other generators: states from seeds that differ in a bit are unrelated.
inline uint64_t next(uint64_t& state) {
  uint64_t mixed = state += 0x9E3779B97F4A7C15ull;
  mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ull;
  mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBull;
  return mixed ^ (mixed >> 31);
}

// Returns the CPU's generator for one draw.
inline at::Generator numbers_at(uint64_t seed, uint64_t offset) {
  auto made = at::detail::createCPUGenerator(seed);
  if (offset != 0) {
    at::mt19937_data_pod filled{};
    filled.seed_ = seed;
    filled.seeded_ = true;
    filled.left_ = 1;  // the first number is from the next state
    uint64_t mix = seed;
    mix = next(mix) ^ offset;
    for (auto& word : filled.state_) word = static_cast<uint32_t>(next(mix));
    at::mt19937 engine;
    engine.set_data(filled);
    static_cast<at::CPUGeneratorImpl*>(made.unsafeGetGeneratorImpl())->set_engine(engine);
  }
  return made;
}

}  // namespace simgpu
