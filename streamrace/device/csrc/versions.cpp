// Adapts to CUDA kernels that older versions of torch expect, where the composite differs.
#include "versions.h"

#if !STREAMRACE_TORCH_SINCE(8)
#include <torch/library.h>

#include "fallback.h"

namespace simgpu {

// CUDA's is one kernel, which counts no new version of its outputs. The composite copies part after part, and each copy counts
// one; only since 2.8 FSDP2 keeps them uncounted, and before its backward pass would find its parameters changed.
TORCH_LIBRARY_IMPL(aten, CUDA, m) { m.impl("split_with_sizes_copy.out", torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

}  // namespace simgpu
#endif
