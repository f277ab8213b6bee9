#pragma once

#include "versions.h"

#if STREAMRACE_TORCH_SINCE(6)
#include <ATen/native/transformers/sdp_utils_cpp.h>

namespace simgpu {

// The kernel of scaled_dot_product_attention as CUDA chooses it, where the program says which ones it allows, or a tensor
// is a DTensor or another subclass, which knows CUDA's operators. None elsewhere: chosen as on the CPU, for its bits.
std::optional<int64_t> chosen_as_cuda(const sdp::sdp_params& given);

}  // namespace simgpu
#endif
