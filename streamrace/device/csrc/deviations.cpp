#include "deviations.h"

#include <cmath>

namespace simgpu {

Deviations& deviations() {
  static auto* one = new Deviations;
  return *one;
}

namespace {

// SplitMix64 (Steele, Lea and Flood 2014): maps each input to a different number.
uint64_t mixed(uint64_t value) {
  value += 0x9E3779B97F4A7C15ull;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
  return value ^ (value >> 31);
}

}  // namespace

void Deviations::never() { *this = Deviations(); }

void Deviations::jitter(double percent, int64_t seed, int64_t rank) {
  percent_ = percent;
  seed_ = mixed(mixed(static_cast<uint64_t>(seed)) + static_cast<uint64_t>(rank));
}

int64_t Deviations::delay(int64_t stream, int64_t kernel, int64_t occurrence, Change change) {
  auto number = static_cast<int64_t>(met_.size());
  met_.push_back(false);
  counted_[{stream, kernel}].delays.emplace(occurrence, std::pair{number, change});
  return number;
}

Deviations::Change Deviations::next(int64_t stream, int64_t kernel, int64_t op, int64_t duration) {
  Change change;
  if (percent_ > 0) {
    double drawn = static_cast<double>(mixed(seed_ + static_cast<uint64_t>(op)) >> 11) * 0x1p-53;  // in [0, 1)
    change.longer = std::llround(static_cast<double>(duration) * drawn * percent_ / 100);
  }
  if (auto told = operations_.find(op); told != operations_.end()) change.late += told->second.late, change.longer += told->second.longer;
  if (counted_.empty()) return change;
  auto found = counted_.find({stream, kernel});
  if (found == counted_.end()) return change;
  auto [from, to] = found->second.delays.equal_range(++found->second.count);
  for (; from != to; ++from) {
    auto& [number, more] = from->second;
    met_[number] = true;
    change.late += more.late;
    change.longer += more.longer;
  }
  return change;
}

}  // namespace simgpu
