// When each moment of a timing is, and in which order effects take place.
#pragma once

#include <cstdint>

namespace replay {

// By node, from `begin` on: the latest of what it waits for, and its cost. Those before `begin` are there already.
void times(int64_t count, const int64_t* preds_at, const int32_t* preds, const int64_t* costs, int64_t begin,
           int64_t* times);

// `order`: places in any order, best in nearly the right one; sorted by time, then by place.
void sort(int64_t count, const int64_t* when, int64_t* order);

}  // namespace replay
