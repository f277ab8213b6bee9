// Numbers the computation of each effect, and keeps results: streamrace/replay/numbering.py.
#include "numbering.h"

#include <algorithm>

namespace replay {

Numbering::Numbering(Deeds deeds, std::vector<int64_t> bases, std::vector<int64_t> sizes, std::vector<uint8_t> initial,
                     int64_t limit)
    : deeds_(std::move(deeds)),
      bases_(std::move(bases)),
      sizes_(std::move(sizes)),
      initial_(std::move(initial)),
      limit_(limit) {
  for (int64_t place = 0; place < deeds_.count(); ++place) {
    int64_t out = 0;
    for (int64_t at = deeds_.writes_at[place]; at < deeds_.writes_at[place + 1]; ++at) {
      deeds_.outs.push_back(out);
      out += deeds_.writes[at].hi - deeds_.writes[at].lo;
    }
    deeds_.leaving.push_back(out);
    deeds_.exchanges = std::max(deeds_.exchanges, deeds_.exchange[place] + 1);
    deeds_.most = std::max(deeds_.most, deeds_.members[place]);
  }
  deeds_.arrive.assign(deeds_.exchanges * deeds_.most, kNone);
  for (int64_t place = 0; place < deeds_.count(); ++place)
    if (deeds_.what[place] == kArrive)
      deeds_.arrive[deeds_.exchange[place] * deeds_.most + deeds_.member[place]] = place;
  forget();
}

void Numbering::forget() {
  words_.clear();
  begins_.assign(2, 0);
  hashes_.assign(1, 0);
  done_.assign(1, 1);
  table_.assign(1 << 12, kNone);
  kept_.clear();
  used_.clear();
  unstage();
  held_ = 0;
}

// ---- numbers ----

int64_t Numbering::follow(int64_t layout, const int64_t* order, int64_t count, int64_t* computed, int64_t* fresh) {
  const Layout& lay = layouts_.at(layout);
  who_.assign(lay.lengths.size(), kInitial);
  offset_ = lay.initial;
  int64_t places = deeds_.count(), found = 0, most = deeds_.most;
  arrived_.assign(deeds_.exchanges * most, kNone);
  std::fill(computed, computed + places, kNone);
  for (int64_t i = 0; i < count; ++i) {
    int64_t place = order[i], what = deeds_.what[place];
    if (what == kNothing) continue;
    if (what == kInherit) {
      for (int64_t at = lay.moves_at[place]; at < lay.moves_at[place + 1]; ++at) {
        const auto& one = lay.moves[at];
        std::memmove(&who_[one.target], &who_[one.source], one.count * sizeof(int64_t));
        std::memmove(&offset_[one.target], &offset_[one.source], one.count * sizeof(int64_t));
      }
      continue;
    }
    key_.clear();
    key_.push_back(place);
    if (what == kLeave) {
      const int64_t* those = &arrived_[deeds_.exchange[place] * most];
      for (int64_t member = 0; member < deeds_.members[place]; ++member) {
        if (those[member] == kNone) return -1;
        key_.push_back(those[member]);
      }
    }
    for (int64_t read = deeds_.reads_at[place]; read < deeds_.reads_at[place + 1]; ++read) {
      auto [begin, end] = lay.reads[read];
      for (int32_t at = begin; at < end; ++at) {
        size_t last = key_.size();
        if (at > begin && who_[at] == key_[last - 3] && offset_[at] == key_[last - 2] + key_[last - 1]) {
          key_[last - 1] += lay.lengths[at];
        } else {
          key_.push_back(who_[at]);
          key_.push_back(offset_[at]);
          key_.push_back(lay.lengths[at]);
        }
      }
    }
    int64_t mine = number(key_);
    computed[place] = mine;
    if (what == kArrive)
      arrived_[deeds_.exchange[place] * most + deeds_.member[place]] = mine;
    else if (!done_[mine])
      fresh[found++] = place;
    for (int64_t write = deeds_.writes_at[place]; write < deeds_.writes_at[place + 1]; ++write) {
      int64_t out = deeds_.outs[write];
      for (int32_t at = lay.writes[write].begin; at < lay.writes[write].end; ++at) {
        who_[at] = mine;
        offset_[at] = out;
        out += lay.lengths[at];
      }
    }
  }
  return found;
}

int64_t Numbering::number(const std::vector<int64_t>& key) {
  uint64_t hash = key.size();
  for (int64_t word : key) {
    hash = (hash ^ static_cast<uint64_t>(word)) * 0x9E3779B97F4A7C15ull;
    hash ^= hash >> 29;
  }
  size_t mask = table_.size() - 1, at = hash & mask;
  for (; table_[at] != kNone; at = (at + 1) & mask) {
    int64_t one = table_[at];
    if (hashes_[one] != hash) continue;
    int64_t begin = begins_[one], size = begins_[one + 1] - begin;
    if (size == static_cast<int64_t>(key.size()) && std::equal(key.begin(), key.end(), words_.begin() + begin))
      return one;
  }
  int64_t mine = count();
  table_[at] = mine;
  words_.insert(words_.end(), key.begin(), key.end());
  begins_.push_back(words());
  hashes_.push_back(hash);
  done_.push_back(0);
  if (2 * done_.size() > table_.size()) grow();
  return mine;
}

void Numbering::grow() {
  table_.assign(2 * table_.size(), kNone);
  size_t mask = table_.size() - 1;
  for (int64_t one = 1; one < count(); ++one) {
    size_t at = hashes_[one] & mask;
    while (table_[at] != kNone) at = (at + 1) & mask;
    table_[at] = one;
  }
}

int64_t Numbering::arrivals(int64_t number, int64_t* found) const {
  int64_t where = place(number), members = deeds_.what[where] == kLeave ? deeds_.members[where] : 0;
  std::copy_n(words_.begin() + begins_[number] + 1, members, found);
  return members;
}

// ---- results ----

int64_t Numbering::give(int64_t number, uint8_t* memory) {
  int64_t where = place(number);
  int64_t at = begins_[number] + 1 + (deeds_.what[where] == kLeave ? deeds_.members[where] : 0);
  for (int64_t read = deeds_.reads_at[where]; read < deeds_.reads_at[where + 1]; ++read) {
    const auto& span = deeds_.reads[read];
    int64_t here = bases_[span.block] + span.lo, until = bases_[span.block] + span.hi;
    for (; here < until; at += 3) {
      int64_t who = words_[at], offset = words_[at + 1], size = words_[at + 2];
      const uint8_t* left = initial_.data();
      if (who != kInitial) {
        auto found = kept_.find(who);
        if (found == kept_.end()) return who;
        used_.splice(used_.end(), used_, found->second.used);
        left = found->second.bytes.get();
      }
      std::memcpy(memory + here, left + offset, size);
      here += size;
    }
  }
  return kNone;
}

void Numbering::keep(int64_t number, const uint8_t* memory) {
  int64_t where = place(number), size = deeds_.leaving[where];
  if (!size || kept_.count(number)) return;
  Left left{std::make_unique_for_overwrite<uint8_t[]>(size), size, used_.insert(used_.end(), number)};
  for (int64_t write = deeds_.writes_at[where]; write < deeds_.writes_at[where + 1]; ++write) {
    const auto& span = deeds_.writes[write];
    std::memcpy(left.bytes.get() + deeds_.outs[write], memory + bases_[span.block] + span.lo, span.hi - span.lo);
  }
  kept_.emplace(number, std::move(left));
  held_ += size;
  bound(limit_);
}

void Numbering::bound(int64_t limit) {
  limit_ = limit;
  while (held_ > limit_ && !used_.empty()) {
    auto oldest = kept_.find(used_.front());
    held_ -= oldest->second.size;
    kept_.erase(oldest);
    used_.pop_front();
  }
}

}  // namespace replay
