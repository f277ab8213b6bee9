// A dry run: the device of one rank of many, on tensors that hold nothing. All that is told of a run stays as it is,
// launches, memory, streams, time; only the values are missing, so no size of a model needs the host's memory.
//
// Values exist where they are small and follow from what the host brought: lengths, flags, masks, which programs
// compare and branch on. Such bytes are *known*: they are computed when they are issued. All other bytes are not
// known, nor is what follows from them, and whoever reads one on the host is refused (streamrace/device/dry/reading.py).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <map>
#include <set>
#include <string>
#include <unordered_map>

#include "allocator.h"
#include "operators.h"

namespace simgpu {

class Dry {
 public:
  using Stack = torch::jit::Stack;
  // Asked when the host reads what is not known. `kind` of the one value that is wanted: 0 a flag, 1 an integer, 2 a
  // number, -1: it is not one. Gives 1 and an answer for a reader that is told that all went well; else 0, after it
  // told why not (simgpu_dry_refusal).
  using Asked = int (*)(const char* what, int kind, double* answer);

  bool on = false;
  Asked asked = nullptr;
  std::string refusal;
  bool deceived = false;  // a trusted reader got zeros for a copy: what it brings back is not known either

  void begin(int64_t real, Asked asked_);
  bool fits(int64_t nbytes) const { return nbytes <= real_; }  // may it have values?

  void made(int64_t block, size_t nbytes, bool pinned);
  void dropped(int64_t block);
  bool known(const std::vector<Access>& reads) const;
  void wrote(const std::vector<Access>& writes, bool known);
  // Does all that the call takes have values? `accesses` without what it makes.
  bool computes(const Operator& op, const Accesses& accesses) const;

  bool trusted(const char* what, int kind = -1, double* answer = nullptr);
  [[noreturn]] void refuse(const char* what);  // by the sentence of who was asked
  void refuse_later(const char* what);         // where nobody can be told now: at the next wait
  // One value that is not known: the answer to a trusted reader, or a refusal.
  at::Scalar answer(const char* what, at::ScalarType dtype);

  // Meta kernels and the CPU's, both asked: names of operators of which they said different things.
  void compare(const c10::OperatorHandle& handle, const Operator& op, const Stack& meta, const Stack& cpu);
  bool differs(const c10::OperatorHandle& handle) const;
  std::set<std::string> dissent;

 private:
  using Ranges = std::map<int64_t, int64_t>;  // from -> to, apart from each other
  int64_t real_ = 1 << 20;
  std::unordered_map<int64_t, Ranges> known_;  // of blocks that may have values, by number
};

Dry& dry();

// What the operator's meta kernel says of its results, and of its arguments behind the call. `inputs`: CPU tensors.
std::pair<Dry::Stack, Dry::Stack> on_meta(const c10::OperatorHandle& handle, const Operator& op, const Dry::Stack& inputs);
int64_t bytes_of(const Dry::Stack& stack);

// Addresses without memory behind them; pages come where something is written.
char* addresses(size_t size);
bool forget_pages(char* data, size_t size);  // they hold zeros then; false where that cannot be
void give_addresses_back(char* data, size_t size);

}  // namespace simgpu
