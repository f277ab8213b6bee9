// Computes the time of each moment of a timing, and the order of effects.
#pragma once

#include <cstdint>

namespace replay {

// By node, from `begin` on: the latest of its predecessors plus its cost. Earlier nodes must be in `times` already.
void times(int64_t count, const int64_t* preds_at, const int32_t* preds, const int64_t* costs, int64_t begin,
           int64_t* times);

// `order`: places in any order, sorted by time, then by place; fastest if nearly sorted already.
void sort(int64_t count, const int64_t* when, int64_t* order);

}  // namespace replay
