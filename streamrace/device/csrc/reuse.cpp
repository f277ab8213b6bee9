// Finds which bytes of a new block were in which former block. Between a free and the next allocation memory has no owner,
// but the last owner's work on the streams may still touch it; so may the work of earlier owners, if the last one
// touched nothing. The trace records the last owner of each byte, and leaves the rest to the detector.
#include <unordered_map>

#include "allocator.h"

namespace simgpu {
namespace {

struct Former {
  int64_t block;
  char *data, *end;  // the start of the block, and the end of this piece of it
};

struct Formers {
  std::map<char*, Former> pieces;              // by start; disjoint
  std::unordered_map<int64_t, int64_t> count;  // number of each block's pieces
};
Formers& formers() {
  static auto* one = new Formers;
  return *one;
}

bool lose(int64_t block, int64_t pieces) {  // returns whether it was the last
  auto found = formers().count.find(block);
  if ((found->second -= pieces) > 0) return false;
  formers().count.erase(found);
  return true;
}

}  // namespace

void let_go(const Block& block) {
  trace().note(WordKind::kFree, {block.number, timeline().now});
  formers().pieces[block.data] = {block.number, block.data, block.data + block.nbytes};
  formers().count[block.number] = 1;
}

void hand_out(const Block& block, int64_t site) {
  auto& pieces = formers().pieces;
  char *begin = block.data, *end = block.data + block.nbytes;
  auto place = pieces.upper_bound(begin);
  if (place != pieces.begin() && std::prev(place)->second.end > begin) --place;
  while (place != pieces.end() && place->first < end) {
    auto [lo, former] = *place;
    place = pieces.erase(place);
    int64_t lost = 1;
    if (lo < begin) --lost, pieces[lo] = {former.block, former.data, begin};
    if (former.end > end) --lost, place = pieces.emplace(end, former).first;
    bool last = lost > 0 ? lose(former.block, lost) : (formers().count[former.block] -= lost, false);
    char *from = std::max(lo, begin), *to = std::min(former.end, end);
    trace().note(WordKind::kReuse, {block.number, former.block, from - begin, to - begin, from - former.data, site, last});
  }
}

void take_away(char* data, size_t size) {
  auto& pieces = formers().pieces;
  for (auto place = pieces.lower_bound(data); place != pieces.end() && place->first < data + size; place = pieces.erase(place))
    if (lose(place->second.block, 1)) trace().note(WordKind::kReuse, {-1, place->second.block, 0, 0, 0, 0, 1});
}

}  // namespace simgpu
