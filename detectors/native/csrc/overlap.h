// Do two accesses of the same block touch a common byte? detectors/order/overlap.py, in C++.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

namespace order {

constexpr int64_t kDense = -1;  // the layout of an access that touches every byte of its range

// The layouts of a trace, each once, and the answers about pairs of them.
class Layouts {
 public:
  // `sizes` and `strides` (bytes) have the same length; nothing is negative.
  int64_t number(int64_t itemsize, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides);
  bool overlap(int64_t lo, int64_t hi, int64_t layout, int64_t other_lo, int64_t other_hi, int64_t other_layout);

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
    int64_t distance, length, layout, other_length, other_layout;
    bool operator==(const Question&) const = default;
  };
  struct Hash {
    size_t operator()(const Question& question) const;
  };

  bool strided(const Question& question) const;
  bool runs(int64_t lo, int64_t length, int64_t layout, int64_t left, int64_t right, std::vector<int64_t>& starts,
            int64_t& run) const;

  std::map<std::vector<int64_t>, int64_t> numbers_;
  std::vector<Normal> layouts_;
  std::unordered_map<Question, bool, Hash> answers_;
};

}  // namespace order
