// An operator's effects on memory, read from its schema: which arguments it writes, and its results.
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
  std::vector<int> outs;       // "out=" arguments, which the kernel resizes
  int generator = -1;          // the generator argument
  bool host = false;           // the host needs its result, or its result's shape depends on values
  bool rereads = false;        // counts, lets the host wait for the count, and then reads its arguments once more
  bool backwards = false;      // allocates its last result first
  bool random = false;
  bool known = true;           // the CPU has a kernel for it
  bool asks = false;           // only reads metadata of a tensor
  bool indices = false;        // takes tensors of the host as indices
  bool masks = false;          // and accepts a mask, for which CUDA calls nonzero: the host waits
  bool sized_by_floats = false;
  bool pivots = false;         // takes rows of a matrix, counted from 1
  bool whole = false;          // one launch, though several on a GPU: see take_whole()
  bool updates = false;        // a list in place, each of whose tensors is read and written
  uint64_t wider = 0;          // by c10::ScalarType: may be computed in a wider one, see wider.h
  std::vector<bool> hidden;    // by argument: written without declaration in the schema; empty if there is none
  int hidden_when = -1;        // the argument that decides whether this happens in a call
};

// Declares what the schema of `name` omits: it writes these arguments, if argument `when` (or "") is true. To be called
// before the operator is used.
void hides(const std::string& name, const std::vector<std::string>& arguments, const std::string& when);

bool hides(const std::string& name, const std::string& argument);

// Makes the operator one launch, which runs the CPU's kernel and accepts pinned memory of the host.
void take_whole(const std::string& name);

const Operator& describe(const c10::OperatorHandle& handle);

}  // namespace simgpu
