// The races as Python gets them: numbers alone, so that a race that occurs often costs little.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <vector>

namespace order {

constexpr int64_t kRead = 0, kWrite = 1, kFree = 2;  // accesses

// Where a side of a race comes from: an access, and numbers of texts.
struct Side {
  int64_t kernel, access, stream, issuer, frames;
};
struct Moment {
  int64_t op, step, micro_batch, phase, start, end;
};

class Reports {
 public:
  using Pair = std::array<int64_t, 11>;  // the fields of two sides, and the stack of the allocation (-1: none)
  // For each occurrence: pair, rank, block, lo, hi, slack, and the fields of two moments.
  std::vector<int64_t> found;
  // For each name of raced bytes: pair, kind and name, as texts.
  std::vector<int64_t> named;

  bool empty() const { return found.empty() && named.empty(); }

  int64_t number(const Side& first, const Side& second, int64_t allocated) {
    const Pair pair{first.kernel,  first.access,  first.stream,  first.issuer,  first.frames, second.kernel,
                    second.access, second.stream, second.issuer, second.frames, allocated};
    const auto [entry, fresh] = numbers_.try_emplace(pair, static_cast<int64_t>(pairs_.size()));
    if (fresh) pairs_.push_back(pair);
    return entry->second;
  }
  const Pair& pair(int64_t number) const { return pairs_[static_cast<size_t>(number)]; }

  void add(int64_t pair, int64_t rank, int64_t block, int64_t lo, int64_t hi, int64_t slack, const Moment& first,
           const Moment& second) {
    found.insert(found.end(), {pair, rank, block, lo, hi, slack});
    for (const Moment& side : {first, second})
      found.insert(found.end(), {side.op, side.step, side.micro_batch, side.phase, side.start, side.end});
  }

 private:
  std::map<Pair, int64_t> numbers_;
  std::vector<Pair> pairs_;
};

}  // namespace order
