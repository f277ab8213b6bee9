// What an operator does to memory, read from its schema: which arguments it writes, what it returns.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

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
  bool asks = false;           // only asks what a tensor object is
  bool indices = false;        // takes tensors of the host as indices
  bool masks = false;          // and may be given a mask, for which CUDA calls nonzero: the host waits
  bool sized_by_floats = false;
  int running = -1;            // the first of two arguments that it writes without saying so (batch_norm's statistics)
};

const Operator& describe(const c10::OperatorHandle& handle);

}  // namespace simgpu
