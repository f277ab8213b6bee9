// The parts of a batch norm over several ranks (nn.SyncBatchNorm), for which the CPU has no kernels: as CUDA's kernels
// define them (ATen/native/cuda/Normalization.cuh). Statistics have the accumulating type: float for 16-bit numbers.
#include <ATen/ATen.h>
#include <torch/library.h>

namespace simgpu {
namespace {

using at::Tensor;
using std::optional;

at::ScalarType accumulating(const Tensor& input) { return at::isReducedFloatingType(input.scalar_type()) ? at::kFloat : input.scalar_type(); }

std::vector<int64_t> all_but_channels(const Tensor& input) {
  std::vector<int64_t> dims = {0};
  for (int64_t i = 2; i < input.dim(); ++i) dims.push_back(i);
  return dims;
}

Tensor along(const Tensor& channels, const Tensor& input) {
  std::vector<int64_t> shape(input.dim(), 1);
  shape[1] = input.size(1);
  return channels.to(accumulating(input)).view(shape);
}

std::tuple<Tensor, Tensor> statistics_of(const Tensor& input, double eps) {
  auto [variance, mean] = at::var_mean(input.to(accumulating(input)), all_but_channels(input), /*unbiased=*/false);
  return {mean, (variance + eps).rsqrt()};
}

std::tuple<Tensor, Tensor> gather_with_counts(const Tensor& input, const Tensor& means, const Tensor& invstds, const optional<Tensor>& running_mean,
                                              const optional<Tensor>& running_var, double momentum, double eps, const Tensor& counts) {
  auto of = counts.to(means.scalar_type()).view({-1, 1});
  auto all = of.sum();
  auto mean = (means * of).sum(0) / all;
  auto squares = ((invstds.pow(-2) - eps + (means - mean).square()) * of).sum(0);
  if (running_mean && running_mean->defined()) running_mean->mul_(1 - momentum).add_(mean * momentum);
  if (running_var && running_var->defined()) running_var->mul_(1 - momentum).add_(squares / (all - 1) * momentum);
  return {mean, (squares / all + eps).rsqrt()};
}

std::tuple<Tensor, Tensor> gather_with_count(const Tensor& input, const Tensor& means, const Tensor& invstds, const optional<Tensor>& running_mean,
                                  const optional<Tensor>& running_var, double momentum, double eps, int64_t count) {
  return gather_with_counts(input, means, invstds, running_mean, running_var, momentum, eps, at::full({means.size(0)}, count, means.options()));
}

Tensor elements(const Tensor& input, const optional<Tensor>& weight, const optional<Tensor>& bias, const Tensor& mean, const Tensor& invstd, double) {
  auto made = (input - along(mean, input)) * along(invstd, input);
  if (weight && weight->defined()) made = made * along(*weight, input);
  if (bias && bias->defined()) made = made + along(*bias, input);
  return made.to(input.scalar_type());
}

Tensor& elements_out(const Tensor& input, const optional<Tensor>& weight, const optional<Tensor>& bias, const Tensor& mean, const Tensor& invstd, double eps, Tensor& out) {
  out.resize_(input.sizes());
  return out.copy_(elements(input, weight, bias, mean, invstd, eps));
}

std::tuple<Tensor, Tensor, Tensor, Tensor> backward_sums(const Tensor& slope, const Tensor& input, const Tensor& mean, const Tensor& invstd,
                                                         const optional<Tensor>& weight, bool of_input, bool of_weight, bool of_bias) {
  auto dims = all_but_channels(input);
  auto sum = slope.to(accumulating(input)).sum(dims);
  auto products = (slope.to(accumulating(input)) * (input - along(mean, input))).sum(dims);
  auto type = weight && weight->defined() ? weight->scalar_type() : sum.scalar_type();
  bool has = weight && weight->defined();
  return {of_input ? sum : Tensor(), of_input ? products : Tensor(), has && of_weight ? (products * invstd).to(type) : Tensor(),
          has && of_bias ? sum.to(type, /*non_blocking=*/false, /*copy=*/true) : Tensor()};
}

Tensor backward_elements(const Tensor& slope, const Tensor& input, const Tensor& mean, const Tensor& invstd, const optional<Tensor>& weight,
                         const Tensor& sum, const Tensor& products, const Tensor& counts) {
  auto all = counts.sum().to(accumulating(input));
  auto made = slope - along(sum, input) / all - (input - along(mean, input)) * along(invstd.square() * products, input) / all;
  made = made * along(invstd, input);
  if (weight && weight->defined()) made = made * along(*weight, input);
  return made.to(input.scalar_type());
}

TORCH_LIBRARY_IMPL(aten, CPU, m) {
  m.impl("batch_norm_stats", statistics_of);
  m.impl("batch_norm_gather_stats", gather_with_count);
  m.impl("batch_norm_gather_stats_with_counts", gather_with_counts);
  m.impl("batch_norm_elemt", elements);
  m.impl("batch_norm_elemt.out", elements_out);
  m.impl("batch_norm_backward_reduce", backward_sums);
  m.impl("batch_norm_backward_elemt", backward_elements);
}

}  // namespace
}  // namespace simgpu
