// What versions of torch before today's expect of CUDA's kernels, and where the composite does otherwise.
#include "versions.h"

#if !STREAMRACE_TORCH_SINCE(8)
#include <torch/library.h>

#include "fallback.h"

namespace simgpu {

// CUDA's is one kernel, which counts no new version of what it writes. The composite copies part after part, and each
// copy counts one; FSDP2 asks to have them uncounted since 2.8 alone, and its backward pass would find its parameters changed.
TORCH_LIBRARY_IMPL(aten, CUDA, m) { m.impl("split_with_sizes_copy.out", torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

}  // namespace simgpu
#endif
