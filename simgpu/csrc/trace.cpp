#include "trace.h"

#include "probes.h"

namespace simgpu {

Trace& trace() {
  static auto* one = new Trace;
  return *one;
}

void Trace::note(Kind kind, std::initializer_list<int64_t> words) {
  if (!on) return;
  words_.push_back(static_cast<int64_t>(kind));
  words_.push_back(static_cast<int64_t>(words.size()));
  words_.insert(words_.end(), words);
  if (words_.size() >= full_at_) full_ = true;
}

void Trace::note(Kind kind, int64_t first, const std::vector<int64_t>& rest) {
  if (!on) return;
  words_.insert(words_.end(), {static_cast<int64_t>(kind), static_cast<int64_t>(rest.size()) + 1, first});
  words_.insert(words_.end(), rest.begin(), rest.end());
  if (words_.size() >= full_at_) full_ = true;
}

static void put(std::vector<int64_t>& words, const std::vector<Access>& accesses) {
  for (auto& one : accesses) words.insert(words.end(), {one.block, one.lo, one.hi, one.layout});
}

void Trace::launch(int64_t stream, int64_t kernel, const Accesses& accesses, int64_t stack, int64_t issued,
                   int64_t start, int64_t end, int64_t nominal, const WorkPtr& work, int64_t root, int64_t issuer) {
  ++ops;
  if (!on) return;
  bool met = work && work->collective;
  probes().launched(accesses, met);
  auto reads = static_cast<int64_t>(accesses.reads.size()), writes = static_cast<int64_t>(accesses.writes.size());
  words_.push_back(static_cast<int64_t>(met ? Kind::kCollective : Kind::kLaunch));
  words_.push_back(10 + (met ? 4 : 0) + 4 * (reads + writes));
  if (work) open_.emplace_back(words_.size() + 5, work);
  words_.insert(words_.end(), {ops, stream, kernel, stack, issued, start, end, nominal, reads, writes});
  if (met) words_.insert(words_.end(), {work->group, work->number, root, issuer});
  put(words_, accesses.reads);
  put(words_, accesses.writes);
  if (words_.size() >= full_at_) full_ = true;
}

int64_t Trace::layout_id(int64_t itemsize, const std::vector<std::pair<int64_t, int64_t>>& dims) {
  if (!on) return 0;
  std::vector<int64_t> key{itemsize};
  for (auto& [size, stride] : dims) key.insert(key.end(), {size, stride});
  auto [place, fresh] = layouts_.try_emplace(key, static_cast<int64_t>(layouts_.size()) + 1);
  if (fresh) {
    keys_.push_back(&place->first);
    words_.push_back(static_cast<int64_t>(Kind::kLayout));
    words_.push_back(static_cast<int64_t>(key.size()) + 1);
    words_.push_back(place->second);
    words_.insert(words_.end(), key.begin(), key.end());
  }
  return place->second;
}

const int64_t* Trace::take(int64_t* count, bool everything) {
  size_t until = words_.size(), settled = 0;
  for (auto& [place, work] : open_) {
    if (work->end < 0 && !everything) {
      until = place - 7;  // the beginning of its record
      break;
    }
    if (work->end >= 0) {
      words_[place] = work->start;
      words_[place + 1] = work->end;
    }
    ++settled;
  }
  open_.erase(open_.begin(), open_.begin() + static_cast<int64_t>(settled));
  taken_.assign(words_.begin(), words_.begin() + static_cast<int64_t>(until));
  words_.erase(words_.begin(), words_.begin() + static_cast<int64_t>(until));
  for (auto& one : open_) one.first -= until;
  full_at_ = words_.size() + kBatch;
  full_ = false;
  *count = static_cast<int64_t>(taken_.size());
  return taken_.data();
}

static std::vector<std::string*>& names() {
  static auto* all = new std::vector<std::string*>;
  return *all;
}

int64_t name_id(const std::string& name) {
  static auto* ids = new std::unordered_map<std::string, int64_t>;
  auto [place, fresh] = ids->try_emplace(name, static_cast<int64_t>(names().size()));
  if (fresh) names().push_back(new std::string(name));
  return place->second;
}

const char* name_of(int64_t id) { return names().at(id)->c_str(); }

}  // namespace simgpu
