// One rank: its host, its streams, its blocks, and the races among the accesses to them. detectors/order/rank.py and
// streams.py, in C++, on the records of streamrace/trace/records.py as they are.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "block.h"
#include "rendezvous.h"
#include "schema.h"

namespace order {

// What the Python side hands over, in this order (detectors/native/engine.py): the records' types, and these.
enum Part { kTraceError = schema::kCodes, kFirstPhase, kName, kProbes, kNone, kParts };

// What all ranks share.
struct Shared {
  std::vector<Object> parts;
  PyObject* found = nullptr;  // called with each occurrence of a race; set while records are followed
  int64_t threads = 0;
  Layouts layouts;
  Numbers texts;  // of labels
  OpenCollectives collectives;

  PyObject* part(int which) const { return parts[static_cast<size_t>(which)].get(); }
  PyObject* none() const { return part(kNone); }
};

class Rank {
 public:
  Rank(int64_t number, Shared& shared);

  // Follow one record. False where it is a collective, which needs the other members: `arrival` is its part then.
  bool follow(PyObject* record, Arrival& arrival);
  void end_collective(const Arrival& arrival, const Known& known);
  // Name the bytes of the races in blocks that live still.
  void settle();
  int64_t live_state() const;

  const int64_t number;

 private:
  struct Marker {
    Snapshot position;
    int64_t done;  // when, in this timing, it is passed
  };

  Shared& shared_;
  Rule rule_;
  HostClock host_;
  std::unordered_map<int64_t, std::unique_ptr<StreamClock>> streams_;
  std::unordered_map<int64_t, Marker> markers_;
  int64_t highest_marker_ = -1;
  std::unordered_map<int64_t, Object> names_, stacks_;
  std::unordered_map<int64_t, std::unique_ptr<Block>> blocks_;
  Freed freed_;
  int64_t raced_ = 0;  // live blocks with races
  Ref<PhaseOf> phase_;
  Object no_frames_;
  Entries reads_, writes_;  // of the access at hand

  StreamClock& on(int64_t stream);
  Block& block(int64_t block);
  Ref<Operation> operation(PyObject* record, bool collective) const;

  void launch(PyObject* record);
  Arrival begin_collective(PyObject* record);
  void accesses(PyObject* accesses, StreamClock& stream, const Ref<Operation>& operation, bool write);
  void access(int64_t number, Entry entry, const StreamClock& stream, bool write);
  void check_former(int64_t number, Block& block, const Entry& entry, const StreamClock& stream, bool write);

  void record(PyObject* record);
  void wait(PyObject* record);
  void host_wait(PyObject* record);
  const Marker* marker(int64_t marker) const;

  void alloc(PyObject* record);
  void record_stream(PyObject* record);
  void label(PyObject* record);
  void free(PyObject* record);
  void check_free(int64_t number, Block& block, int64_t time);
  void reuse(PyObject* record);
  void begin(PyObject* record);
  void settle(Block& block);

  Object name(int64_t stream) const;
  Object frames(int64_t stack) const;
  Object side(const Entry& entry, const char* access) const;
  void compare(int64_t number, Block& block, const Entries& olds, const char* before, const Entry& entry,
               const char* after, const Object* got = nullptr);
  void count(int64_t number, Block& block, const Entry& old, const char* access, const Object& second, int64_t effect,
             int64_t lo, int64_t hi, const Object* got);
};

}  // namespace order
