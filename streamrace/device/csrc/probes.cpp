#include "probes.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include <c10/util/bit_cast.h>

namespace simgpu {

Probes& probes() {
  static auto* one = new Probes;
  return *one;
}

namespace {

// CRC-32 like zlib's (ISO 3309), a byte at a time.
uint32_t crc32(uint32_t crc, const void* data, size_t nbytes) {
  static const auto table = [] {
    std::array<uint32_t, 256> made{};
    for (uint32_t i = 0; i < 256; ++i) {
      made[i] = i;
      for (int bit = 0; bit < 8; ++bit) made[i] = made[i] >> 1 ^ (made[i] & 1 ? 0xEDB88320u : 0);
    }
    return made;
  }();
  auto* bytes = static_cast<const unsigned char*>(data);
  crc = ~crc;
  for (size_t i = 0; i < nbytes; ++i) crc = table[(crc ^ bytes[i]) & 0xFF] ^ crc >> 8;
  return ~crc;
}

}  // namespace

void Probes::begin() {
  *this = Probes();
  on = true;
}

void Probes::made(int64_t block, const char* data) {
  if (on) blocks_.try_emplace(block, Kept{data, {}});
}

void Probes::dropped(int64_t block) {
  if (on) dropped_.push_back(block);
}

void Probes::given_back(const char* from, const char* to) {
  if (!on) return;
  for (int64_t block : dropped_) {
    auto kept = blocks_.find(block);
    if (kept != blocks_.end() && kept->second.data >= from && kept->second.data < to) blocks_.erase(kept);
  }
}

void Probes::launched(const Accesses& accesses, bool collective) {
  if (!on) return;
  if (!collective && (!accesses.writes.empty() || accesses.late)) {  // a barrier or a read is no progress of a program
    for (int64_t block : dropped_) blocks_.erase(block);
    dropped_.clear();
  }
  if (!accesses.late) wrote(accesses.writes);
}

void Probes::wrote(const std::vector<Access>& accesses) {
  if (!on) return;
  for (auto& access : accesses) {
    auto kept = blocks_.find(access.block);
    if (kept == blocks_.end()) continue;
    each_run(access, [&](int64_t lo, int64_t hi) { add(kept->second.written, lo, hi); });
  }
}

Probes::Probed& Probes::seen(int64_t op) {
  if (reads_.empty() || reads_.back().op < op) return reads_.emplace_back(Probed{op});
  auto at = std::lower_bound(reads_.begin(), reads_.end(), op, [](auto& one, int64_t than) { return one.op < than; });
  return at->op == op ? *at : *reads_.insert(at, Probed{op});
}

void Probes::read(int64_t op, const void* data, size_t nbytes, size_t itemsize, bool copied) {
  if (!on) return;
  auto& of = seen(op);
  of.nbytes += static_cast<int64_t>(nbytes);
  of.checksum = crc32(of.checksum, data, nbytes);
  if (!unwritten().on) return;
  auto* bytes = static_cast<const char*>(data);
  size_t count = nbytes / itemsize;
  for (size_t part = 0; part < kParts; ++part) {
    size_t from = count * part / kParts * itemsize, to = count * (part + 1) / kParts * itemsize;
    if (!copied || unwritten().copies) of.parts[part] = crc32(of.parts[part], bytes + from, to - from);
    else
      for (; from < to; from += itemsize)
        if (!is_pattern(bytes + from, itemsize)) of.parts[part] = crc32(of.parts[part], bytes + from, itemsize);
  }
  of.of_any = std::max(of.of_any, std::min(count, kParts));
}

void Probes::read(int64_t op, const Access& access) {
  auto kept = blocks_.find(access.block);
  if (!on || kept == blocks_.end()) return;
  each_run(access, [&](int64_t lo, int64_t hi) { read(op, kept->second.data + lo, static_cast<size_t>(hi - lo), 1, true); });
}

void Probes::number(int64_t op, Number kind, int64_t bits) {
  if (!on) return;
  auto& of = seen(op);
  of.number = of.number == Number::kNone ? kind : Number::kSeveral;
  of.bits = bits;
}

void Probes::number(int64_t op, double value) { number(op, Number::kDouble, c10::bit_cast<int64_t>(value)); }
void Probes::number(int64_t op, int64_t value) { number(op, Number::kInt, value); }

const int64_t* Probes::take(int64_t from, int64_t most, int64_t* count) {
  taken_.clear();
  auto reads = static_cast<int64_t>(reads_.size());
  for (int64_t at = from; at < std::min(reads, from + most); ++at) {
    auto& seen = reads_[static_cast<size_t>(at)];
    uint64_t told = seen.checksum;
    if (unwritten().on) {
      told = static_cast<uint64_t>(seen.of_any) << 8 * kParts;
      for (size_t part = 0; part < kParts; ++part) told |= static_cast<uint64_t>(seen.parts[part] & 0xFF) << 8 * part;
    }
    taken_.insert(taken_.end(), {0, seen.op, seen.nbytes, static_cast<int64_t>(told), static_cast<int64_t>(seen.number), seen.bits});
  }
  for (auto& [block, kept] : blocks_) {
    if (from < reads || kept.written.empty()) continue;
    Probed seen;
    for (auto& [lo, hi] : kept.written) {
      seen.nbytes += hi - lo;
      seen.checksum = crc32(seen.checksum, kept.data + lo, static_cast<size_t>(hi - lo));
    }
    taken_.insert(taken_.end(), {1, block, seen.nbytes, seen.checksum, 0, 0});
  }
  *count = static_cast<int64_t>(taken_.size());
  return taken_.data();
}

}  // namespace simgpu
