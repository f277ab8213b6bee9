// One rank: its host, its streams, its blocks, and the races among the accesses to them. detectors/order/rank.py and
// streams.py, in C++, on the bytes of a trace.
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

// What all ranks share.
struct Shared {
  std::string probes;
  int64_t threads = 0;
  Layouts layouts;
  Texts texts;
  Reports reports;
  OpenCollectives collectives;
};

struct PhaseOf {
  int64_t step, micro_batch, name;
};

class Rank {
 public:
  Rank(int64_t number, Shared& shared);

  // Follow one record. False where it is a collective, which needs the other members: `arrival` is its part then.
  bool follow(Reader& from, Arrival& arrival);
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
  std::unordered_map<int64_t, int64_t> names_, stacks_;  // numbers of texts
  std::unordered_map<int64_t, std::unique_ptr<Block>> blocks_;
  Freed freed_;
  int64_t raced_ = 0;  // live blocks with races
  PhaseOf phase_;
  int64_t no_frames_;
  Entries reads_, writes_;  // of the access at hand

  StreamClock& on(int64_t stream);
  Block& block(int64_t block);
  template <typename Record>
  Ref<Operation> operation(const Record& record) const;

  void launch(const schema::Launch::Values& record);
  Arrival begin_collective(const schema::Collective::Values& record);
  void accesses(std::string_view bytes, StreamClock& stream, const Ref<Operation>& operation, bool write);
  void access(int64_t number, Entry entry, const StreamClock& stream, bool write);
  void check_former(int64_t number, Block& block, const Entry& entry, const StreamClock& stream, bool write);

  void record(const schema::Record::Values& record);
  void wait(const schema::Wait::Values& record);
  void host_wait(const schema::HostWait::Values& record);
  const Marker* marker(int64_t marker) const;

  void alloc(const schema::Alloc::Values& record);
  void record_stream(const schema::RecordStream::Values& record);
  void label(const schema::Label::Values& record);
  void free(const schema::Free::Values& record);
  void check_free(int64_t number, Block& block, int64_t time);
  void reuse(const schema::Reuse::Values& record);
  void begin(const schema::Begin::Values& record);
  void group(const schema::Group::Values& record);
  void stack(const schema::Stack::Values& record);
  void settle(Block& block);

  int64_t name(int64_t stream) const;
  int64_t frames(int64_t stack) const;
  Side side(const Entry& entry, int64_t access) const;
  void compare(int64_t number, Block& block, const Entries& olds, int64_t before, const Entry& entry, int64_t after,
               int64_t allocated = -1);
  void count(int64_t number, Block& block, const Entry& old, int64_t access, const Side& second, const Moment& moment,
             int64_t effect, int64_t lo, int64_t hi, int64_t allocated);
};

}  // namespace order
