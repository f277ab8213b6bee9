// Unwritten memory: a run in which it holds another pattern, so that two such runs differ where a value depends on it.
//
// A pattern is written where it is first needed, by the launch that reads the bytes or may leave some of them as they
// are, and before its own effect: no earlier launch has written them, so no order of the program is affected, and memory
// that the allocator handed out again counts as fresh.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <utility>

#include "trace.h"

namespace simgpu {

// Disjoint ranges, from -> to.
using Ranges = std::map<int64_t, int64_t>;
void add(Ranges& ranges, int64_t lo, int64_t hi);

class Unwritten {
 public:
  bool on = false;
  bool copies = true;  // data only copied to the host count as seen; else they count as padding

  // `poisoned`: pairs of a rank and one of its blocks, which hold NaN (bytes 0xFF). All others hold numbers.
  void begin(bool every, std::set<std::pair<int64_t, int64_t>> poisoned, bool copies);
  void made(int64_t block, char* data, int64_t nbytes);
  void dropped(int64_t block);
  // Returns a launch's effect, preceded by writing the pattern to bytes that this launch is the first to touch.
  Effect behind(const Accesses& accesses, Effect effect);
  // The same for a collective, which reads when it starts and writes all its outputs.
  Effect behind_reads(const Accesses& accesses, Effect effect);
  // Other work writes these bytes: what is still claimed of them is not filled any more.
  void release(const std::vector<Access>& writes);

 private:
  struct Kept {
    char* data;
    int64_t nbytes;
    bool poisoned;
    Ranges written;
  };
  struct Fill {
    int64_t block;
    char* data;
    int64_t lo, hi;
    bool poisoned;
  };
  using Fills = std::shared_ptr<std::vector<Fill>>;
  std::vector<std::weak_ptr<std::vector<Fill>>> claims_;  // of launches with late accesses that have not run
  std::map<int64_t, Kept> blocks_;
  std::set<std::pair<int64_t, int64_t>> poisoned_;
  bool every_ = false;

  void touch(const std::vector<Access>& accesses, std::vector<Fill>* fills);
  static Effect filling(std::vector<Fill> fills, Effect effect);
};

Unwritten& unwritten();
bool is_pattern(const void* item, size_t itemsize);  // unchanged since the pattern was written

}  // namespace simgpu
