// Vector clocks of streams and hosts: detectors/order/clocks.py, in C++. The words are explained there.
//
// One thing is simpler: a vector that is shorter than there are threads knows nothing of the later ones, so none is
// ever lengthened.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "counted.h"

namespace order {

struct Vector : Counted {
  std::vector<int64_t> epochs;

  int64_t operator[](int64_t thread) const {
    return thread < static_cast<int64_t>(epochs.size()) ? epochs[static_cast<size_t>(thread)] : 0;
  }
};

// Never changed once another can see it.
using Known = Ref<Vector>;

// Whether `right` knows anything that `left` does not.
inline bool adds(const Vector& left, const Vector& right) {
  for (size_t at = 0; at < right.epochs.size(); ++at)
    if (right.epochs[at] > left[static_cast<int64_t>(at)]) return true;
  return false;
}

// The least clock that knows what both know.
inline Known join(const Vector& left, const Vector& right) {
  Known joined = make<Vector>();
  const Vector& longer = left.epochs.size() >= right.epochs.size() ? left : right;
  const Vector& other = &longer == &left ? right : left;
  joined->epochs = longer.epochs;
  for (size_t at = 0; at < other.epochs.size(); ++at)
    joined->epochs[at] = std::max(joined->epochs[at], other.epochs[at]);
  return joined;
}

inline void set(Vector& vector, int64_t thread, int64_t epoch) {
  if (static_cast<int64_t>(vector.epochs.size()) <= thread) vector.epochs.resize(static_cast<size_t>(thread) + 1, 0);
  vector.epochs[static_cast<size_t>(thread)] = epoch;
}

// A position of a thread: its epoch, and what it knew then.
struct Snapshot {
  int64_t thread;
  int64_t epoch;
  Known known;
};

struct HostClock {
  Known known = make<Vector>();
  int64_t version = 0;

  // The position is new to it: a marker of what it knows is forgotten.
  void wait(const Snapshot& position) {
    known = join(*known, *position.known);
    set(*known, position.thread, position.epoch);
    ++version;
  }
};

struct StreamClock {
  int64_t thread;
  int64_t epoch = 0;
  int64_t done = 0;
  int64_t host_version = 0;
  Known known = make<Vector>();
  std::deque<std::pair<int64_t, int64_t>> unforgotten;  // (epoch, marker) of live markers, oldest first

  explicit StreamClock(int64_t number) : thread(number) {}

  // Host to stream.
  void enqueue(const HostClock& host) {
    if (host_version == host.version) return;
    host_version = host.version;
    if (adds(*known, *host.known)) {
      known = join(*known, *host.known);
      ++epoch;
    }
  }

  Snapshot position() const { return {thread, epoch, known}; }

  // Stream to stream.
  void wait(const Snapshot& position) {
    if (position.thread == thread || (*known)[position.thread] >= position.epoch) return;
    known = join(*known, *position.known);
    set(*known, position.thread, position.epoch);
    ++epoch;
  }

  // What a collective brought.
  void learn(const Known& brought) {
    known = brought;
    ++epoch;
  }
};

}  // namespace order
