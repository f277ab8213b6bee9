// Changes of a timing to the durations that work has otherwise (streamrace/device/timing.py): single operations that
// take longer or start later, and a jitter on all. They depend only on the work issued so far, so the same program
// takes the same times again.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace simgpu {

class Deviations {
 public:
  struct Change {
    int64_t late = 0, longer = 0;  // nanoseconds
  };

  void never();
  void jitter(double percent, int64_t seed, int64_t rank);
  // Delays the n-th (from 1) operation of this kernel on this stream; returns the delay's number.
  int64_t delay(int64_t stream, int64_t kernel, int64_t occurrence, Change change);
  void delay_operation(int64_t op, Change change) { operations_[op] = change; }  // by its number in the trace
  bool met(int64_t delay) const { return met_.at(delay); }  // whether such work was issued

  // To be called once for each operation, when it is issued as number `op`.
  Change next(int64_t stream, int64_t kernel, int64_t op, int64_t duration);

 private:
  struct Counted {
    int64_t count = 0;
    std::multimap<int64_t, std::pair<int64_t, Change>> delays;  // by occurrence: the delay's number, and the change
  };
  std::map<std::pair<int64_t, int64_t>, Counted> counted_;  // by stream and kernel that have delays
  std::map<int64_t, Change> operations_;
  std::vector<bool> met_;
  double percent_ = 0;
  uint64_t seed_ = 0;
};

Deviations& deviations();

}  // namespace simgpu
