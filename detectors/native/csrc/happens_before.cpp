#include "happens_before.h"

namespace order {
namespace {

constexpr int64_t kSlice = 1 << 20;  // of work, some milliseconds: then Ctrl-C is obeyed

}  // namespace

// While records are followed, nobody else may come in: reading them runs Python.
class HappensBefore::Busy {
 public:
  Busy(HappensBefore& order, PyObject* found) : order_(order) {
    if (order.busy_) complain(PyExc_RuntimeError, "the detector is already following records");
    order.busy_ = true;
    order.shared_.found = found;
  }
  ~Busy() {
    order_.busy_ = false;
    order_.shared_.found = nullptr;
  }

 private:
  HappensBefore& order_;
};

HappensBefore::HappensBefore(PyObject* parts) {
  if (length(parts) != kParts) complain(PyExc_ValueError, "the library is of another version");
  for (Py_ssize_t at = 0; at < kParts; ++at) shared_.parts.push_back(Object::share(item(parts, at)));
}

void HappensBefore::feed(int64_t rank, PyObject* records, PyObject* found) {
  const Busy busy(*this, found);
  if (finished_) complain(PyExc_ValueError, "the traces are finished; use a new detector");
  std::unique_ptr<Follower>& place = followers_[rank];
  if (!place) place = std::make_unique<Follower>(rank, shared_);
  Follower& follower = *place;
  follower.queue.push_back(Object::own(PyObject_GetIter(records)));
  advance(follower);
  if (!follower.queue.empty()) {  // what comes after a collective that the others have not reached
    const Object left = Object::own(PySequence_List(follower.queue.back().get()));
    follower.queue.back() = Object::own(PyObject_GetIter(left.get()));
  }
}

void HappensBefore::finish(PyObject* found) {
  const Busy busy(*this, found);
  finished_ = true;
  while (true) {
    // First those whose missing members have no records left: nobody can join them any more.
    Follower *first = nullptr, *chosen = nullptr;
    for (const auto& [rank, follower] : followers_) {
      if (follower->waits_in.get() == nullptr) continue;
      if (first == nullptr) first = follower.get();
      if (chosen == nullptr && hopeless(*follower)) chosen = follower.get();
    }
    if (first == nullptr) return;
    const Ref<OpenCollective> collective = (chosen != nullptr ? chosen : first)->waits_in;
    collective->forced = true;
    for (Follower* freed : leave(collective)) advance(*freed);
  }
}

bool HappensBefore::hopeless(const Follower& follower) const {
  const OpenCollective& collective = *follower.waits_in;
  for (const int64_t rank : collective.expected)
    if (!collective.arrivals.contains(rank) && waits(rank)) return false;
  return true;
}

bool HappensBefore::waits(int64_t rank) const {
  const auto found = followers_.find(rank);
  return found != followers_.end() && found->second->waits_in.get() != nullptr;
}

void HappensBefore::settle() {
  for (const auto& [rank, follower] : followers_) follower->rank.settle();
}

int64_t HappensBefore::live_state() const {
  int64_t total = static_cast<int64_t>(shared_.collectives.open());
  for (const auto& [rank, follower] : followers_) total += follower->rank.live_state();
  return total;
}

bool HappensBefore::run(Follower& follower, PyObject* records, Arrival& arrival) {
  while (true) {
    if (++shared_.layouts.work - asked_ > kSlice) {
      asked_ = shared_.layouts.work;
      if (PyErr_CheckSignals() < 0) throw Raised();
    }
    PyObject* next = PyIter_Next(records);
    if (next == nullptr) break;
    const Object record = Object::own(next);
    if (!follower.rank.follow(next, arrival)) return true;
  }
  if (PyErr_Occurred() != nullptr) throw Raised();
  return false;
}

// Follow the rank, and all whom it releases, until each waits or has nothing left.
void HappensBefore::advance(Follower& follower) {
  std::vector<Follower*> ready{&follower};
  while (!ready.empty()) {
    Follower& current = *ready.back();
    ready.pop_back();
    while (current.waits_in.get() == nullptr && !current.queue.empty()) {
      Arrival arrival;
      if (!run(current, current.queue.front().get(), arrival)) {
        current.queue.pop_front();
        continue;
      }
      const int64_t rank = current.rank.number;
      const Ref<OpenCollective> collective =
          shared_.collectives.arrive(rank, std::move(arrival), shared_.part(kTraceError));
      current.waits_in = collective;
      if (collective->complete())
        for (Follower* freed : leave(collective))
          if (freed != &current) ready.push_back(freed);
    }
  }
}

// End the collective for all who wait in it.
std::vector<HappensBefore::Follower*> HappensBefore::leave(const Ref<OpenCollective>& collective) {
  std::vector<Follower*> left;
  for (const auto& [rank, arrival] : collective->arrivals) {
    Follower& follower = *followers_.at(rank);
    if (!(follower.waits_in == collective)) continue;
    follower.waits_in = {};
    follower.rank.end_collective(arrival, collective->outcome(rank));
    left.push_back(&follower);
  }
  return left;
}

}  // namespace order
