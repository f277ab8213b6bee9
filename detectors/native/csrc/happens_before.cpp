#include "happens_before.h"

namespace order {
namespace {

constexpr int64_t kSlice = 1 << 20;    // of work, some milliseconds: then Ctrl-C is obeyed
constexpr size_t kReported = 1 << 18;  // words: so many are kept until Python takes them

}  // namespace

void HappensBefore::feed(int64_t rank, std::string_view bytes) {
  if (finished_) throw Damaged("the traces are finished; use a new detector");
  std::unique_ptr<Follower>& place = followers_[rank];
  if (!place) place = std::make_unique<Follower>(rank, shared_);
  if (bytes.empty()) return;
  place->queue.emplace_back(bytes);
  if (place->queue.size() == 1) place->reader = Reader(place->queue.front());
  ready_.push_back(place.get());
}

// Follow the ranks that are ready, and all ranks that they release, until each waits or has no records left.
bool HappensBefore::go_on() {
  const int64_t until = work() + kSlice;
  while (true) {
    if (current_ == nullptr) {
      if (ready_.empty() && !(finished_ && release())) return true;
      current_ = ready_.back();
      ready_.pop_back();
    }
    while (current_->waits_in.get() == nullptr && !current_->queue.empty()) {
      if (work() > until || reports().found.size() > kReported) return false;
      follow();
    }
    current_ = nullptr;
  }
}

void HappensBefore::follow() {
  Follower& follower = *current_;
  if (follower.reader.done()) {
    follower.queue.pop_front();
    follower.reader = follower.queue.empty() ? Reader() : Reader(follower.queue.front());
    return;
  }
  ++shared_.layouts.work;
  Arrival arrival;
  if (follower.rank.follow(follower.reader, arrival)) return;
  const Ref<OpenCollective> collective = shared_.collectives.arrive(follower.rank.number, std::move(arrival));
  follower.waits_in = collective;
  if (!collective->complete()) return;
  for (Follower* freed : leave(collective))
    if (freed != &follower) ready_.push_back(freed);
}

bool HappensBefore::release() {
  // First those whose missing members have no records left: nobody can join them any more.
  Follower *first = nullptr, *chosen = nullptr;
  for (const auto& [rank, follower] : followers_) {
    if (follower->waits_in.get() == nullptr) continue;
    if (first == nullptr) first = follower.get();
    if (chosen == nullptr && hopeless(*follower)) chosen = follower.get();
  }
  if (first == nullptr) return false;
  const Ref<OpenCollective> collective = (chosen != nullptr ? chosen : first)->waits_in;
  collective->forced = true;
  const std::vector<Follower*> freed = leave(collective);
  ready_.insert(ready_.end(), freed.rbegin(), freed.rend());
  return true;
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

// End the collective for all ranks that wait in it.
std::vector<HappensBefore::Follower*> HappensBefore::leave(const Ref<OpenCollective>& collective) {
  std::vector<Follower*> released;
  for (const auto& [rank, arrival] : collective->arrivals) {
    Follower& follower = *followers_.at(rank);
    if (!(follower.waits_in == collective)) continue;
    follower.waits_in = {};
    follower.rank.end_collective(arrival, collective->outcome(rank));
    released.push_back(&follower);
  }
  return released;
}

}  // namespace order
