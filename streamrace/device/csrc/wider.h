// Types that CUDA's kernels have and the CPU's lack (streamrace/device/wider.py lists them): such a call is one launch
// all the same. Within it arguments become ones of a wider type, in which CUDA's kernels compute too, the CPU's kernel
// runs on those, and what it gives or has written becomes one of the narrow type again.
#pragma once

#include <string>

#include "operators.h"

namespace simgpu {

// CUDA's kernels of this operator take that type. To be told before the operator is used.
void take_wider(const std::string& name, at::ScalarType dtype);
uint64_t types_wider(const std::string& name);  // a bit by c10::ScalarType; of f_ and f.out as of f

// Is there such a type among the arguments?
bool may_be_wider(const c10::OperatorHandle& handle, const Operator& op, const torch::jit::Stack& stack);
void call_wider(const c10::OperatorHandle& handle, const Operator& op, torch::jit::Stack& stack);

}  // namespace simgpu
