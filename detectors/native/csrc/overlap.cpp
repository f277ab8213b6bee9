#include "overlap.h"

#include <algorithm>

namespace order {
namespace {

constexpr int64_t kMaxRuns = 1 << 18;
constexpr int64_t kCoverRuns = 1 << 14;
constexpr size_t kAnswers = 1 << 16;  // so many are kept

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

bool too_many(size_t starts, int64_t steps, int64_t most) {
  return static_cast<__int128>(starts) * steps > static_cast<__int128>(4 * most);
}

}  // namespace

int64_t Layouts::number(int64_t itemsize, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
  std::vector<int64_t> key{itemsize};
  key.insert(key.end(), sizes.begin(), sizes.end());
  key.insert(key.end(), strides.begin(), strides.end());
  const auto [found, fresh] = numbers_.try_emplace(key, static_cast<int64_t>(layouts_.size()));
  if (!fresh) return found->second;
  std::vector<Dim> sorted;
  for (size_t at = 0; at < sizes.size(); ++at) sorted.push_back({strides[at], sizes[at]});
  std::sort(sorted.begin(), sorted.end(), [](const Dim& a, const Dim& b) {
    return a.stride != b.stride ? a.stride < b.stride : a.size < b.size;
  });
  Normal normal{itemsize, {}};
  for (const auto& [stride, size] : sorted) {
    if (size == 0) {
      normal.dims = {{1, 0}};
      layouts_.push_back(normal);
      return found->second;
    }
    if (size == 1) continue;
    if (normal.dims.empty() && stride <= normal.run)
      normal.run += stride * (size - 1);
    else if (!normal.dims.empty() && stride == normal.dims.back().stride * normal.dims.back().size)
      normal.dims.back().size *= size;
    else
      normal.dims.push_back({stride, size});
  }
  std::reverse(normal.dims.begin(), normal.dims.end());
  layouts_.push_back(normal);
  return found->second;
}

bool Layouts::overlap(const Touched& first, const Touched& second) {
  if (first.lo >= second.hi || second.lo >= first.hi) return false;
  if (first.layout == kDense && second.layout == kDense) return true;
  const Question question{second.lo - first.lo, {0, first.hi - first.lo, first.layout, first.before},
                          {0, second.hi - second.lo, second.layout, second.before}};
  if (const auto known = answers_.find(question); known != answers_.end()) return known->second;
  if (answers_.size() >= kAnswers) answers_.clear();
  return answers_[question] = strided(question);
}

size_t Layouts::Hash::operator()(const Question& question) const {
  uint64_t hash = 0;
  const auto& [distance, first, second] = question;
  for (const int64_t part : {distance, first.hi, first.layout, first.before, second.hi, second.layout, second.before})
    hash = (hash ^ static_cast<uint64_t>(part)) * 0x9E3779B97F4A7C15u, hash ^= hash >> 29;
  return hash;
}

bool Layouts::strided(const Question& question) {
  const auto& [distance, first, second] = question;
  const int64_t left = std::max<int64_t>(0, distance), right = std::min(first.hi, distance + second.hi);
  std::vector<int64_t> starts, second_starts;
  int64_t run = 0, second_run = 0;
  if (!runs(0, first, left, right, kMaxRuns, starts, run) ||
      !runs(distance, second, left, right, kMaxRuns, second_starts, second_run))
    return true;
  // Runs [s, s + run) and [o, o + second_run) meet if and only if s - second_run < o < s + run.
  for (const int64_t start : starts) {
    const auto nearest = std::upper_bound(second_starts.begin(), second_starts.end(), start - second_run);
    if (nearest != second_starts.end() && *nearest < start + run) return true;
  }
  return false;
}

bool Layouts::takes(Cover& cover, const Touched& touched) {
  std::vector<int64_t> starts;
  int64_t run = 0;
  if (!runs(touched.lo, touched, touched.lo, touched.hi, kCoverRuns, starts, run)) return true;
  Cover ranges, all;
  for (const int64_t start : starts) all.emplace_back(std::max(start, touched.lo), std::min(start + run, touched.hi));
  work += static_cast<int64_t>(cover.size());
  const auto middle = all.insert(all.end(), cover.begin(), cover.end());
  std::inplace_merge(all.begin(), middle, all.end());
  for (const auto& [start, end] : all) {
    if (ranges.empty() || start > ranges.back().second)
      ranges.emplace_back(start, end);
    else
      ranges.back().second = std::max(ranges.back().second, end);
  }
  if (ranges == cover) return false;
  if (ranges.size() <= kCoverRuns) cover.swap(ranges);
  return true;
}

// Sorted starts of the runs that may touch [left, right), and their length; false if they are too many.
bool Layouts::runs(int64_t lo, const Touched& touched, int64_t left, int64_t right, int64_t most,
                   std::vector<int64_t>& starts, int64_t& run) {
  static const std::vector<Dim> none;
  const bool dense = touched.layout == kDense;
  run = dense ? touched.hi - touched.lo : layouts_[static_cast<size_t>(touched.layout)].run;
  const std::vector<Dim>& dims = dense ? none : layouts_[static_cast<size_t>(touched.layout)].dims;
  std::vector<int64_t> inner(dims.size() + 1, run);  // inner[k]: bytes spanned by the dimensions k and later
  for (size_t k = dims.size(); k-- > 0;) inner[k] = inner[k + 1] + dims[k].stride * (dims[k].size - 1);
  starts = {lo - touched.before};
  for (size_t k = 0; k < dims.size(); ++k) {
    const auto [stride, size] = dims[k];
    int64_t first = 0, last = size - 1;
    if (starts.size() == 1) {  // an outer dimension: only the indices that lead into [left, right)
      first = std::max<int64_t>(0, -floor_div(starts[0] + inner[k + 1] - 1 - left, stride));
      last = std::min(size - 1, floor_div(right - 1 - starts[0], stride));
    }
    if (too_many(starts.size(), last - first + 1, most)) return false;
    std::vector<int64_t> next;
    work += static_cast<int64_t>(starts.size()) * std::max<int64_t>(0, last - first + 1);
    for (const int64_t base : starts)
      for (int64_t index = first; index <= last; ++index) {
        const int64_t start = base + index * stride;
        if (start < right && start + inner[k + 1] > left) next.push_back(start);
      }
    starts.swap(next);
    if (static_cast<int64_t>(starts.size()) > most) return false;
  }
  std::sort(starts.begin(), starts.end());
  return true;
}

}  // namespace order
