#include "unwritten.h"

#include <algorithm>
#include <cstring>

namespace simgpu {

Unwritten& unwritten() {
  static auto* one = new Unwritten;
  return *one;
}

void add(Ranges& ranges, int64_t lo, int64_t hi) {
  auto behind = ranges.upper_bound(lo);
  if (behind != ranges.begin()) {
    auto before = std::prev(behind);
    if (before->second >= hi) return;
    if (before->second >= lo) lo = before->first, behind = before;
  }
  while (behind != ranges.end() && behind->first <= hi) {
    hi = std::max(hi, behind->second);
    behind = ranges.erase(behind);
  }
  ranges.emplace_hint(behind, lo, hi);
}

void Unwritten::begin(bool every, std::set<std::pair<int64_t, int64_t>> poisoned, bool copies_) {
  *this = Unwritten();
  on = true;
  copies = copies_;
  every_ = every;
  poisoned_ = std::move(poisoned);
}

void Unwritten::made(int64_t block, char* data, int64_t nbytes) {
  if (on) blocks_[block] = {data, nbytes, every_ || poisoned_.count({timeline().rank, block}) > 0, {}};
}

void Unwritten::dropped(int64_t block) {
  if (on) blocks_.erase(block);
}

static constexpr int kLeast = 0x3F, kPatterns = 5;

// Writes numbers that differ from each other in every floating point type, and are small as bytes.
static void put(char* data, int64_t lo, int64_t hi, bool poisoned) {
  if (poisoned) std::memset(data + lo, 0xFF, static_cast<size_t>(hi - lo));
  else
    for (; lo < hi; ++lo) data[lo] = static_cast<char>(kLeast + lo / 8 % kPatterns);
}

bool is_pattern(const void* item, size_t itemsize) {
  auto* bytes = static_cast<const unsigned char*>(item);
  if (bytes[0] != 0xFF && (bytes[0] < kLeast || bytes[0] >= kLeast + kPatterns)) return false;
  return std::all_of(bytes, bytes + itemsize, [&](unsigned char byte) { return byte == bytes[0]; });
}

void Unwritten::touch(const std::vector<Access>& accesses, std::vector<Fill>* fills) {
  for (auto& access : accesses) {
    auto kept = blocks_.find(access.block);
    if (kept == blocks_.end()) continue;
    auto& [data, nbytes, poisoned, written] = kept->second;
    if (!written.empty() && written.begin()->first <= 0 && written.begin()->second >= nbytes) continue;
    each_run(access, [&, data = data, poisoned = poisoned](int64_t lo, int64_t hi) {
      auto next = written.upper_bound(lo);
      int64_t from = lo;
      if (next != written.begin()) from = std::max(from, std::prev(next)->second);
      for (; fills && from < hi; from = next->second, ++next) {
        int64_t to = next == written.end() ? hi : std::min(hi, next->first);
        if (from < to) fills->push_back({access.block, data, from, to, poisoned});
        if (next == written.end()) break;
      }
      add(written, lo, hi);
    });
  }
}

Effect Unwritten::filling(std::vector<Fill> fills, Effect effect) {
  if (fills.empty()) return effect;
  return [fills = std::move(fills), effect = std::move(effect)] {
    for (auto& [block, data, lo, hi, poisoned] : fills) put(data, lo, hi, poisoned);
    if (effect) effect();
  };
}

Effect Unwritten::behind(const Accesses& accesses, Effect effect) {
  if (!on) return effect;
  if (accesses.late) {  // bounds: it claims what nothing has touched, until it runs or other work writes there
    auto fills = std::make_shared<std::vector<Fill>>();
    touch(accesses.reads, fills.get());
    claims_.push_back(fills);
    return [fills, effect = std::move(effect)] {
      for (auto& [block, data, lo, hi, poisoned] : *fills) put(data, lo, hi, poisoned);
      fills->clear();
      if (effect) effect();
    };
  }
  release(accesses.writes);
  std::vector<Fill> fills;
  touch(accesses.reads, &fills);
  // Without either, the bytes were written before (a result for the host).
  touch(accesses.writes, effect || !accesses.reads.empty() ? &fills : nullptr);
  return filling(std::move(fills), std::move(effect));
}

void Unwritten::release(const std::vector<Access>& writes) {
  std::erase_if(claims_, [](auto& claim) { return claim.expired(); });
  for (auto& claim : claims_) {
    Fills fills = claim.lock();
    for (auto& access : writes)
      each_run(access, [&](int64_t lo, int64_t hi) {
        std::vector<Fill> left;
        for (auto& fill : *fills) {
          bool apart = fill.block != access.block || fill.hi <= lo || hi <= fill.lo;
          if (apart) left.push_back(fill);
          if (!apart && fill.lo < lo) left.push_back({fill.block, fill.data, fill.lo, lo, fill.poisoned});
          if (!apart && hi < fill.hi) left.push_back({fill.block, fill.data, hi, fill.hi, fill.poisoned});
        }
        *fills = std::move(left);
      });
  }
}

Effect Unwritten::behind_reads(const Accesses& accesses, Effect effect) {
  if (!on) return effect;
  release(accesses.writes);
  std::vector<Fill> fills;
  touch(accesses.reads, &fills);
  touch(accesses.writes, nullptr);
  return filling(std::move(fills), std::move(effect));
}

}  // namespace simgpu
