// The host's actions, in their order: words of 64 bits, which packed.cpp encodes as records. Nothing is
// written while nothing is traced.
#pragma once

#include <atomic>
#include <deque>
#include <string>
#include <unordered_set>

#include "schema.h"
#include "timeline.h"

namespace simgpu {

using schema::WordKind;

// Bytes lo (inclusive) to hi (exclusive) of a block. `layout` 0: every byte; else see layout_id().
struct Access {
  int64_t block, lo, hi, layout;
};

struct Accesses {
  std::vector<Access> reads, writes;
  bool late = false;  // these are bounds only: the effect reports what it accesses (Trace::report)
};

// The accesses of work that only its effect knows: a kernel that an interpreter executes.
struct Late {
  int64_t op = -1;
  std::vector<Access> reads, writes;
  bool known = false;
};
using LatePtr = std::shared_ptr<Late>;

class Trace {
 public:
  bool on = false;
  bool joins = false;  // a launch's many ranges are joined where that names the same bytes
  int64_t ops = 0, markers = 0;
  void (*launched)(const Accesses& accesses, bool collective) = nullptr;  // called with each launch
  void (*wrote)(const std::vector<Access>& accesses) = nullptr;           // ... with all that late work has written so far

  void begin(bool traced);
  void note(WordKind kind, std::initializer_list<int64_t> words);
  void note(WordKind kind, int64_t first, const std::vector<int64_t>& rest);
  // `work` null: the times are known.
  void launch(int64_t stream, int64_t kernel, const Accesses& accesses, int64_t stack, int64_t issued, int64_t start,
              int64_t end, int64_t nominal, const WorkPtr& work, int64_t root = -1, int64_t issuer = -1);
  // Returns the effect of the next launch, whose accesses are late: its record, and all behind it, stay in the buffer until
  // the effect has run.
  Effect reporting(Effect effect);
  void report(bool writes, const int64_t* ranges, int64_t count);  // threes: block, first byte, end; by the effect that runs
  int64_t reporting() const { return running_ ? running_->op : -1; }               // the operation whose effect runs
  int64_t layout_id(int64_t itemsize, const std::vector<std::pair<int64_t, int64_t>>& dims);  // (size, stride in bytes)
  const std::vector<int64_t>& layout(int64_t id) const { return *keys_[id - 1]; }  // an item's bytes, then size, stride, ...
  // The finished part of the buffer, valid until the next call of anything here.
  const int64_t* take(int64_t* words, bool everything);
  bool full() const { return full_.load(std::memory_order_relaxed); }  // time to take the finished part

 private:
  static constexpr size_t kBatch = 1 << 15;
  size_t full_at_ = kBatch;  // words, so that a long run does not keep its trace in memory
  std::atomic<bool> full_{false};
  std::vector<int64_t> words_, taken_;
  std::vector<std::pair<size_t, WorkPtr>> open_;  // with times that must still be filled in
  std::deque<std::pair<size_t, LatePtr>> late_;   // by the beginning of their record: accesses that are still unknown
  LatePtr next_, running_;
  std::unordered_set<int64_t> groups_;  // that the trace has named
  std::map<std::vector<int64_t>, int64_t> layouts_;
  std::vector<const std::vector<int64_t>*> keys_;  // the map's keys, by number

  size_t known_until(size_t until) const;
  void splice(size_t until);
  const std::vector<Access>& in_few(const std::vector<Access>& accesses, std::vector<Access>& made);
};

Trace& trace();

// Visits each run of bytes that an access covers, in the order of its dimensions from the widest stride to the narrowest.
template <typename Do>
void each_run(const Access& access, Do run) {
  if (access.layout == 0) return run(access.lo, access.hi);
  const auto& layout = trace().layout(access.layout);  // bytes of an item, then size and stride of each dimension
  size_t dims = (layout.size() - 1) / 2;
  int64_t width = layout[0];
  size_t inner = 0;  // the narrowest dimensions may have no gaps
  while (inner < dims && layout[2 + 2 * inner] == width) width *= layout[1 + 2 * inner++];
  std::vector<int64_t> at(dims, 0);
  for (int64_t lo = access.lo;;) {
    run(lo, lo + width);
    size_t dim = inner;
    while (dim < dims && ++at[dim] == layout[1 + 2 * dim]) {
      lo -= (at[dim] - 1) * layout[2 + 2 * dim];
      at[dim++] = 0;
    }
    if (dim == dims) return;
    lo += layout[2 + 2 * dim];
  }
}

int64_t name_id(const std::string& name);
const char* name_of(int64_t id);

}  // namespace simgpu
