// What versions of torch before today's expect of CUDA's kernels, and where the composite does otherwise.
#include "versions.h"

#if !SIMGPU_TORCH_SINCE(8)
#include <ATen/ops/mean.h>
#include <torch/library.h>

#include "fallback.h"

namespace simgpu {

#if !SIMGPU_TORCH_SINCE(6)
// The CPU's kernel with "out=" leaves it as it was, where the numbers are of 16 bits, and returns another tensor.
static at::Tensor& mean_out(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keep, std::optional<at::ScalarType> dtype, at::Tensor& out) {
  auto mean = at::mean(self, dim, keep, dtype);
  if (out.sizes() != mean.sizes()) out.resize_(mean.sizes());
  return out.copy_(mean);
}
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("mean.dim", torch::CppFunction::makeFromBoxedFunction<&fallback>());
  m.impl("mean.out", mean_out);
}
#endif

// CUDA's is one kernel, which counts no new version of what it writes. The composite copies part after part, and each
// copy counts one; FSDP2 asks to have them uncounted since 2.8 alone, and its backward pass would find its parameters changed.
TORCH_LIBRARY_IMPL(aten, CUDA, m) { m.impl("split_with_sizes_copy.out", torch::CppFunction::makeFromBoxedFunction<&fallback>()); }

}  // namespace simgpu
#endif
