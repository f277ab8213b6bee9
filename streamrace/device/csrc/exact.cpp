// Host operators whose fast kernels would give wrong results under our settings.
#include <ATen/ATen.h>
#include <torch/library.h>

namespace simgpu {
namespace {

using at::Tensor;

// torch uses oneDNN's product of int8, which adds pairs of products in 16 bits, saturated, on processors without VNNI
// and on those that the settings restrict (processor.py). Here each sum has 32 bits, as on CUDA.
Tensor& int_mm_out(const Tensor& a, const Tensor& b, Tensor& result) {
  TORCH_CHECK(a.dim() == 2 && b.dim() == 2, "_int_mm takes two matrices, and has tensors of ", a.dim(), " and ", b.dim(), " dimensions");
  TORCH_CHECK(a.size(1) == b.size(0), "_int_mm takes (n, k) and (k, m), and has ", a.sizes(), " and ", b.sizes());
  TORCH_CHECK(a.dtype() == at::kChar && b.dtype() == at::kChar && result.dtype() == at::kInt, "_int_mm takes int8 and gives int32");
  return at::mm_out(result, a.to(at::kInt), b.to(at::kInt));
}

Tensor int_mm(const Tensor& a, const Tensor& b) {
  Tensor result = at::empty({a.size(0), b.size(1)}, a.options().dtype(at::kInt));
  return int_mm_out(a, b, result);
}

// Suppresses torch's warning that its kernel is replaced, which is intended.
struct Quiet final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

const bool replaced = [] {
  Quiet quiet;
  c10::WarningUtils::WarningHandlerGuard guard(&quiet);
  static auto* library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  library->impl("_int_mm", int_mm);
  library->impl("_int_mm.out", int_mm_out);
  return true;
}();

}  // namespace
}  // namespace simgpu
