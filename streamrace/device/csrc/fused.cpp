// The operators of CUDA's fused attention, flash and memory-efficient, which DTensor and context parallelism know.
// Their arguments, results and layouts are CUDA's, without dropout; the numbers are those of the CPU's flash kernel.
#include "fused.h"

#if STREAMRACE_TORCH_SINCE(6)
#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/library.h>

#include <cmath>
#include <limits>

namespace simgpu {

using at::Tensor;
using sdp::sdp_params;
using std::optional;

namespace {

constexpr int64_t kRows = 32;  // the memory-efficient kernel pads its log-sum-exp to a multiple of this

bool warned(bool debug, const char* why) {
  if (debug) TORCH_WARN(why);
  return false;
}

// The same checks as CUDA's, in its order (ATen/native/transformers/cuda/sdp_utils.cpp, of a GPU since sm80).
bool flash_fits(const sdp_params& given, bool debug) {
  if (!sdp::check_runtime_disabled_flash(given, debug) || !sdp::check_tensor_shapes(given, debug) || !sdp::check_for_attn_mask(given, debug))
    return false;
  auto head = given.query.sym_size(-1);
  if (head != given.key.sym_size(-1) || head != given.value.sym_size(-1) || head > 256)
    return warned(debug, "Flash attention requires q,k,v to have the same last dimension and to be less than or equal to 256.");
  if (given.is_causal && given.query.sym_size(-2) != given.key.sym_size(-2))
    return warned(debug, "Flash attention does not support the is_causal flag when seqlen_q != seqlen_k.");
  return sdp::check_tensor_dtype(given, std::array<at::ScalarType, 2>{at::kHalf, at::kBFloat16}, debug) &&
         sdp::check_batch_size_and_num_heads_dense<true>(given, debug) &&
         sdp::check_nonzero_sequence_lengths_dense(given, debug) && sdp::check_last_dim_stride_equals_1_dense<true>(given, debug);
}

bool efficient_fits(const sdp_params& given, bool debug) {
  if (!sdp::check_runtime_disabled_mem_efficient(given, debug) || !sdp::check_tensor_shapes(given, debug)) return false;
  int64_t aligned = given.query.scalar_type() == at::kFloat ? 4 : 8;
  auto head = given.query.sym_size(-1), of_value = given.value.sym_size(-1);
  if (head != given.key.sym_size(-1) || head % aligned != 0 || of_value % aligned != 0 || head <= 0 || of_value <= 0)
    return warned(debug, "Mem efficient attention requires last dimension of inputs to be divisible by 4 (float) or 8 (half, bfloat16).");
  return sdp::check_tensor_dtype(given, std::array<at::ScalarType, 3>{at::kHalf, at::kFloat, at::kBFloat16}, debug) &&
         sdp::check_batch_size_and_num_heads_dense<false>(given, debug) &&
         sdp::check_nonzero_sequence_lengths_dense(given, debug) && sdp::check_last_dim_stride_equals_1_dense<false>(given, debug);
}

void without_dropout(double dropout) {
  TORCH_CHECK_NOT_IMPLEMENTED(dropout == 0, "streamrace: dropout within CUDA's fused attention cannot be simulated: give it no dropout, "
                              "or let scaled_dot_product_attention take SDPBackend.MATH");
}

// Checks what CUDA's flash kernel supports, for direct calls: scaled_dot_product_attention has checked before.
void check_flash(const Tensor& query, const Tensor& key, double dropout, bool causal) {
  without_dropout(dropout);
  TORCH_CHECK(query.scalar_type() == at::kHalf || query.scalar_type() == at::kBFloat16, "FlashAttention only support fp16 and bf16 data type");
  TORCH_CHECK(query.size(1) % key.size(1) == 0, "Number of heads in key/value must divide number of heads in query");
  TORCH_CHECK_NOT_IMPLEMENTED(!causal || query.size(2) == key.size(2), "streamrace: flash attention with is_causal and fewer or more queries than keys cannot be simulated: "
                              "give it a mask through scaled_dot_product_attention");
}

void check_efficient(const Tensor& query, double dropout) {
  without_dropout(dropout);
  TORCH_CHECK(query.scalar_type() != at::kDouble, "Expected query to be float, half or bfloat16, not double (memory-efficient attention)");
}

Tensor laid(const Tensor& made, at::IntArrayRef strides) {
  return made.strides() == strides ? made : at::empty_strided(made.sizes(), strides, made.options()).copy_(made);
}

Tensor laid_as(const Tensor& made, const Tensor& given) { return laid(made, at::infer_dense_strides(given.sizes(), given.strides())); }

// For grouped queries: repeats heads of keys to one for each head of queries, and back.
Tensor spread(const Tensor& one, int64_t heads) { return one.size(1) == heads ? one : one.repeat_interleave(heads / one.size(1), 1); }

Tensor gathered(const Tensor& gradient, const Tensor& of) {
  if (gradient.size(1) == of.size(1)) return gradient;
  return gradient.unflatten(1, {of.size(1), gradient.size(1) / of.size(1)}).sum(2);
}

// The CPU's kernel needs heads of equal size: padding with zeros changes nothing, if the scale is given.
Tensor widened(const Tensor& one, int64_t size) { return one.size(-1) == size ? one : at::constant_pad_nd(one, {0, size - one.size(-1)}); }

double scale_of(const Tensor& query, optional<double> scale) { return scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1)))); }

using Flash = std::tuple<Tensor, Tensor, Tensor, Tensor, c10::SymInt, c10::SymInt, Tensor, Tensor, Tensor>;

Flash flash(const Tensor& query, const Tensor& key, const Tensor& value, double dropout, bool causal, bool debug, optional<double> scale) {
  check_flash(query, key, dropout, causal);
  TORCH_CHECK(!debug, "return_debug_mask is only supported with dropout");
  int64_t heads = query.size(1);
  auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(query, spread(key, heads), spread(value, heads), 0, causal, {}, scale);
#if STREAMRACE_TORCH_SINCE(7)
  Tensor state = at::empty({2}, query.options().dtype(at::kUInt64)), unused = at::empty({}, query.options().dtype(at::kUInt64));
#else
  Tensor state = at::empty({}, query.options().dtype(at::kLong)), unused = at::empty({}, query.options().dtype(at::kLong));
#endif
  return {laid_as(output, query), logsumexp.contiguous(), {}, {}, query.size(2), key.size(2), state, unused, at::empty({0}, query.options())};
}

std::tuple<Tensor, Tensor, Tensor> flash_backward(
    const Tensor& gradient, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& output, const Tensor& logsumexp, const Tensor&,
    const Tensor&, c10::SymInt, c10::SymInt, double dropout, bool causal, const Tensor&, const Tensor&, optional<double> scale) {
  if (!gradient.defined()) return {};
  check_flash(query, key, dropout, causal);
  int64_t heads = query.size(1);
  auto [of_query, of_key, of_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      gradient, query, spread(key, heads), spread(value, heads), output, logsumexp, 0, causal, {}, scale);
  return {laid_as(of_query, query), laid_as(gathered(of_key, key), key), laid_as(gathered(of_value, value), value)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient(const Tensor& query, const Tensor& key, const Tensor& value, const optional<Tensor>& bias,
                                                     bool wants_logsumexp, double dropout, bool causal, optional<double> scale) {
  check_efficient(query, dropout);
  int64_t size = std::max(query.size(-1), value.size(-1)), rows = query.size(2);
  auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      widened(query, size), widened(key, size), widened(value, size), 0, causal, bias, scale_of(query, scale));
  if (!wants_logsumexp) logsumexp = at::empty({query.size(0), query.size(1), 0}, query.options().dtype(at::kFloat));
  else if (rows % kRows) logsumexp = at::constant_pad_nd(logsumexp, {0, kRows - rows % kRows}, std::numeric_limits<double>::infinity());
  if (output.size(-1) != value.size(-1)) output = output.narrow(-1, 0, value.size(-1)).transpose(1, 2).contiguous().transpose(1, 2);
  auto number = query.options().dtype(at::kLong);
  return {output, logsumexp.contiguous(), at::empty({}, number), at::empty({}, number)};
}

// Computed by its definition: the CPU's kernel has no gradient of a mask.
Tensor gradient_of_bias(const Tensor& gradient, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias, const Tensor& output,
                        const Tensor& logsumexp, bool causal, double scale) {
  Tensor scores = at::matmul(query.to(at::kFloat), key.to(at::kFloat).transpose(-2, -1)) * scale + bias;
  Tensor weights = (scores - logsumexp.unsqueeze(-1)).exp();
  if (causal) weights = weights.tril();
  Tensor of_weights = at::matmul(gradient.to(at::kFloat), value.to(at::kFloat).transpose(-2, -1));
  Tensor own = (gradient.to(at::kFloat) * output).sum(-1, /*keepdim=*/true);
  return at::sum_to(weights * (of_weights - own), bias.sizes()).to(bias.scalar_type());
}

std::tuple<Tensor, Tensor, Tensor, Tensor> efficient_backward(
    const Tensor& gradient, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& bias, const Tensor& output, const Tensor& padded,
    const Tensor&, const Tensor&, double dropout, std::array<bool, 4> wanted, bool causal, optional<double> scale) {
  if (!gradient.defined()) return {};
  check_efficient(query, dropout);
  int64_t size = std::max(query.size(-1), value.size(-1));
  auto given = bias.defined() ? optional<Tensor>(bias.detach()) : std::nullopt;
  Tensor logsumexp = padded.narrow(2, 0, query.size(2));
  auto [of_query, of_key, of_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
      widened(gradient, size), widened(query, size), widened(key, size), widened(value, size), widened(output, size), logsumexp, 0, causal, given,
      scale_of(query, scale));
  Tensor of_bias;
  if (bias.defined() && wanted[3]) of_bias = gradient_of_bias(gradient, query, key, value, bias, output, logsumexp, causal, scale_of(query, scale));
  auto narrow = [](const Tensor& made, const Tensor& like) {
    return made.size(-1) == like.size(-1) ? made : made.narrow(-1, 0, like.size(-1)).transpose(1, 2).contiguous().transpose(1, 2);
  };
  return {narrow(of_query, query), narrow(of_key, key), narrow(of_value, value), of_bias};
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("_scaled_dot_product_flash_attention", flash);
  m.impl("_scaled_dot_product_flash_attention_backward", flash_backward);
  m.impl("_scaled_dot_product_efficient_attention", efficient);
  m.impl("_scaled_dot_product_efficient_attention_backward", efficient_backward);
}

}  // namespace

static bool is_subclass(const Tensor& one) {  // a fake tensor, whose storage is meta's, represents a plain one
  return one.key_set().has(c10::DispatchKey::Python) && !(one.has_storage() && one.unsafeGetTensorImpl()->unsafe_storage().device().is_meta());
}

// Whether a graph is traced by this tensor (torch's FunctionalTensor), to whose memory nothing may write.
static bool is_traced(const Tensor& one) {
  try {
    if (one.has_storage()) one.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()->mutable_data_ptr();
    return false;
  } catch (const c10::Error&) {
    return true;
  }
}

optional<int64_t> chosen_as_cuda(const sdp_params& given) {
  auto& allowed = at::globalContext();
  bool math = allowed.userEnabledMathSDP(), cudnn = allowed.userEnabledCuDNNSDP();
  bool some = allowed.userEnabledFlashSDP() || allowed.userEnabledMemEfficientSDP() || math || cudnn;
  bool all = allowed.userEnabledFlashSDP() && allowed.userEnabledMemEfficientSDP() && math && cudnn;
  bool subclass = is_subclass(given.query) || is_subclass(given.key) || is_subclass(given.value);
  bool seen = c10::impl::TorchDispatchModeTLS::any_modes_set(/*skip_infra_modes=*/true);
  if (all && !subclass && !seen) return std::nullopt;
  TORCH_CHECK(some, "No viable backend for scaled_dot_product_attention was found. This is likely due to turning off both the math kernel and the fused kernels.");
  for (auto backend : allowed.sDPPriorityOrder()) {
    bool fused = (backend == at::SDPBackend::flash_attention && flash_fits(given, false)) ||
                 (backend == at::SDPBackend::efficient_attention && efficient_fits(given, false));
    if (fused && given.dropout > 0) {  // by its definition, unless context parallelism must split the kernel
      if (!math || (subclass && !is_traced(given.query))) without_dropout(given.dropout);
      continue;
    }
    if (fused || (backend == at::SDPBackend::math && math)) return static_cast<int64_t>(backend);
  }
  TORCH_CHECK_NOT_IMPLEMENTED(!cudnn, "streamrace: cuDNN's attention cannot be simulated: allow SDPBackend.FLASH_ATTENTION, "
                              "EFFICIENT_ATTENTION or MATH, of which one has to fit these tensors");
  TORCH_WARN("Memory efficient kernel not used because:");
  efficient_fits(given, true);
  TORCH_WARN("Flash attention kernel not used because:");
  flash_fits(given, true);
  TORCH_CHECK(false, "No available kernel. Aborting execution.");
}

}  // namespace simgpu
#endif
