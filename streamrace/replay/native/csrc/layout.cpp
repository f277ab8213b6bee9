// Cuts memory into atoms: streamrace/replay/numbering.py, lay_out.
#include <algorithm>

#include "numbering.h"

namespace replay {

namespace {

struct Piece {
  int64_t source, target, size;
};

using Cuts = std::vector<int64_t>;

void sort_out(Cuts& cuts) {
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
}

// Mirrors each cut in a moved range: cuts in the source are made in the target, and vice versa.
void align(Cuts& cuts, const std::vector<Piece>& pieces) {
  for (bool growing = true; growing;) {
    Cuts more;
    auto mirror = [&](int64_t source, int64_t target, int64_t size) {
      for (auto cut = std::lower_bound(cuts.begin(), cuts.end(), source); cut != cuts.end() && *cut < source + size;
           ++cut) {
        int64_t other = *cut - source + target;
        if (!std::binary_search(cuts.begin(), cuts.end(), other)) more.push_back(other);
      }
    };
    for (const auto& one : pieces) {
      mirror(one.source, one.target, one.size);
      mirror(one.target, one.source, one.size);
    }
    growing = !more.empty();
    cuts.insert(cuts.end(), more.begin(), more.end());
    sort_out(cuts);
  }
}

}  // namespace

void Numbering::lay_out(int64_t layout, const int64_t* where) {
  Cuts cuts;
  std::vector<Piece> pieces;
  std::vector<int64_t> moves_at{0};
  for (const auto* spans : {&deeds_.reads, &deeds_.writes})
    for (const auto& span : *spans) {
      cuts.push_back(where[span.block] + span.lo);
      cuts.push_back(where[span.block] + span.hi);
    }
  for (int64_t place = 0; place < deeds_.count(); ++place) {
    for (int64_t at = deeds_.passed_at[place]; at < deeds_.passed_at[place + 1]; ++at) {
      const auto& one = deeds_.passed[at];
      int64_t source = where[one.former] + one.start, target = where[one.block] + one.lo, size = one.hi - one.lo;
      if (source == target) continue;
      pieces.push_back({source, target, size});
      for (int64_t cut : {source, source + size, target, target + size}) cuts.push_back(cut);
    }
    moves_at.push_back(static_cast<int64_t>(pieces.size()));
  }
  sort_out(cuts);
  int64_t blocks = static_cast<int64_t>(sizes_.size());
  if (!cuts.empty()) {
    int64_t lowest = cuts.front(), highest = cuts.back();
    for (int64_t block = 0; block < blocks; ++block)
      for (int64_t cut : {where[block], where[block] + sizes_[block]})
        if (lowest < cut && cut < highest) cuts.push_back(cut);
    sort_out(cuts);
  }
  align(cuts, pieces);

  auto at = [&](int64_t cut) {
    return static_cast<int32_t>(std::lower_bound(cuts.begin(), cuts.end(), cut) - cuts.begin());
  };
  Layout made;
  size_t atoms = cuts.empty() ? 0 : cuts.size() - 1;
  made.lengths.resize(atoms);
  made.initial.assign(atoms, 0);
  for (size_t one = 0; one < atoms; ++one) made.lengths[one] = cuts[one + 1] - cuts[one];
  for (int64_t block = 0; block < blocks; ++block) {  // newer blocks last: they own the memory of their formers
    int64_t base = where[block];
    for (size_t one = at(base); one < atoms && cuts[one] < base + sizes_[block]; ++one)
      made.initial[one] = bases_[block] + cuts[one] - base;
  }
  auto atoms_of = [&](const std::vector<Span>& spans, std::vector<Atoms>& found) {
    found.reserve(spans.size());
    for (const auto& span : spans)
      found.push_back({at(where[span.block] + span.lo), at(where[span.block] + span.hi)});
  };
  atoms_of(deeds_.reads, made.reads);
  atoms_of(deeds_.writes, made.writes);
  made.moves_at = std::move(moves_at);
  for (const auto& one : pieces)
    made.moves.push_back({at(one.source), at(one.target), at(one.source + one.size) - at(one.source)});
  layouts_[layout] = std::move(made);
}

}  // namespace replay
