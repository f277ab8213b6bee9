#include "timeline.h"


#include <algorithm>
#include <stdexcept>

#include "lock.h"

namespace simgpu {

constexpr double kPatienceSeconds = 0.003;

Timeline& timeline() {
  static auto* one = new Timeline;
  return *one;
}

bool Instant::settle() {
  if (open.empty()) return true;
  std::vector<WorkPtr> still;
  for (auto& work : open) {
    if (work->end < 0) still.push_back(work);
    else known = std::max(known, work->end);
  }
  open = std::move(still);
  return open.empty();
}

int64_t Instant::lower() const {
  int64_t bound = known;
  for (auto& work : open) bound = std::max(bound, work->bound());
  return bound;
}

void Instant::join(const Instant& other) {
  known = std::max(known, other.known);
  for (auto& work : other.open)
    if (std::find(open.begin(), open.end(), work) == open.end()) open.push_back(work);
}

Instant& Timeline::stream(int64_t id) {
  if (id >= static_cast<int64_t>(streams_.size())) streams_.resize(id + 1);
  return streams_[id];
}

Instant Timeline::position(int64_t id) {
  Instant& tail = stream(id);
  tail.settle();
  Instant at = tail;
  at.known = std::max(at.known, now);
  return at;
}

void Timeline::wait(int64_t id, const Instant& instant) {
  Instant& tail = stream(id);
  tail.join(instant);
  tail.settle();
}

void Timeline::push(int64_t when, int64_t seq, Effect effect) {
  ready_.push_back({when, seq, std::move(effect)});
  std::push_heap(ready_.begin(), ready_.end());
}

WorkPtr Timeline::launch(int64_t id, int64_t duration, Effect effect, int64_t& start, int64_t& end) {
  Instant& tail = stream(id);
  WorkPtr work = enqueue(tail, duration, std::move(effect), start, end);
  if (work) tail.open.assign(1, work);
  else tail.known = end;
  return work;
}

void Timeline::shadow(const Instant& instant, Effect effect) {
  int64_t start, end;
  enqueue(instant, 0, std::move(effect), start, end);
}

WorkPtr Timeline::enqueue(const Instant& tail, int64_t duration, Effect effect, int64_t& start, int64_t& end) {
  ++seq_;
  Instant free = tail;
  if (free.settle()) {
    start = std::max(now, free.known);
    end = start + duration;
    if (effect) push(end, seq_, std::move(effect));
    return nullptr;
  }
  auto work = std::make_shared<Work>();
  work->seq = seq_;
  work->issued = now;
  work->duration = duration;
  work->effect = std::move(effect);
  work->start = free.known;
  work->lower = std::max(free.lower(), now) + duration;
  work->waits_for = free.open;
  open_.push_back(work);
  start = end = -1;
  return work;
}

WorkPtr Timeline::collective(int64_t id, WorkPtr work) {
  work->seq = ++seq_;
  work->issued = now;
  work->collective = true;
  Instant &tail = stream(id), &before = groups_[work->group];
  Instant free = tail;
  free.join(before);  // one communicator's kernels run in the order of issue, on any streams
  free.settle();
  work->waits_for = free.open;
  work->lower = std::max(free.lower(), now) + work->late;
  if (work->members.size() == 1 && free.open.empty()) {
    settle(*work, std::max(free.known, now) + work->late);
  } else {
    work->start = free.known;
    open_.push_back(work);
    open_collectives_.push_back(work);
    receive(0.0);
    progress();
  }
  if (work->end >= 0) tail.known = work->end, tail.open.clear();
  else tail.open.assign(1, work);
  before = tail;
  return work;
}

// -- requests of the host -----------------------------------------------------------------------

void Timeline::synchronize(Instant instant) {
  while (!instant.settle()) {
    // As `instant` is open, all effects before the earliest open collective precede it.
    if (!take_effects(nullptr) && !raise_bounds()) wait_for_others(std::max(now, instant.lower()), true);
  }
  now = std::max(now, instant.known);
  catch_up();
}

bool Timeline::passed(Instant instant) {
  while (!instant.settle()) {
    raise_bounds();
    if (instant.lower() > now) return false;
    take_effects(&now);
    if (!instant.settle() && !raise_bounds() && instant.lower() <= now) wait_for_others(now);
  }
  return instant.known <= now;
}

void Timeline::catch_up() {
  while (!take_effects(&now)) wait_for_others(now);
}

void Timeline::catch_up_if_free() {
  if (ready_.empty() || ready_.front().when > now) return;
  take_effects(&now);
}

void Timeline::drain() {
  Instant last;
  for (int64_t id = 0; id < streams(); ++id) last.join(position(id));
  synchronize(last);
  while (!ready_.empty()) {
    now = std::max(now, ready_.front().when);
    catch_up();
  }
}

// -- the engine ---------------------------------------------------------------------------------

void Timeline::settle(Work& work, int64_t free) {
  work.start = std::max(work.issued, free);
  work.end = work.lower = work.start + work.duration;
  work.waits_for.clear();
  if (work.read) push(work.start, work.seq, std::move(work.read));
  if (work.effect) push(work.end, work.seq, std::move(work.effect));
  work.read = work.effect = nullptr;
}

void Timeline::progress() {
  std::vector<WorkPtr> still;
  for (auto& work : open_) {  // in order of issue, so dependencies come first
    int64_t free = work->start;
    std::vector<WorkPtr> waits;
    for (auto& other : work->waits_for) {
      if (other->end < 0) waits.push_back(other);
      else free = std::max(free, other->end);
    }
    if (!waits.empty()) {
      work->start = free;
      work->waits_for = std::move(waits);
      still.push_back(work);
    } else if (!work->collective) {
      settle(*work, free);
    } else if (!meet(*work, free)) {
      still.push_back(work);
    }
  }
  open_ = std::move(still);
  open_collectives_.clear();
  for (auto& work : open_)
    if (work->collective) open_collectives_.push_back(work);
}

bool Timeline::meet(Work& work, int64_t free) {
  if (work.arrival < 0) {
    work.arrival = std::max(free, work.issued) + work.late;
    work.start = free;
    work.waits_for.clear();
    if (work.members.size() > 1) {
      if (!exchange.post) throw std::runtime_error("streamrace: a collective of several ranks needs an exchange between them");
      exchange.post(work.group, work.number, work.members.data(), static_cast<int>(work.members.size()), work.arrival);
    }
  }
  auto found = arrivals_.find({work.group, work.number});
  size_t here = found == arrivals_.end() ? 0 : found->second.size();
  if (here + 1 < work.members.size()) return false;
  int64_t last = work.arrival;
  if (found != arrivals_.end()) {
    for (auto& [rank, time] : found->second) last = std::max(last, time);
    arrivals_.erase(found);
  }
  settle(work, last);
  return true;
}

int64_t Timeline::earliest_start(Work& work) {
  int64_t bound = std::max(work.arrival, work.lower);
  auto found = arrivals_.find({work.group, work.number});
  for (int member : work.members) {
    if (member == rank) continue;
    if (found != arrivals_.end()) {
      auto known = found->second.find(member);
      if (known != found->second.end()) {
        bound = std::max(bound, known->second);
        continue;
      }
    }
    auto floor = floors_.find(member);
    if (floor != floors_.end()) bound = std::max(bound, floor->second);
  }
  return work.lower = bound;
}

// Returns whether the earliest open collective starts later than was known: effects may precede it that did not.
bool Timeline::raise_bounds() {
  int64_t before = earliest_bound();
  for (auto& work : open_) {
    int64_t start = std::max(work->issued, work->start);
    for (auto& other : work->waits_for) start = std::max(start, other->bound());
    if (work->collective) {
      work->lower = std::max(work->lower, start + work->late);
      earliest_start(*work);
    } else {
      work->lower = start + work->duration;
    }
  }
  return earliest_bound() > before;
}

int64_t Timeline::earliest_bound() const {
  int64_t bound = INT64_MAX;
  for (auto& work : open_collectives_) bound = std::min(bound, work->lower);
  return bound;
}

// Takes effects up to `limit` (null: up to open work). Returns false if open work precedes it. With null it
// returns after each message, as that may have changed what is open.
bool Timeline::take_effects(const int64_t* limit) {
  while (true) {
    bool bounded = !open_collectives_.empty(), taken = false;
    int64_t bound = INT64_MAX;
    for (auto& work : open_collectives_) bound = std::min(bound, earliest_start(*work));
    while (!ready_.empty() && (!limit || ready_.front().when <= *limit) && (!bounded || ready_.front().when < bound)) {
      std::pop_heap(ready_.begin(), ready_.end());
      Ready next = std::move(ready_.back());
      ready_.pop_back();
      if (next.when < effective) throw std::logic_error("streamrace: an effect comes after a later one");
      effective = next.when;
      next.effect();
      taken = true;
    }
    if (!bounded || (limit && bound > *limit)) return true;
    if (receive(0.0)) {
      progress();
      if (!limit) return true;
    } else if (!taken) {
      return false;
    }
  }
}

bool Timeline::receive(double timeout) {
  if (exchange.receive) {
    bool any = broken.empty() && exchange.receive(timeout) != 0;
    if (!broken.empty()) throw std::runtime_error(broken);
    return any;
  }
  if (timeout < 0) throw std::runtime_error("streamrace: waits for another rank, but there is none");
  return false;
}

// Before it blocks, a rank promises that no collective at which it has not arrived starts earlier than possible:
// ranks that wait in a circle release each other by this (Chandy and Misra's null messages). A promise wakes
// all other ranks, so it is sent only if no message arrives for a moment. Results do not depend on it.
bool Timeline::attend(int64_t resume) {
  if (receive(kPatienceSeconds)) {
    progress();
    return true;
  }
  if (raise_bounds()) return true;  // another rank may wait for one of these effects
  int64_t floor = resume + 1;
  for (auto& work : open_collectives_)
    if (work->arrival < 0) floor = std::min(floor, work->lower);
  if (exchange.promise) exchange.promise(floor);
  return false;
}

// `for_arrivals`: only these end the host's wait, and if all ranks wait so, none can go on.
void Timeline::wait_for_others(int64_t resume, bool for_arrivals) {
  if (attend(resume)) return;
  if (for_arrivals && exchange.stand && !waiting_threads()) exchange.stand();
  receive(-1);
  progress();
}

void Timeline::arrived(int64_t group, int64_t number, int from, int64_t time) { arrivals_[{group, number}][from] = time; }

void Timeline::promised(int from, int64_t floor) { floors_[from] = std::max(floors_[from], floor); }

}  // namespace simgpu
