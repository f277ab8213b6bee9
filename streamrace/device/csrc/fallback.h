#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>

#include "allocator.h"

namespace simgpu {

extern thread_local bool executing;  // a CPU kernel runs for the device, not for the program

// Inside, operators on CPU tensors run as they are: nothing of the program's own modes applies.
class Executing {
 public:
  explicit Executing(at::ScalarType default_dtype);
  ~Executing();

 private:
  c10::impl::ForceDispatchKeyGuard keys_;
  c10::AutoGradMode grad_;
  at::DisableRecordFunctionGuard unprofiled_;  // a profile has the program's operators, each once
  bool before_;
  caffe2::TypeMeta dtype_;
};

// The tensor's elements as a CPU tensor, and what it covers added to `accesses`.
at::Tensor place_of(const at::Tensor& tensor, bool written, Accesses& accesses);

void see(int64_t op, const at::Tensor& tensor, bool copied = false);  // the host gets to know it: see probes.h

void fallback(const c10::OperatorHandle& handle, torch::jit::Stack* stack);
const c10::OperatorHandle& describe_handle(const c10::OperatorHandle& handle);  // the same, for ever

}  // namespace simgpu
