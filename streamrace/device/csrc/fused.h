#pragma once

#include "versions.h"

#if STREAMRACE_TORCH_SINCE(6)
#include <ATen/native/transformers/sdp_utils_cpp.h>

namespace simgpu {

// Returns the kernel of scaled_dot_product_attention that CUDA would choose, if the program selects kernels, or a
// tensor is a DTensor or another subclass, which knows CUDA's operators. None otherwise: the CPU chooses, for its bits.
std::optional<int64_t> chosen_as_cuda(const sdp::sdp_params& given);

}  // namespace simgpu
#endif
