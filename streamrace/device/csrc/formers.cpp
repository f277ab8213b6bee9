#include "formers.h"

#include "trace.h"

#include <algorithm>

namespace simgpu {

bool Formers::lose(int64_t block, int64_t pieces) {
  auto found = count_.find(block);
  if ((found->second -= pieces) > 0) return false;
  count_.erase(found);
  return true;
}

void Formers::let_go(int64_t block, uintptr_t data, size_t nbytes) {
  pieces_[data] = {block, data, data + nbytes};
  count_[block] = 1;
}

void Formers::hand_out(int64_t block, uintptr_t begin, size_t nbytes, int64_t site) {
  uintptr_t end = begin + nbytes;
  auto place = pieces_.upper_bound(begin);
  if (place != pieces_.begin() && std::prev(place)->second.end > begin) --place;
  while (place != pieces_.end() && place->first < end) {
    auto [lo, former] = *place;
    place = pieces_.erase(place);
    int64_t lost = 1;
    if (lo < begin) --lost, pieces_[lo] = {former.block, former.data, begin};
    if (former.end > end) --lost, place = pieces_.emplace(end, former).first;
    bool last = lost > 0 ? lose(former.block, lost) : (count_[former.block] -= lost, false);
    auto from = static_cast<int64_t>(std::max(lo, begin)), to = static_cast<int64_t>(std::min(former.end, end)), first = static_cast<int64_t>(begin);
    trace().note(WordKind::kReuse, {block, former.block, from - first, to - first, from - static_cast<int64_t>(former.data), site, last});
  }
}

void Formers::take_away(uintptr_t data, size_t nbytes) {
  auto first = pieces_.lower_bound(data);
  if (first != pieces_.begin() && std::prev(first)->second.end > data) --first;  // a piece is taken away as a whole
  for (auto place = first; place != pieces_.end() && place->first < data + nbytes; place = pieces_.erase(place))
    if (lose(place->second.block, 1)) trace().note(WordKind::kReuse, {-1, place->second.block, 0, 0, 0, 0, 1});
}

void Formers::keep(std::vector<std::pair<uintptr_t, size_t>> segments) {
  std::sort(segments.begin(), segments.end());
  uintptr_t at = 0;
  for (auto [data, nbytes] : segments) {
    take_away(at, data - at);
    at = data + nbytes;
  }
  take_away(at, UINTPTR_MAX - at);
}

}  // namespace simgpu
