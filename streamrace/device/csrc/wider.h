// Types that CUDA's kernels support and the CPU's lack (streamrace/device/wider_types.py lists them): such a call is still
// one launch. Within it arguments are converted to a wider type, in which CUDA's kernels compute too, the CPU's kernel
// runs on them, and results and written arguments are converted back to the narrow type.
#pragma once

#include <string>

#include "operators.h"

namespace simgpu {

// Declares that CUDA's kernels of this operator take that type. To be called before the operator is used.
void take_wider(const std::string& name, at::ScalarType dtype);
uint64_t types_wider(const std::string& name);  // a bit by c10::ScalarType; f_ and f.out share f's

// Checks whether an argument has such a type.
bool may_be_wider(const c10::OperatorHandle& handle, const Operator& op, const torch::jit::Stack& stack);
void call_wider(const c10::OperatorHandle& handle, const Operator& op, torch::jit::Stack& stack);

}  // namespace simgpu
