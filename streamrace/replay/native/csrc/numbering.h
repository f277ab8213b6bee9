// Value numbering: the twin of streamrace/replay/numbering.py, which is the specification.
#pragma once

#include <cstdint>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

// The needed part of CPython: both functions are in its limited interface, and no header is required.
extern "C" {
struct PyObject;
PyObject* PyObject_CallObject(PyObject*, PyObject*);
void Py_DecRef(PyObject*);
}

namespace replay {

// A Python exception is set: unwind to the call that came from Python.
struct Raised {};

constexpr int64_t kInitial = 0, kNone = -1;
constexpr int64_t kNothing = 0, kWork = 1, kArrive = 2, kLeave = 3, kInherit = 4;  // engine.py: _WHAT

struct Span {
  int64_t block, lo, hi;
};

struct Passed {
  int64_t block, former, lo, hi, start;
};

// All effects: by place, the rows of `spans` and `passed` from at[place] to at[place + 1].
struct Deeds {
  std::vector<int64_t> what, exchange, member, members;
  std::vector<int64_t> reads_at, writes_at, passed_at;
  std::vector<Span> reads, writes;
  std::vector<Passed> passed;
  std::vector<int64_t> outs;     // by write: its offset in the effect's result
  std::vector<int64_t> leaving;  // by place: the size of that result
  int64_t exchanges = 0, most = 0;  // most: members of an exchange
  std::vector<int64_t> arrive;      // by exchange and member: the place of its arrival

  int64_t count() const { return static_cast<int64_t>(what.size()); }
};

struct Atoms {
  int32_t begin, end;
};

struct Move {
  int32_t source, target, count;
};

// Memory in atoms, which no effect touches in part.
struct Layout {
  std::vector<int64_t> lengths, initial;
  std::vector<Atoms> reads, writes;
  std::vector<int64_t> moves_at;
  std::vector<Move> moves;
};

class Numbering {
 public:
  Numbering(Deeds deeds, std::vector<int64_t> bases, std::vector<int64_t> sizes, std::vector<uint8_t> initial,
            int64_t limit);

  void forget();
  void lay_out(int64_t layout, const int64_t* bases);
  void drop(int64_t layout) { layouts_.erase(layout); }
  // Returns the number of places written to `fresh`; -1 if a collective ends before all have arrived.
  int64_t follow(int64_t layout, const int64_t* order, int64_t count, int64_t* computed, int64_t* fresh);
  int64_t place(int64_t number) const { return words_[begins_[number]]; }
  int64_t arrivals(int64_t number, int64_t* found) const;
  void done(const int64_t* numbers, int64_t count) {
    for (int64_t at = 0; at < count; ++at) done_[numbers[at]] = 1;
  }
  int64_t give(int64_t number, uint8_t* memory);
  void keep(int64_t number, const uint8_t* memory);
  void bound(int64_t limit);
  // `effects`: by place. These two functions raise.
  int64_t carry_out(const int64_t* numbers, int64_t count, PyObject* const* effects, uint8_t* memory);
  int64_t stage(int64_t number, PyObject* const* effects, uint8_t* memory);
  void unstage() { staged_.assign(deeds_.exchanges, {}); }

  int64_t count() const { return static_cast<int64_t>(done_.size()); }
  int64_t words() const { return static_cast<int64_t>(words_.size()); }
  int64_t held() const { return held_; }

 private:
  struct Left {
    std::unique_ptr<uint8_t[]> bytes;
    int64_t size;
    std::list<int64_t>::iterator used;
  };

  int64_t number(const std::vector<int64_t>& key);
  void grow();

  Deeds deeds_;
  std::vector<int64_t> bases_, sizes_;
  std::vector<uint8_t> initial_;
  int64_t limit_, held_ = 0;
  std::map<int64_t, Layout> layouts_;
  // Computation i is the words from begins_[i] to begins_[i + 1].
  std::vector<int64_t> words_, begins_;
  std::vector<uint64_t> hashes_;
  std::vector<uint8_t> done_;
  std::vector<int64_t> table_;  // open addressing; kNone: free
  std::unordered_map<int64_t, Left> kept_;
  std::list<int64_t> used_;  // the most recently used comes last
  std::vector<std::vector<int64_t>> staged_;  // by exchange: the arrivals whose data are staged
  // State of the timing being followed; the allocations are reused for the next timing.
  std::vector<int64_t> who_, offset_, key_, arrived_;
};

}  // namespace replay
