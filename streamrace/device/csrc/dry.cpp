#include "dry.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>

#include "fallback.h"

namespace simgpu {

Dry& dry() {
  static auto* one = new Dry;
  return *one;
}

void Dry::begin(int64_t real, Asked asked_) {
  on = true;
  real_ = real;
  asked = asked_;
}

void Dry::made(int64_t block, size_t nbytes, bool pinned) {
  if (!on) return;
  auto size = static_cast<int64_t>(nbytes);
  if (pinned) known_[block] = {{0, size}};  // the host's memory has the host's values
  else if (fits(size)) known_[block] = {};
}

void Dry::dropped(int64_t block) {
  if (on) known_.erase(block);
}

bool Dry::known(const std::vector<Access>& reads) const {
  for (auto& [block, lo, hi, layout] : reads) {
    auto ranges = known_.find(block);
    if (ranges == known_.end()) return false;
    auto place = ranges->second.upper_bound(lo);
    if (place == ranges->second.begin() || std::prev(place)->second < hi) return false;
  }
  return true;
}

void Dry::wrote(const std::vector<Access>& writes, bool is_known) {
  for (auto& write : writes) {
    auto found = known_.find(write.block);
    if (found == known_.end()) continue;
    if (is_known && write.layout != 0) continue;  // a strided write leaves gaps: nothing becomes known
    auto& ranges = found->second;
    int64_t lo = write.lo, hi = write.hi;
    auto place = ranges.upper_bound(lo);
    if (place != ranges.begin() && std::prev(place)->second >= lo) --place;
    while (place != ranges.end() && place->first <= hi) {
      auto [from, to] = *place;
      place = ranges.erase(place);
      if (is_known) {
        lo = std::min(lo, from), hi = std::max(hi, to);
        continue;
      }
      if (from < lo) ranges[from] = lo;
      if (to > hi) ranges[hi] = to;
    }
    if (is_known) ranges[lo] = hi;
  }
}

// Operators that write all bytes of their outputs, whatever the outputs held.
static bool overwrites(const Operator& op) {
  static const std::set<int64_t> all = [] {
    std::set<int64_t> ids;
    for (const char* name : {"aten::copy_", "aten::fill_", "aten::zero_", "aten::_foreach_zero_", "aten::_foreach_copy_",
                             "aten::normal_", "aten::uniform_", "aten::random_", "aten::bernoulli_", "aten::exponential_"})
      ids.insert(name_id(name));
    return ids;
  }();
  return !op.outs.empty() || all.count(op.name) > 0;
}

bool Dry::computes(const Operator& op, const Accesses& accesses) const {
  return known(accesses.reads) && (overwrites(op) || known(accesses.writes));
}

bool Dry::trusted(const char* what, int kind, double* answer) {
  refusal = c10::str("streamrace: a dry run has no values, and ", what, " reads one");
  double ignored = 0;
  return asked && asked(what, kind, answer ? answer : &ignored) != 0;
}

void Dry::refuse(const char* what) {
  trusted(what);
  TORCH_CHECK(false, refusal);
}

void Dry::refuse_later(const char* what) {
  if (!trusted(what)) device().fail(refusal);
}

at::Scalar Dry::answer(const char* what, at::ScalarType dtype) {
  bool flag = dtype == at::kBool || dtype == at::kByte, number = at::isFloatingType(dtype);
  double answer = 0;
  if (!trusted(what, flag ? 0 : number ? 2 : 1, &answer)) TORCH_CHECK(false, refusal);
  if (dtype == at::kBool) return answer != 0;
  if (number) return answer;
  return static_cast<int64_t>(answer);
}

char* addresses(size_t size) {
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK_WITH(OutOfMemoryError, data != MAP_FAILED, "streamrace: the system gives no range of ", size,
                   " addresses for memory that holds nothing: raise the limit on address space (ulimit -v)");
  return static_cast<char*>(data);
}

// Mapped files and shared mappings would give back their contents: they are left alone.
bool forget_pages(char* data, size_t size) {
  if (madvise(data, size, MADV_DONTNEED) != 0) return false;
  return *data == 0 && data[size - 1] == 0;
}

void give_addresses_back(char* data, size_t size) { munmap(data, size); }

}  // namespace simgpu
