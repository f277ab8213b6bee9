// Carries computations out: streamrace/replay/numbering.py, carry_out and stage.
#include <algorithm>

#include "numbering.h"

namespace replay {

namespace {

void call(PyObject* effect) {
  PyObject* given = PyObject_CallObject(effect, nullptr);
  if (!given) throw Raised();
  Py_DecRef(given);
}

}  // namespace

int64_t Numbering::carry_out(const int64_t* numbers, int64_t count, PyObject* const* effects, uint8_t* memory) {
  for (int64_t at = 0; at < count; ++at) {
    int64_t number = numbers[at];
    if (stage(number, effects, memory) != kNone || give(number, memory) != kNone) return at;
    call(effects[place(number)]);
    keep(number, memory);
  }
  return count;
}

int64_t Numbering::stage(int64_t number, PyObject* const* effects, uint8_t* memory) {
  int64_t where = place(number), exchange = deeds_.exchange[where];
  if (deeds_.what[where] != kLeave) return kNone;
  auto& staged = staged_[exchange];
  const int64_t* arrivals = &words_[begins_[number] + 1];
  const int64_t* end = arrivals + deeds_.members[where];
  if (std::equal(arrivals, end, staged.begin(), staged.end())) return kNone;
  staged.clear();
  for (const int64_t* one = arrivals; one != end; ++one) {
    int64_t missing = give(*one, memory);
    if (missing != kNone) return missing;
    call(effects[deeds_.arrive[exchange * deeds_.most + (one - arrivals)]]);
  }
  staged.assign(arrivals, end);
  return kNone;
}

}  // namespace replay
