// One block of memory, and the rule by which two accesses of it race: detectors/order/block.py and reuse.py, in C++.
// They explain what is dropped, and why nothing is lost by it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "clocks.h"
#include "history.h"

namespace order {

using Entries = std::vector<Entry>;

inline bool ordered(const Entry& old, const StreamClock& stream) {
  return old.thread == stream.thread || (*stream.known)[old.thread] >= old.epoch;
}

// Which parameters the bytes of a block belong to. The texts are numbered by the engine.
class Labels {
 public:
  using Label = std::tuple<int64_t, int64_t, int64_t, int64_t>;  // lo, hi, kind, name

  void add(const Label& label) {
    if (labels_.size() < kFew ? std::find(labels_.begin(), labels_.end(), label) != labels_.end() : seen(label)) return;
    labels_.push_back(label);
    if (labels_.size() == kFew) seen_.insert(labels_.begin(), labels_.end());
  }

  template <typename Visit>
  void of(int64_t lo, int64_t hi, Visit visit) const {
    for (const auto& [start, end, kind, name] : labels_)
      if (start < hi && end > lo) visit(kind, name);
  }

 private:
  static constexpr size_t kFew = 8;
  bool seen(const Label& label) { return !seen_.insert(label).second; }
  std::vector<Label> labels_;
  std::set<Label> seen_;  // once they are more than a few
};

// Accesses of the former owners of a block's memory, in the block's own bytes.
struct Inheritance : Accesses {
  int64_t stack = 0;
  bool empty() const { return reads.empty() && writes.empty(); }
};

struct Block : Accesses {
  bool owned = false;
  int64_t owner = 0;                        // the stream whose order the allocator reuses it in
  std::vector<int64_t> recorded;            // streams named by record_stream
  std::unique_ptr<Inheritance> inherited;   // null: nothing that can race
  std::unique_ptr<Labels> labels;
  std::set<std::tuple<int64_t, int64_t, int64_t>> raced;  // pairs and bytes of its races, to be named by its labels
};

// By the newest access, what it makes redundant and what it overlaps without order.
class Rule {
 public:
  explicit Rule(Layouts& layouts) : layouts_(layouts) {}

  // Add a read; `races`: the writes it races with.
  void read(Block& block, Entry entry, const StreamClock& stream, Entries& races) {
    if (!block.writes.in_rows() && alone(block.writes.items, entry.thread) && renewed(block.reads, entry)) return;
    block.writes.search(entry.lo, entry.hi, [&](const Entry& old, const Place&) {
      ++layouts_.work;
      if (!ordered(old, stream) && overlap(old, entry)) races.push_back(old);
    });
    Entries nothing;
    supersede(block.reads, entry, stream, nothing);
    add(block.reads, std::move(entry));
  }

  // Add a write; `reads` and `writes`: those it races with.
  void write(Block& block, Entry entry, const StreamClock& stream, Entries& reads, Entries& writes) {
    if (block.reads.empty() && renewed(block.writes, entry)) return;
    supersede(block.reads, entry, stream, reads);
    if (!dropped_.empty()) block.reads.drop(dropped_);
    supersede(block.writes, entry, stream, writes);
    add(block.writes, std::move(entry));
  }

  // The former reads and writes with which a new access races. They are dropped with what it makes redundant.
  void met(Inheritance& former, const Entry& entry, const StreamClock& stream, bool write, Entries& reads,
           Entries& writes) {
    meet(former.reads, entry, stream, true, write, reads);
    meet(former.writes, entry, stream, write, true, writes);
  }

 private:
  Layouts& layouts_;
  std::vector<Place> dropped_;

  bool overlap(const Entry& old, const Entry& entry) {
    if (old.lo >= entry.hi || entry.lo >= old.hi) return false;
    if (old.layout == kDense && entry.layout == kDense) return true;
    return layouts_.overlap(old, entry);
  }

  static bool alone(const Entries& items, int64_t thread) {
    return items.empty() || (items.size() == 1 && items[0].thread == thread);
  }

  // Handle the most frequent cases quickly: no entry, or a single one of the same thread and the same bytes.
  static bool renewed(AccessHistory& history, Entry& entry) {
    if (history.in_rows()) return false;
    if (history.items.empty()) {
      history.items.push_back(std::move(entry));
      return true;
    }
    Entry& old = history.items[0];
    if (history.items.size() > 1 || old.thread != entry.thread || !old.same_bytes(entry)) return false;
    old = std::move(entry);
    return true;
  }

  // Fills `dropped_`.
  void supersede(AccessHistory& history, const Entry& entry, const StreamClock& stream, Entries& races) {
    dropped_.clear();
    history.search(entry.lo, entry.hi, [&](const Entry& old, const Place& place) {
      ++layouts_.work;
      if (ordered(old, stream)) {
        if (entry.lo <= old.lo && old.hi <= entry.hi && (entry.layout == kDense || old.same_bytes(entry)))
          dropped_.push_back(place);
      } else if (overlap(old, entry)) {
        races.push_back(old);
      }
    });
  }

  void add(AccessHistory& history, Entry entry) {
    if (dropped_.empty())
      history.put(std::move(entry), layouts_);
    else
      history.put(std::move(entry), layouts_, dropped_);
  }

  // `redundant`: drop entries ordered before and covered; `report`: unordered entries race.
  void meet(AccessHistory& history, const Entry& entry, const StreamClock& stream, bool redundant, bool report,
            Entries& races) {
    dropped_.clear();
    history.search(entry.lo, entry.hi, [&](const Entry& old, const Place& place) {
      ++layouts_.work;
      if (ordered(old, stream)) {
        if (redundant && entry.lo <= old.lo && old.hi <= entry.hi && entry.layout == kDense) dropped_.push_back(place);
      } else if (report && overlap(old, entry)) {
        races.push_back(old);
        dropped_.push_back(place);
      }
    });
    if (!dropped_.empty()) history.drop(dropped_);
  }
};

// streamrace.trace.records.Reuse: bytes lo to hi of the new block were those of the former from `start` on.
struct Handed {
  int64_t former, lo, hi, start, stack;
  bool last;
};

// Freed blocks of one rank whose memory may still be handed out, each with what its former owners did.
class Freed {
 public:
  size_t size() const { return blocks_.size(); }

  // Keep what a next owner of `block`'s memory can race with. `awaited`: positions that the allocator itself waits for.
  void add(int64_t number, Block& block, const std::vector<Snapshot>& awaited) {
    std::vector<Accesses> all;
    all.push_back(std::move(static_cast<Accesses&>(block)));
    if (block.inherited) all.push_back(std::move(static_cast<Accesses&>(*block.inherited)));
    for (Accesses& owner : all)
      for (AccessHistory* history : {&owner.reads, &owner.writes})
        for (const Snapshot& position : awaited) {
          std::vector<Place> past;
          history->everything([&](const Entry& old, const Place& place) {
            const int64_t known = old.thread == position.thread ? position.epoch : (*position.known)[old.thread];
            if (known >= old.epoch) past.push_back(place);
          });
          if (!past.empty()) history->drop(past);
        }
    blocks_[number] = std::move(all);
  }

  // What the new block inherits, added to what it has inherited already; null where it can race with none.
  std::unique_ptr<Inheritance> hand_out(const Handed& handed, std::unique_ptr<Inheritance> heir,
                                        const HostClock& host, Layouts& layouts) {
    if (!heir) {
      heir = std::make_unique<Inheritance>();
      heir->stack = handed.stack;
    }
    if (const auto found = blocks_.find(handed.former); found != blocks_.end()) {
      for (const auto& accesses : found->second) {
        inherit(heir->reads, accesses.reads, handed, host, layouts);
        inherit(heir->writes, accesses.writes, handed, host, layouts);
      }
    }
    drop_last(handed);
    if (heir->empty()) heir.reset();
    return heir;
  }

  void drop_last(const Handed& handed) {
    if (handed.last) blocks_.erase(handed.former);
  }

 private:
  std::unordered_map<int64_t, std::vector<Accesses>> blocks_;

  // The key that all parts of an access share: adjacent parts with the same key are joined.
  using Whole = std::tuple<const Operation*, int64_t, int64_t, int64_t>;
  static Whole whole(const Entry& entry) {
    return {entry.operation.get(), entry.epoch, entry.layout == kDense ? 0 : entry.lo - entry.before, entry.layout};
  }

  // Put the parts of former accesses that lie in the memory handed out into `heir`, in the new block's bytes.
  static void inherit(AccessHistory& heir, const AccessHistory& former, const Handed& handed, const HostClock& host,
                      Layouts& layouts) {
    const int64_t by = handed.lo - handed.start;
    std::map<Whole, Place> adjacent;
    heir.search(handed.lo - 1, handed.lo, [&](const Entry& old, const Place& place) {
      if (old.hi == handed.lo) adjacent.insert_or_assign(whole(old), place);
    });
    std::vector<Place> joined;
    Entries pieces;
    former.everything([&](const Entry& old, const Place&) {
      ++layouts.work;
      Entry piece = old;
      piece.lo = std::max(old.lo + by, handed.lo), piece.hi = std::min(old.hi + by, handed.hi);
      if (piece.lo >= piece.hi || (*host.known)[old.thread] >= old.epoch) return;
      if (old.layout != kDense) piece.before += piece.lo - old.lo - by;
      if (const auto neighbour = adjacent.find(whole(piece)); piece.lo == handed.lo && neighbour != adjacent.end()) {
        const Entry& begun = heir.at(neighbour->second);
        piece.lo = begun.lo, piece.before = begun.before;
        joined.push_back(neighbour->second);
        adjacent.erase(neighbour);
      }
      pieces.push_back(std::move(piece));
    });
    if (!joined.empty()) heir.drop(joined);
    for (Entry& piece : pieces) heir.put(std::move(piece), layouts);
  }
};

}  // namespace order
