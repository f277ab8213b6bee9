// The access history of a block: detectors/order/access_history.py, in C++. Entries stand in the same order as there,
// as that is the order in which races are reported.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "counted.h"
#include "overlap.h"
#include "reports.h"

namespace order {

// A launch or a collective: what a race reports of it. `kernel`: the number of its text.
struct Operation : Counted {
  Moment moment;
  int64_t kernel, stream, stack, issuer;
  bool collective;
};

struct Entry : Touched {
  int64_t thread, epoch;
  Ref<Operation> operation;

  bool same_bytes(const Touched& other) const { return static_cast<const Touched&>(*this) == other; }
};

// Where an entry stands: a row (0 where there are none) and an index.
struct Place {
  size_t row, index;
  bool operator<(const Place& other) const { return row != other.row ? row < other.row : index < other.index; }
};

class AccessHistory {
 public:
  bool empty() const { return items.empty() && rows_.empty(); }
  bool in_rows() const { return !rows_.empty(); }

  // The entries, where they are few; empty where they stand in rows.
  std::vector<Entry> items;

  // Calls `visit` with each entry that may overlap [lo, hi), and its place.
  template <typename Visit>
  void search(int64_t lo, int64_t hi, Visit visit) const {
    if (rows_.empty()) {
      for (size_t index = 0; index < items.size(); ++index) visit(items[index], Place{0, index});
      return;
    }
    for (size_t row = 0; row < rows_.size(); ++row) {
      const auto& entries = rows_[row].entries;
      for (size_t index = first_from(entries, lo - rows_[row].longest); index < entries.size(); ++index) {
        if (entries[index].lo >= hi) break;
        visit(entries[index], Place{row, index});
      }
    }
  }

  Entry& at(const Place& place) {
    return rows_.empty() ? items[place.index] : rows_[place.row].entries[place.index];
  }

  template <typename Visit>
  void everything(Visit visit) const {
    if (rows_.empty()) {
      for (size_t index = 0; index < items.size(); ++index) visit(items[index], Place{0, index});
      return;
    }
    for (size_t row = 0; row < rows_.size(); ++row)
      for (size_t index = 0; index < rows_[row].entries.size(); ++index)
        visit(rows_[row].entries[index], Place{row, index});
  }

  void put(Entry entry, Layouts& layouts) {
    if (rows_.empty()) {
      items.push_back(std::move(entry));
      if (items.size() > kScan) {
        for (Entry& moved : std::exchange(items, {})) insert(std::move(moved), layouts);
      }
      return;
    }
    insert(std::move(entry), layouts);
  }

  // Add `entry` in place of the dropped ones.
  void put(Entry entry, Layouts& layouts, std::vector<Place>& dropped) {
    if (dropped.size() == 1) {
      Entry& old = at(dropped[0]);
      if (old.lo == entry.lo && old.hi == entry.hi) {
        old = std::move(entry);
        return;
      }
    }
    drop(dropped);
    put(std::move(entry), layouts);
  }

  void drop(std::vector<Place>& dropped) {
    std::sort(dropped.begin(), dropped.end());
    if (rows_.empty()) {
      for (size_t number = dropped.size(); number-- > 0;)
        items.erase(items.begin() + static_cast<std::ptrdiff_t>(dropped[number].index));
      return;
    }
    for (size_t number = dropped.size(); number-- > 0;) {
      auto& entries = rows_[dropped[number].row].entries;
      entries.erase(entries.begin() + static_cast<std::ptrdiff_t>(dropped[number].index));
    }
    std::erase_if(rows_, [](const Row& row) { return row.entries.empty(); });
  }

 private:
  static constexpr size_t kScan = 16;  // up to so many entries, visiting each is faster than searching
  static constexpr size_t kFew = 128;  // rows of at most this many entries are not thinned

  // Entries of similar length, sorted by where they begin.
  struct Row {
    int64_t size;
    int64_t longest;
    std::vector<Entry> entries;
    size_t most = kFew;

    // Drop each entry whose bytes newer entries of its thread cover together.
    void thin(Layouts& layouts) {
      std::vector<size_t> newest_first(entries.size());
      std::iota(newest_first.begin(), newest_first.end(), size_t{0});
      std::stable_sort(newest_first.begin(), newest_first.end(),
                       [this](size_t a, size_t b) { return entries[a].epoch > entries[b].epoch; });
      std::map<int64_t, Cover> covers;
      std::vector<bool> needed(entries.size());
      for (const size_t at : newest_first) needed[at] = layouts.takes(covers[entries[at].thread], entries[at]);
      size_t count = 0;
      for (size_t at = 0; at < entries.size(); ++at)
        if (needed[at]) std::swap(entries[count++], entries[at]);
      entries.erase(entries.begin() + static_cast<std::ptrdiff_t>(count), entries.end());
      most = std::max(kFew, 2 * entries.size());
    }
  };
  std::vector<Row> rows_;  // in the order in which they were made; not empty: `items` is

  static size_t first_from(const std::vector<Entry>& entries, int64_t lo) {
    const auto first = std::partition_point(entries.begin(), entries.end(), [lo](const Entry& e) { return e.lo < lo; });
    return static_cast<size_t>(first - entries.begin());
  }

  void insert(Entry entry, Layouts& layouts) {
    const int64_t size = std::bit_width(static_cast<uint64_t>(entry.hi - entry.lo)) / 2;
    auto row = std::find_if(rows_.begin(), rows_.end(), [size](const Row& r) { return r.size == size; });
    if (row == rows_.end()) row = rows_.insert(rows_.end(), Row{size, int64_t{1} << std::min<int64_t>(2 * size + 1, 62), {}, kFew});
    auto& entries = row->entries;
    const auto behind =
        std::partition_point(entries.begin(), entries.end(), [&](const Entry& e) { return e.lo <= entry.lo; });
    entries.insert(behind, std::move(entry));
    if (entries.size() > row->most) row->thin(layouts);
  }
};

// The reads and the writes of a block.
struct Accesses {
  AccessHistory reads, writes;
};

}  // namespace order
