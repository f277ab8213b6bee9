// Virtual time: when the work that the host issues starts and ends, and the order in which it takes effect.
//
// The host has a clock. Issuing work costs it a little; the work starts when the host has issued it, its
// stream is free and all its dependencies are done. Work takes effect in order of virtual time, once the
// host's clock has passed it; ties in the order of issue.
//
// A collective starts when the last of its ranks arrives, and ranks are processes: its time, and the time
// of all work after it, stays *open* until the arrivals are known. Conservative parallel discrete-event
// simulation (Chandy and Misra 1979): an effect at time t is taken only if no open work can start before t.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace simgpu {

using Effect = std::function<void()>;
struct Work;
using WorkPtr = std::shared_ptr<Work>;

// Work whose end was not known when it was issued. Times are virtual nanoseconds, -1: open.
struct Work {
  static constexpr int64_t kOpen = -1, kUnknown = -2;  // unknown: no clock ever tells
  int64_t seq = 0, issued = 0, duration = 0;
  int64_t start = kOpen;  // while open: the known part of it
  int64_t end = kOpen;
  int64_t lower = 0;  // it does not end (an open collective: start) before this
  Effect effect;
  std::vector<WorkPtr> waits_for;
  bool collective = false;
  Effect read;  // a collective's: at its start
  int64_t group = 0, number = 0, late = 0, arrival = -1;
  double alone = -1;  // its duration if nothing delays it; over `link`, a name
  int64_t link = 0, call = 0;  // call: what the ranks must agree on, a name
  std::vector<int> members;
  int64_t bound() const { return end >= 0 ? end : collective ? lower + duration : lower; }
};

// A point in time: the latest of a known time and the ends of some open work.
struct Instant {
  int64_t known = 0;
  std::vector<WorkPtr> open;
  bool settle();
  int64_t lower() const;
  void join(const Instant& other);
};

// The functions by which ranks send each other arrivals; set by Python (simgpu_exchange). Arrivals and promises
// come in through Timeline::arrived and ::promised, called by `receive`.
struct Exchange {
  void (*post)(int64_t group, int64_t number, const int* members, int count, int64_t arrival) = nullptr;
  int (*receive)(double timeout_s) = nullptr;  // negative: no time limit. 1 if there was any message
  void (*promise)(int64_t floor) = nullptr;
  void (*stand)() = nullptr;  // the host waits, until other ranks arrive
};

class Timeline {
 public:
  int64_t now = 0;        // the host's clock
  int64_t effective = 0;  // the time of the last effect taken; never decreases
  int rank = 0;
  Exchange exchange;
  std::string broken;  // why this rank's collectives cannot go on: waits for other ranks raise it

  Instant& stream(int64_t id);
  Instant position(int64_t id);  // when all work given to the stream so far is done, at least now
  void wait(int64_t stream, const Instant& instant);
  // Returns the work if its end is open; else null, and `start` and `end` are known.
  WorkPtr launch(int64_t stream, int64_t duration, Effect effect, int64_t& start, int64_t& end);
  WorkPtr collective(int64_t stream, WorkPtr work);
  void shadow(const Instant& instant, Effect effect);  // takes no stream's time

  void synchronize(Instant instant);
  bool passed(Instant instant);
  void catch_up();         // up to the host's clock, waiting for other ranks where needed
  void catch_up_if_free(); // the same as far as no open work precedes
  void drain();
  bool attend(int64_t resume);  // answers other ranks for a moment; false: nothing changed, and they may go to `resume`
  int64_t streams() const { return static_cast<int64_t>(streams_.size()); }

  void arrived(int64_t group, int64_t number, int rank, int64_t time);
  void promised(int rank, int64_t floor);

 private:
  struct Ready {
    int64_t when, seq;
    Effect effect;
    bool operator<(const Ready& other) const {  // a heap's top is its largest
      return when != other.when ? when > other.when : seq > other.seq;
    }
  };
  std::vector<Instant> streams_;
  std::vector<Ready> ready_;
  std::vector<WorkPtr> open_, open_collectives_;
  std::map<std::pair<int64_t, int64_t>, std::map<int, int64_t>> arrivals_;
  std::map<int, int64_t> floors_;
  std::map<int64_t, Instant> groups_;  // when the last collective of each ends
  int64_t seq_ = 0;

  WorkPtr enqueue(const Instant& tail, int64_t duration, Effect effect, int64_t& start, int64_t& end);
  void push(int64_t when, int64_t seq, Effect effect);
  void settle(Work& work, int64_t free);
  void progress();
  bool meet(Work& work, int64_t free);
  int64_t earliest_start(Work& work);
  bool raise_bounds();
  int64_t earliest_bound() const;
  bool take_effects(const int64_t* limit);
  void wait_for_others(int64_t resume, bool for_arrivals = false);
  bool receive(double timeout);
};

Timeline& timeline();

}  // namespace simgpu
