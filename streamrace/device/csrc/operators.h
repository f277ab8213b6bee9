// What an operator does to memory, read from its schema: which arguments it writes, what it returns.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

namespace simgpu {

struct Operator {
  static constexpr int kFresh = -1, kView = -2, kPlain = -3;
  int64_t name;                // of its kernel in the trace
  std::vector<bool> written;   // by argument
  std::vector<int> returns;    // by result: the argument that it is, or one of the above
  std::vector<int> outs;       // "out=" arguments, whose shape is the kernel's affair
  int generator = -1;          // the argument that is one
  bool host = false;           // the host needs its result, or its result's shape depends on values
  bool random = false;
  bool known = true;           // the CPU has a kernel for it
  bool asks = false;           // only asks what a tensor object is
  bool indices = false;        // takes tensors of the host as indices
  bool masks = false;          // and may be given a mask, for which CUDA calls nonzero: the host waits
  bool sized_by_floats = false;
  bool pivots = false;         // takes rows of a matrix, counted from 1
  bool whole = false;          // one launch, though a GPU would have several: see take_whole()
  uint64_t wider = 0;          // by c10::ScalarType: it may be computed in a wider one, see wider.h
  std::vector<bool> hidden;    // by argument: written though the schema does not say so; empty where there is none
  int hidden_when = -1;        // the argument that says whether it does so this time
};

// What the schema of `name` does not say: it writes these arguments, where argument `when` (or "") is true. To be told
// before the operator is used.
void hides(const std::string& name, const std::vector<std::string>& arguments, const std::string& when);

bool hides(const std::string& name, const std::string& argument);

// The operator is one launch, in which the CPU's kernel runs, and may be given pinned memory of the host.
void take_whole(const std::string& name);

const Operator& describe(const c10::OperatorHandle& handle);

}  // namespace simgpu
