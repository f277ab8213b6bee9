#include "times.h"

#include <algorithm>
#include <vector>

namespace replay {

void times(int64_t count, const int64_t* preds_at, const int32_t* preds, const int64_t* costs, int64_t begin,
           int64_t* times) {
  for (int64_t node = begin; node < count; ++node) {
    int64_t latest = 0;
    if (preds_at[node] < preds_at[node + 1]) {
      latest = times[preds[preds_at[node]]];
      for (int64_t at = preds_at[node] + 1; at < preds_at[node + 1]; ++at) latest = std::max(latest, times[preds[at]]);
    }
    times[node] = latest + costs[node];
  }
}

// A natural merge sort: most timings keep most of the order.
void sort(int64_t count, const int64_t* when, int64_t* order) {
  auto before = [when](int64_t one, int64_t other) {
    return when[one] != when[other] ? when[one] < when[other] : one < other;
  };
  std::vector<int64_t> runs{0}, other(count);
  for (int64_t at = 1; at < count; ++at)
    if (before(order[at], order[at - 1])) runs.push_back(at);
  runs.push_back(count);
  int64_t *from = order, *to = other.data();
  while (runs.size() > 2) {
    std::vector<int64_t> merged{0};
    for (size_t run = 0; run + 1 < runs.size(); run += 2) {
      int64_t begin = runs[run], middle = runs[run + 1], end = run + 2 < runs.size() ? runs[run + 2] : middle;
      std::merge(from + begin, from + middle, from + middle, from + end, to + begin, before);
      merged.push_back(end);
    }
    runs = std::move(merged);
    std::swap(from, to);
  }
  if (from != order) std::copy(from, from + count, order);
}

}  // namespace replay
