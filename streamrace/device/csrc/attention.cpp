// scaled_dot_product_attention with the CPU's bits. On CUDA the composite would choose among CUDA's fused kernels.
// Here it chooses as on the CPU, by the same function (shapes, types, and what sdpa_kernel allows), and for "flash" it
// takes the path that torch reserves for other devices ("overrideable"), to the CPU's flash kernel. That is two
// launches, forward and backward, as with CUDA's kernels; other attention is computed by its definition.
// A DTensor, a program that selects kernels, and one that looks at operators (a dispatch mode: selective checkpointing,
// the counter of operations) get CUDA's own choice: see fused.cpp.
#include "fused.h"

#if STREAMRACE_TORCH_SINCE(6)  // older versions have that path for no device: attention is then computed by its definition
#include <ATen/SDPBackend.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/native/transformers/attention.h>
#include <torch/library.h>

namespace simgpu {
namespace {

using at::Tensor;
using std::optional;

int64_t choose(const Tensor& query, const Tensor& key, const Tensor& value, const optional<Tensor>& mask, double dropout,
               bool causal, optional<double> scale, bool grouped) {
  if (auto as_cuda = chosen_as_cuda({query, key, value, mask, dropout, causal, grouped})) return *as_cuda;
  auto chosen = at::native::_fused_sdp_choice_cpp(query, key, value, mask, dropout, causal, scale, grouped);
  bool flash = chosen == static_cast<int64_t>(at::SDPBackend::flash_attention);
  return flash ? static_cast<int64_t>(at::SDPBackend::overrideable) : chosen;
}

using Attended = std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

Attended attend(const Tensor& query, const Tensor& key, const Tensor& value, const optional<Tensor>& mask, double dropout,
                bool causal, bool, optional<double> scale) {
  auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, dropout, causal, mask, scale);
  return {output, logsumexp, {}, {}, query.size(2), key.size(2), {}, {}, {}};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attend_backward(
    const Tensor& gradient, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& mask,
    std::array<bool, 4>, const Tensor& output, const Tensor& logsumexp, const Tensor&, const Tensor&, int64_t, int64_t,
    double dropout, bool causal, const Tensor&, const Tensor&, optional<double> scale) {
  auto given = mask.defined() ? optional<Tensor>(mask) : std::nullopt;
  auto [of_query, of_key, of_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      gradient, query, key, value, output, logsumexp, dropout, causal, given, scale);
  return {of_query, of_key, of_value, {}};  // with a mask that needs a gradient, the CPU does not choose flash
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("_fused_sdp_choice", choose);
  m.impl("_scaled_dot_product_fused_attention_overrideable", attend);
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", attend_backward);
}

}  // namespace
}  // namespace simgpu

namespace at::native {
REGISTER_CUDA_DISPATCH(_fused_sdp_choice_stub, &simgpu::choose)  // called by the composite in place of the operator
}
#endif
