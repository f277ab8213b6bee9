// The values that a program observes of its own work, as checksums: those that the host read, and its memory at the end.
// Two runs of one program that observe the same computed the same, whatever the order in between. Observing takes no
// time and orders nothing.
//
// In a run that checks for dependence on unwritten memory (unwritten.h), the checksum of a read consists of seven of eight
// bits, each for a seventh of its elements, and in the highest byte the number of non-empty sevenths: this shows whether
// most of the value differs, or only a padding (streamrace/device/value_checksums.py).
//
// Only bytes that work has written count: other bytes of a block are left from another owner, and differ with the
// timing in sound programs, too. A program ends with its last kernel, so memory that it releases after that counts.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <vector>

#include "unwritten.h"

namespace simgpu {

class Probes {
 public:
  bool on = false;

  void begin();
  void made(int64_t block, const char* data);
  void dropped(int64_t block);
  void given_back(const char* from, const char* to);  // memory that the host gets back
  void launched(const Accesses& accesses, bool collective);
  void wrote(const std::vector<Access>& accesses);

  // The host reads these bytes by operation `op`; several reads of one operation are combined. `copied`: they are on the
  // device unchanged.
  void read(int64_t op, const void* data, size_t nbytes, size_t itemsize = 1, bool copied = false);
  void read(int64_t op, const Access& access);

  // The number that the host reads by operation `op`, if that is a single one: reports show it, and nothing compares it.
  void number(int64_t op, double value);
  void number(int64_t op, int64_t value);

  // In sixes: 0, an operation, the number of bytes that the host read by it, their CRC-32, then kind and bits of a number;
  // 1, a block, the number of its bytes that were written, their CRC-32, 0, 0. To be called after all work: returns `most` reads from number `from` on, and
  // after the last one the blocks. Valid until the next call.
  const int64_t* take(int64_t from, int64_t most, int64_t* count);

  enum class Number : int64_t { kNone, kInt, kDouble, kSeveral };

 private:
  static constexpr size_t kParts = 7;
  struct Probed;
  Probed& seen(int64_t op);
  void number(int64_t op, Number kind, int64_t bits);

  struct Kept {
    const char* data;
    Ranges written;
  };
  struct Probed {
    int64_t op = 0;
    int64_t nbytes = 0;
    uint32_t checksum = 0;
    std::array<uint32_t, kParts> parts{};
    size_t of_any = 0;  // non-empty ones among these
    Number number = Number::kNone;
    int64_t bits = 0;  // of the number
  };
  std::map<int64_t, Kept> blocks_;
  std::vector<int64_t> dropped_;  // since the last kernel
  std::deque<Probed> reads_;  // by operation: a program may read very often
  std::vector<int64_t> taken_;
};

Probes& probes();

}  // namespace simgpu
