#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>

#include "allocator.h"

namespace simgpu {

extern thread_local bool executing;  // a CPU kernel runs for the device, not for the program

// In its scope, operators on CPU tensors run as they are, without the program's own modes.
class Executing {
 public:
  explicit Executing(at::ScalarType default_dtype);
  ~Executing();

 private:
  c10::impl::ForceDispatchKeyGuard keys_;
  c10::AutoGradMode grad_;
  at::DisableRecordFunctionGuard unprofiled_;  // a profile has the program's operators, once each
  bool before_;
  caffe2::TypeMeta dtype_;
};

// Returns the tensor's elements as a CPU tensor, and adds the bytes it covers to `accesses`.
at::Tensor place_of(const at::Tensor& tensor, bool written, Accesses& accesses);

void see(int64_t op, const at::Tensor& tensor, bool copied = false);  // the host reads it: see probes.h

void fallback(const c10::OperatorHandle& handle, torch::jit::Stack* stack);
const c10::OperatorHandle& describe_handle(const c10::OperatorHandle& handle);  // the same handle, kept forever

}  // namespace simgpu
