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
  // `probes`: how the names of kernels begin that are no part of the program.
  explicit HappensBefore(std::string_view probes) { shared_.probes = probes; }

  // Take the bytes of more records; go_on() follows them.
  void feed(int64_t rank, std::string_view bytes);
  // Nothing more comes: go_on() follows the ranks that wait for a missing member as far as possible without it.
  void finish() { finished_ = true; }
  // Work for some milliseconds; returns whether all is done.
  bool go_on();
  bool waits(int64_t rank) const;
  void settle();
  int64_t live_state() const;
  int64_t work() const { return shared_.layouts.work; }
  Reports& reports() { return shared_.reports; }
  const std::string& text(int64_t number) const { return shared_.texts[number]; }

 private:
  // A rank, the bytes of its records, with a `reader` of the first, and the collective in which it waits.
  struct Follower {
    Rank rank;
    std::deque<std::string> queue;
    Reader reader;
    Ref<OpenCollective> waits_in;
    Follower(int64_t number, Shared& shared) : rank(number, shared) {}
  };
  Shared shared_;
  std::map<int64_t, std::unique_ptr<Follower>> followers_;
  bool finished_ = false;
  std::vector<Follower*> ready_;  // they have records left, and wait for nobody
  Follower* current_ = nullptr;

  // Follow one record of `current_`.
  void follow();
  // Give up on a collective; false where no rank waits in one.
  bool release();
  std::vector<Follower*> leave(const Ref<OpenCollective>& collective);
  bool hopeless(const Follower& follower) const;
};

}  // namespace order
