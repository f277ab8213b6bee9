// What a program came to see of its own work, as checksums: the values that the host read, and what its memory holds at
// the end. Two runs of one program that see the same computed the same, whatever the order between. A look takes no
// time and orders nothing.
//
// In a run that asks what depends on memory that nobody wrote (unwritten.h) the checksum of a read is seven of eight bits,
// each of a seventh of its elements, and in the highest byte how many of them are of any: so it is known whether most of
// it is otherwise, or a padding (streamrace/device/looks.py).
//
// Only bytes that work has written count: what else lies in a block is left from another owner, and differs with the
// timing in sound programs too. The end of the program is its last kernel, so what it lets go of behind that counts.
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
  void given_back(const char* from, const char* to);  // memory that is the host's again
  void launched(const Accesses& accesses, bool collective);

  // The host gets to know these bytes by operation `op`; several of one operation are taken together. `copied`: they lie
  // on the device as they are.
  void read(int64_t op, const void* data, size_t nbytes, size_t itemsize = 1, bool copied = false);
  void read(int64_t op, const Access& access);

  // In fours: 0, an operation, how many bytes the host read by it, their CRC-32; 1, a block, how many of its bytes
  // were written, their CRC-32. Once all work is done: of the reads `most` from `from` on, and where there are no more,
  // the blocks. Valid until the next call.
  const int64_t* take(int64_t from, int64_t most, int64_t* count);

 private:
  static constexpr size_t kParts = 7;
  struct Probed;
  Probed& seen(int64_t op);

  struct Kept {
    const char* data;
    Ranges written;
  };
  struct Probed {
    int64_t op = 0;
    int64_t nbytes = 0;
    uint32_t checksum = 0;
    std::array<uint32_t, kParts> parts{};
    size_t of_any = 0;  // of these
  };
  std::map<int64_t, Kept> blocks_;
  std::vector<int64_t> dropped_;  // since the last kernel
  std::deque<Probed> reads_;  // by operation: a program may read very often
  std::vector<int64_t> taken_;
};

Probes& probes();

}  // namespace simgpu
