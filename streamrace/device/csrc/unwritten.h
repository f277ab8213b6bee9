// What nobody wrote: a run in which that holds another pattern, so that two such runs differ where a value depends on it.
//
// A pattern is put where it is first needed, by the launch that reads the bytes or perhaps leaves some of them as they
// are, and before it: no launch that was issued earlier has written them, so no order of the program is touched, and
// memory that the allocator handed out again is as good as fresh.
#pragma once

#include <map>
#include <set>
#include <utility>

#include "trace.h"

namespace simgpu {

// Ranges that lie apart, from -> to.
using Ranges = std::map<int64_t, int64_t>;
void add(Ranges& ranges, int64_t lo, int64_t hi);

class Unwritten {
 public:
  bool on = false;
  bool copies = true;  // what is only copied to the host counts as seen; else it is taken for a padding

  // `poisoned`: pairs of a rank and one of its blocks, which hold NaN (bytes 0xFF). All others hold numbers.
  void begin(bool every, std::set<std::pair<int64_t, int64_t>> poisoned, bool copies);
  void made(int64_t block, char* data, int64_t nbytes);
  void dropped(int64_t block);
  // The effect of a launch, behind one that puts the pattern where this launch is the first to touch.
  Effect behind(const Accesses& accesses, Effect effect);
  // The same of a collective, which reads when it starts and writes all that it names.
  Effect behind_reads(const Accesses& accesses, Effect effect);

 private:
  struct Kept {
    char* data;
    int64_t nbytes;
    bool poisoned;
    Ranges written;
  };
  struct Fill {
    char* data;
    int64_t lo, hi;
    bool poisoned;
  };
  std::map<int64_t, Kept> blocks_;
  std::set<std::pair<int64_t, int64_t>> poisoned_;
  bool every_ = false;

  void touch(const std::vector<Access>& accesses, std::vector<Fill>* fills);
  static Effect filling(std::vector<Fill> fills, Effect effect);
};

Unwritten& unwritten();
bool is_pattern(const void* item, size_t itemsize);  // as it was put there, unchanged

}  // namespace simgpu
