// The functions that Python calls (engine.py). Numbers are int64; the caller has checked all places, blocks and ranges.
#include <new>

#include "numbering.h"
#include "times.h"

using replay::Numbering;

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

std::vector<int64_t> vector_of(const int64_t* numbers, int64_t count) { return {numbers, numbers + count}; }

template <typename Row>
std::vector<Row> rows(const int64_t* numbers, int64_t count) {
  const auto* begin = reinterpret_cast<const Row*>(numbers);
  return {begin, begin + count};
}

// Runs work that may raise a Python exception. Python checks for one, whatever is returned.
template <typename Work>
int64_t called(Work work) {
  try {
    return work();
  } catch (const replay::Raised&) {
    return replay::kNone;
  }
}

}  // namespace

EXPORT void* numbering_new(int64_t places, const int64_t* what, const int64_t* exchange, const int64_t* member,
                           const int64_t* members, const int64_t* reads_at, const int64_t* reads,
                           const int64_t* writes_at, const int64_t* writes, const int64_t* passed_at,
                           const int64_t* passed, int64_t blocks, const int64_t* bases, const int64_t* sizes,
                           int64_t bytes, const uint8_t* initial, int64_t limit) {
  replay::Deeds deeds;
  deeds.what = vector_of(what, places);
  deeds.exchange = vector_of(exchange, places);
  deeds.member = vector_of(member, places);
  deeds.members = vector_of(members, places);
  deeds.reads_at = vector_of(reads_at, places + 1);
  deeds.writes_at = vector_of(writes_at, places + 1);
  deeds.passed_at = vector_of(passed_at, places + 1);
  deeds.reads = rows<replay::Span>(reads, reads_at[places]);
  deeds.writes = rows<replay::Span>(writes, writes_at[places]);
  deeds.passed = rows<replay::Passed>(passed, passed_at[places]);
  return new Numbering(std::move(deeds), vector_of(bases, blocks), vector_of(sizes, blocks),
                       std::vector<uint8_t>(initial, initial + bytes), limit);
}

EXPORT void numbering_delete(void* it) { delete static_cast<Numbering*>(it); }
EXPORT void numbering_forget(void* it) { static_cast<Numbering*>(it)->forget(); }
EXPORT void numbering_lay_out(void* it, int64_t layout, const int64_t* bases) {
  static_cast<Numbering*>(it)->lay_out(layout, bases);
}
EXPORT void numbering_drop(void* it, int64_t layout) { static_cast<Numbering*>(it)->drop(layout); }
EXPORT int64_t numbering_follow(void* it, int64_t layout, const int64_t* order, int64_t count, int64_t* computed,
                                int64_t* fresh) {
  return static_cast<Numbering*>(it)->follow(layout, order, count, computed, fresh);
}
EXPORT int64_t numbering_place(void* it, int64_t number) { return static_cast<Numbering*>(it)->place(number); }
EXPORT int64_t numbering_arrivals(void* it, int64_t number, int64_t* found) {
  return static_cast<Numbering*>(it)->arrivals(number, found);
}
EXPORT void numbering_done(void* it, const int64_t* numbers, int64_t count) {
  static_cast<Numbering*>(it)->done(numbers, count);
}
EXPORT int64_t numbering_give(void* it, int64_t number, uint8_t* memory) {
  return static_cast<Numbering*>(it)->give(number, memory);
}
EXPORT void numbering_keep(void* it, int64_t number, const uint8_t* memory) {
  static_cast<Numbering*>(it)->keep(number, memory);
}
EXPORT void numbering_bound(void* it, int64_t limit) { static_cast<Numbering*>(it)->bound(limit); }
EXPORT int64_t numbering_carry_out(void* it, const int64_t* numbers, int64_t count, PyObject* const* effects,
                                   uint8_t* memory) {
  return called([&] { return static_cast<Numbering*>(it)->carry_out(numbers, count, effects, memory); });
}
EXPORT int64_t numbering_stage(void* it, int64_t number, PyObject* const* effects, uint8_t* memory) {
  return called([&] { return static_cast<Numbering*>(it)->stage(number, effects, memory); });
}
EXPORT void numbering_unstage(void* it) { static_cast<Numbering*>(it)->unstage(); }
EXPORT int64_t numbering_count(void* it) { return static_cast<Numbering*>(it)->count(); }
EXPORT int64_t numbering_words(void* it) { return static_cast<Numbering*>(it)->words(); }
EXPORT int64_t numbering_held(void* it) { return static_cast<Numbering*>(it)->held(); }

EXPORT void replay_times(int64_t count, const int64_t* preds_at, const int32_t* preds, const int64_t* costs,
                         int64_t begin, int64_t* times) {
  replay::times(count, preds_at, preds, costs, begin, times);
}
EXPORT void replay_sort(int64_t count, const int64_t* when, int64_t* order) { replay::sort(count, when, order); }
