#include "trace.h"

#include <algorithm>
#include <bit>

namespace simgpu {

Trace& trace() {
  static auto* one = new Trace;
  return *one;
}

void Trace::begin(bool traced) {
  on = traced;
  groups_.clear();
}

void Trace::note(WordKind kind, std::initializer_list<int64_t> words) {
  if (!on) return;
  words_.push_back(static_cast<int64_t>(kind));
  words_.push_back(static_cast<int64_t>(words.size()));
  words_.insert(words_.end(), words);
  if (words_.size() >= full_at_) full_ = true;
}

void Trace::note(WordKind kind, int64_t first, const std::vector<int64_t>& rest) {
  if (!on) return;
  words_.insert(words_.end(), {static_cast<int64_t>(kind), static_cast<int64_t>(rest.size()) + 1, first});
  words_.insert(words_.end(), rest.begin(), rest.end());
  if (words_.size() >= full_at_) full_ = true;
}

static void put(std::vector<int64_t>& words, const std::vector<Access>& accesses) {
  for (auto& one : accesses) words.insert(words.end(), {one.block, one.lo, one.hi, one.layout});
}

static constexpr size_t kMany = 64;  // ranges that one launch touches

// Joins adjacent ranges.
static std::vector<Access> joined(const std::vector<Access>& accesses) {
  std::unordered_map<int64_t, size_t> turns;
  for (auto& one : accesses) turns.try_emplace(one.block, turns.size());
  auto place = [&](const Access& one) { return std::tuple(turns[one.block], one.layout, one.lo); };
  auto sorted = accesses;
  std::stable_sort(sorted.begin(), sorted.end(), [&](const Access& a, const Access& b) { return place(a) < place(b); });
  std::vector<Access> made;
  for (auto& one : sorted) {
    bool dense = !made.empty() && one.layout == 0 && made.back().layout == 0 && made.back().block == one.block;
    if (dense && one.lo <= made.back().hi) made.back().hi = std::max(made.back().hi, one.hi);
    else made.push_back(one);
  }
  return made;
}

// As one of 16,384 ranks a framework concatenates a shard of each of them; written one by one, these accesses took most
// of the time of reading the trace. Returns the same bytes, by block and then by place: adjacent ranges are joined, and
// ranges at equal distances become one with a layout.
const std::vector<Access>& Trace::in_few(const std::vector<Access>& accesses, std::vector<Access>& made) {
  if (!joins || accesses.size() <= kMany) return accesses;
  auto ranges = joined(accesses);
  for (size_t at = 0, next; at < ranges.size(); at = next) {
    auto& first = ranges[at];
    int64_t width = first.hi - first.lo, step = 0;
    for (next = at + 1; next < ranges.size(); ++next) {
      auto &one = ranges[next], &before = ranges[next - 1];
      if (one.block != first.block || one.layout || first.layout || one.hi - one.lo != width) break;
      if (next > at + 1 && one.lo - before.lo != step) break;
      step = one.lo - before.lo;
    }
    auto count = static_cast<int64_t>(next - at);
    if (next - at > kMany) made.push_back({first.block, first.lo, ranges[next - 1].hi, layout_id(width, {{count, step}})});
    else made.insert(made.end(), ranges.begin() + static_cast<int64_t>(at), ranges.begin() + static_cast<int64_t>(next));
  }
  return made;
}

void Trace::launch(int64_t stream, int64_t kernel, const Accesses& accesses, int64_t stack, int64_t issued,
                   int64_t start, int64_t end, int64_t nominal, const WorkPtr& work, int64_t root, int64_t issuer) {
  ++ops;
  if (!on) return;
  bool met = work && work->collective;
  LatePtr late = std::exchange(next_, nullptr);
  if (launched) launched(accesses, met);
  if (met && groups_.insert(work->group).second) note(WordKind::kGroup, {work->group});
  Accesses few;
  auto &read = late ? few.reads : in_few(accesses.reads, few.reads), &written = late ? few.writes : in_few(accesses.writes, few.writes);
  auto reads = static_cast<int64_t>(read.size()), writes = static_cast<int64_t>(written.size());
  if (late) late->op = ops, late_.emplace_back(words_.size(), late);
  words_.push_back(static_cast<int64_t>(met ? WordKind::kCollective : WordKind::kLaunch));
  words_.push_back((met ? schema::Collective::fields : schema::Launch::fields) + 4 * (reads + writes));
  if (work) open_.emplace_back(words_.size() + schema::Launch::start, work);
  words_.insert(words_.end(), {ops, stream, kernel, reads, writes, stack, issued, start, end});
  if (met) words_.insert(words_.end(), {work->group, work->number, root, issuer, nominal, std::bit_cast<int64_t>(work->alone), work->link, work->call});
  else words_.push_back(nominal);
  put(words_, read);
  put(words_, written);
  if (words_.size() >= full_at_) full_ = true;
}

int64_t Trace::layout_id(int64_t itemsize, const std::vector<std::pair<int64_t, int64_t>>& dims) {
  std::vector<int64_t> key{itemsize};
  for (auto& [size, stride] : dims) key.insert(key.end(), {size, stride});
  auto [place, fresh] = layouts_.try_emplace(key, static_cast<int64_t>(layouts_.size()) + 1);
  if (fresh) {
    keys_.push_back(&place->first);
    if (!on) return place->second;  // of a captured launch, which may be replayed while something is traced
    words_.push_back(static_cast<int64_t>(WordKind::kLayout));
    words_.push_back(static_cast<int64_t>(key.size()) + 1);
    words_.push_back(place->second);
    words_.insert(words_.end(), key.begin(), key.end());
  }
  return place->second;
}

const int64_t* Trace::take(int64_t* count, bool everything) {
  size_t until = words_.size(), settled = 0;
  for (auto& [place, work] : open_) {
    if (work->end == Work::kOpen && !everything) {
      until = place - schema::Launch::start - 2;  // the beginning of its record
      break;
    }
    if (work->end >= 0) {
      words_[place] = work->start;
      words_[place + 1] = work->end;
      static_assert(int{schema::Launch::end} == schema::Launch::start + 1 && int{schema::Collective::start} == schema::Launch::start);
    }
    ++settled;
  }
  open_.erase(open_.begin(), open_.begin() + static_cast<int64_t>(settled));
  if (!everything) until = known_until(until);
  splice(until);
  words_.erase(words_.begin(), words_.begin() + static_cast<int64_t>(until));
  for (auto& one : open_) one.first -= until;
  for (auto& one : late_) one.first -= until;
  full_at_ = words_.size() + kBatch;
  full_ = false;
  *count = static_cast<int64_t>(taken_.size());
  return taken_.data();
}

size_t Trace::known_until(size_t until) const {
  for (auto& [place, late] : late_)
    if (!late->known) return std::min(until, place);
  return until;
}

// Copies the words up to `until` into the taken ones, and puts late accesses into their records.
void Trace::splice(size_t until) {
  auto at = words_.begin(), end = at + static_cast<int64_t>(until);
  taken_.clear();
  for (; !late_.empty() && late_.front().first < until; late_.pop_front()) {
    auto& [place, late] = late_.front();
    auto behind = words_.begin() + static_cast<int64_t>(place) + 2 + schema::Launch::fields;
    taken_.insert(taken_.end(), at, behind);
    at = behind;
    int64_t* record = &taken_.back() - schema::Launch::fields - 1;
    auto reads = static_cast<int64_t>(late->reads.size()), writes = static_cast<int64_t>(late->writes.size());
    record[1] += 4 * (reads + writes);
    record[2 + schema::Launch::reads] = reads;
    record[2 + schema::Launch::writes] = writes;
    put(taken_, late->reads);
    put(taken_, late->writes);
  }
  taken_.insert(taken_.end(), at, end);
}

Effect Trace::reporting(Effect effect) {
  if (!on || !effect) return effect;
  next_ = std::make_shared<Late>();
  return [this, late = next_, effect = std::move(effect)] {
    auto before = std::exchange(running_, late);
    effect();
    running_ = before;
    late->known = true;
  };
}

void Trace::report(bool writes, const int64_t* ranges, int64_t count) {
  if (!running_) return;
  auto& accesses = writes ? running_->writes : running_->reads;
  for (int64_t i = 0; i < count; ++i, ranges += 3) accesses.push_back({ranges[0], ranges[1], ranges[2], 0});
  if (writes && wrote) wrote(accesses);
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
