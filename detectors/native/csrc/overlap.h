// Do two accesses of the same block touch a common byte? detectors/order/overlap.py, in C++.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

namespace order {

constexpr int64_t kDense = -1;  // the layout of an access that touches every byte of its range

// The bytes that an access, or a part of it, touches. `before`: bytes of the whole access in front of the part.
struct Touched {
  int64_t lo, hi, layout;
  int64_t before = 0;
  bool operator==(const Touched&) const = default;
};

// The bytes that several accesses touch together, as disjoint ranges.
using Cover = std::vector<std::pair<int64_t, int64_t>>;

// The layouts of a trace, each once, and the answers about pairs of them.
class Layouts {
 public:
  // `sizes` and `strides` (bytes) have the same length; nothing is negative.
  int64_t number(int64_t itemsize, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides);
  bool overlap(const Touched& first, const Touched& second);
  // Add an access unless the ranges become too many; return false if all its bytes were covered already.
  bool takes(Cover& cover, const Touched& touched);
  int64_t work = 0;  // so far, of all ranks: records followed, entries visited, runs compared

 private:
  struct Dim {
    int64_t stride, size;
  };
  // The longest runs of bytes, and the dimensions that repeat them, the longest stride first.
  struct Normal {
    int64_t run;
    std::vector<Dim> dims;
  };
  struct Question {
    int64_t distance;
    Touched first, second;  // each from 0 on
    bool operator==(const Question&) const = default;
  };
  struct Hash {
    size_t operator()(const Question& question) const;
  };

  bool strided(const Question& question);
  bool runs(int64_t lo, const Touched& touched, int64_t left, int64_t right, int64_t most, std::vector<int64_t>& starts,
            int64_t& run);

  std::map<std::vector<int64_t>, int64_t> numbers_;
  std::vector<Normal> layouts_;
  std::unordered_map<Question, bool, Hash> answers_;
};

}  // namespace order
