// What a collective orders: detectors/order/rendezvous.py, in C++. The reasons are explained there.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "clocks.h"
#include "history.h"
#include "reader.h"

namespace order {

// One member's part: its operation and its clock when it starts to read.
struct Arrival {
  Ref<Operation> operation;
  std::string_view kernel;
  std::string_view writes;  // the accesses, as the trace has them: bytes that stay until the collective is over
  int64_t group, number, root;
  Snapshot position;
};

inline bool names(const Arrival& arrival, std::string_view part) {
  return arrival.kernel.find(part) != std::string_view::npos;
}

inline bool is_point_to_point(const Arrival& arrival) {
  return arrival.root >= 0 && (names(arrival, "send") || names(arrival, "recv"));
}

// As Python shows a tuple.
inline std::string shown(const std::vector<int64_t>& ranks) {
  std::string text;
  for (const int64_t rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return "(" + text + (ranks.size() == 1 ? ",)" : ")");
}

// One collective, while its members arrive.
struct OpenCollective : Counted {
  std::set<int64_t> expected;
  std::map<int64_t, Arrival> arrivals;
  bool forced = false;  // no longer waits for missing members

  bool complete() const { return forced || arrivals.size() == expected.size(); }

  void arrive(int64_t rank, Arrival arrival) {
    arrivals.insert_or_assign(rank, std::move(arrival));
    merged_ = {};
  }

  // What `rank` knows when the collective is done.
  Known outcome(int64_t rank) {
    const Arrival& member = arrivals.at(rank);
    if (member.root < 0) return everyone();
    if (is_point_to_point(member) || names(member, "broadcast") || names(member, "scatter")) {
      const auto source = arrivals.find(member.root);
      if (source == arrivals.end()) return member.position.known;  // a source that never came brings nothing
      return joined(member.position.known, source->second.position);
    }
    if (names(member, "reduce") || names(member, "gather"))
      return member.root == rank ? everyone() : member.position.known;
    return everyone();
  }

 private:
  Known merged_;

  static Known joined(const Known& known, const Snapshot& position) {
    Known result = join(*known, *position.known);
    raise_to(*result, position);
    return result;
  }

  static void raise_to(Vector& vector, const Snapshot& position) {
    set(vector, position.thread, std::max(vector[position.thread], position.epoch));
  }

  // The join of all members' clocks: one vector for all of them.
  Known everyone() {
    if (merged_.get() == nullptr) {
      Known merged = make<Vector>();
      const Vector* last = nullptr;
      for (const auto& [rank, arrival] : arrivals) {
        if (arrival.position.known.get() == last) continue;
        last = arrival.position.known.get();
        merged = join(*merged, *last);
      }
      for (const auto& [rank, arrival] : arrivals) raise_to(*merged, arrival.position);
      merged_ = merged;
    }
    return merged_;
  }
};

// All collectives that some member has begun and some other has not.
class OpenCollectives {
 public:
  size_t open() const { return open_.size(); }

  // Throws where two ranks disagree on a group.
  void declare(int64_t group, const std::vector<int64_t>& ranks) {
    const auto [entry, fresh] = groups_.try_emplace(group, Members{ranks, {ranks.begin(), ranks.end()}});
    if (!fresh && entry->second.ranks != ranks)
      throw Inconsistent("group " + std::to_string(group) + " has ranks " + shown(entry->second.ranks) +
                         " in one trace and " + shown(ranks) + " in another");
  }

  // The rank stands for others, which have no traces: it waits for none of them, but for those `running`.
  void mirror(int64_t rank, const std::vector<int64_t>& running) {
    mirrored_[rank] = {running.begin(), running.end()};
    mirrored_[rank].insert(rank);
  }

  // Note that `rank` has begun its part. The collective may be complete then.
  Ref<OpenCollective> arrive(int64_t rank, Arrival arrival) {
    const auto group = groups_.find(arrival.group);
    const std::set<int64_t>* members = group == groups_.end() ? nullptr : &group->second.members;
    const int64_t root = arrival.root;
    if (members == nullptr || !members->contains(rank) || (root >= 0 && !members->contains(root))) {
      throw Inconsistent("rank " + std::to_string(rank) + ", op " + std::to_string(arrival.operation->moment.op) + " (" +
                         std::string(arrival.kernel) + "): group " + std::to_string(arrival.group) + " has ranks " +
                         (members == nullptr ? "None" : shown(group->second.ranks)) + ", which do not fit rank " +
                         std::to_string(rank) + " and root " + std::to_string(root));
    }
    const auto mirrored = mirrored_.find(rank);
    const std::set<int64_t>* running = mirrored == mirrored_.end() ? nullptr : &mirrored->second;
    if (running != nullptr && common(*running, *members).size() == 1) {
      Ref<OpenCollective> single = make<OpenCollective>();
      single->expected = {rank};
      single->arrive(rank, std::move(arrival));
      return single;
    }
    std::set<int64_t> expected = *members;
    Key key{arrival.group, arrival.number, -1};
    if (is_point_to_point(arrival)) {
      // Only two members take part, and the record does not name the receiver: the source need not wait for it, and
      // the receiver waits for the source single.
      std::get<2>(key) = root;
      expected = {root, rank};
    }
    if (running != nullptr) expected = common(*running, expected);
    Ref<OpenCollective>& place = open_[key];
    if (place.get() == nullptr) place = make<OpenCollective>();
    Ref<OpenCollective> collective = place;
    collective->expected.merge(expected);
    collective->arrive(rank, std::move(arrival));
    const size_t count = collective->expected.size();
    if (collective->arrivals.size() == count && (count > 1 || members->size() == 1)) open_.erase(key);
    return collective;
  }

 private:
  static std::set<int64_t> common(const std::set<int64_t>& some, const std::set<int64_t>& others) {
    std::set<int64_t> both;
    std::set_intersection(some.begin(), some.end(), others.begin(), others.end(), std::inserter(both, both.end()));
    return both;
  }

  using Key = std::tuple<int64_t, int64_t, int64_t>;  // group, number, source of a send
  struct Members {
    std::vector<int64_t> ranks;
    std::set<int64_t> members;
  };
  std::unordered_map<int64_t, Members> groups_;
  std::map<int64_t, std::set<int64_t>> mirrored_;  // the ranks for which such a rank waits
  std::map<Key, Ref<OpenCollective>> open_;
};

}  // namespace order
