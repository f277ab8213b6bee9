// All ranks: detectors/order/happens_before.py, in C++.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "rank.h"

namespace order {

class HappensBefore {
 public:
  explicit HappensBefore(PyObject* parts);

  void feed(int64_t rank, PyObject* records, PyObject* found);
  void finish(PyObject* found);
  bool waits(int64_t rank) const;
  void settle();
  int64_t live_state() const;
  int64_t work() const { return shared_.layouts.work; }

 private:
  // A rank, what is left of its records, and the collective it waits in.
  struct Follower {
    Rank rank;
    std::deque<Object> queue;  // iterators
    Ref<OpenCollective> waits_in;
    Follower(int64_t number, Shared& shared) : rank(number, shared) {}
  };
  class Busy;

  Shared shared_;
  std::map<int64_t, std::unique_ptr<Follower>> followers_;
  bool finished_ = false;
  bool busy_ = false;
  int64_t asked_ = 0;  // the work that was done when Python was last asked whether it was interrupted

  // Follow the records up to the next collective. False when all are done.
  bool run(Follower& follower, PyObject* records, Arrival& arrival);
  void advance(Follower& follower);
  std::vector<Follower*> leave(const Ref<OpenCollective>& collective);
  bool hopeless(const Follower& follower) const;
};

}  // namespace order
