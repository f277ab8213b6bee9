// A dry run: the device of one rank of many, on tensors without values. All other results of a run stay the same:
// launches, memory, streams, time. As only values are missing, models of any size need little of the host's memory.
//
// Small values exist if they follow from the host's data: lengths, flags, masks, which programs compare and branch on.
// Such bytes are *known*: they are computed when they are issued. All other bytes are unknown, as is everything that
// follows from them, and a read of an unknown byte by the host is refused (streamrace/device/dry/reading.py).
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
  // Called when the host reads unknown bytes. `kind` of the single value that is wanted: 0 a flag, 1 an integer, 2 a
  // number, -1: not a single value. Returns 1 and an answer for a trusted reader, which assumes that all went well; else
  // 0, after passing on the reason (simgpu_dry_refusal).
  using Asked = int (*)(const char* what, int kind, double* answer);

  bool on = false;
  Asked asked = nullptr;
  std::string refusal;
  bool deceived = false;  // a trusted reader got zeros for a copy: if it copies them back, they are unknown, too

  void begin(int64_t real, Asked asked_);
  bool fits(int64_t nbytes) const { return nbytes <= real_; }  // whether a tensor of this size may have values

  void made(int64_t block, size_t nbytes, bool pinned);
  void dropped(int64_t block);
  bool known(const std::vector<Access>& reads) const;
  void wrote(const std::vector<Access>& writes, bool known);
  // Checks whether all inputs of the call have values. `accesses`: without its results.
  bool computes(const Operator& op, const Accesses& accesses) const;

  bool trusted(const char* what, int kind = -1, double* answer = nullptr);
  [[noreturn]] void refuse(const char* what);  // with the reason that the callback passed on
  void refuse_later(const char* what);         // if no error can be raised now: at the next wait
  // One unknown value: returns the answer to a trusted reader, or refuses.
  at::Scalar answer(const char* what, at::ScalarType dtype);

  // Compares results of a meta kernel and of the CPU's: remembers operators for which they differed.
  void compare(const c10::OperatorHandle& handle, const Operator& op, const Stack& meta, const Stack& cpu);
  bool differs(const c10::OperatorHandle& handle) const;
  std::set<std::string> dissent;

 private:
  using Ranges = std::map<int64_t, int64_t>;  // from -> to, disjoint
  int64_t real_ = 1 << 20;
  std::unordered_map<int64_t, Ranges> known_;  // of blocks that may have values, by number
};

Dry& dry();

// Returns the results of the operator's meta kernel, and its arguments after the call. `inputs`: CPU tensors.
std::pair<Dry::Stack, Dry::Stack> on_meta(const c10::OperatorHandle& handle, const Operator& op, const Dry::Stack& inputs);
int64_t bytes_of(const Dry::Stack& stack);

// Reserves addresses without memory; pages are allocated when they are written.
char* addresses(size_t size);
bool forget_pages(char* data, size_t size);  // they then hold zeros; false if this is impossible
void give_addresses_back(char* data, size_t size);

}  // namespace simgpu
