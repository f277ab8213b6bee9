// CUDA's kernels for lists of tensors, with which FSDP2 copies in and out: one launch, where the composite copies part after
// part and counts a version for each. They read a table of addresses and sizes, for which torch allocates pinned memory and
// memory of the device (aten/src/ATen/native/cuda/TensorShape.cu): it takes memory that was freed before.
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/_chunk_cat_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/split_with_sizes_copy_compositeexplicitautograd_dispatch.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "fallback.h"

namespace simgpu {
namespace {

using at::Tensor;
using torch::jit::Stack;

constexpr int64_t kThreads = 128, kTile = kThreads * 16;      // of a block of these kernels, and the bytes that it copies
constexpr int64_t kMostBlocks = 108 * 2048 / kThreads * 2;  // the GPU's multiprocessors and their threads (cuda.py)

int64_t up(int64_t number, int64_t by) { return (number + by - 1) / by; }

Tensor table(int64_t numbers, c10::Device device) {
  Tensor host = at::empty({numbers}, at::TensorOptions().dtype(at::kLong).pinned_memory(true));
  std::memset(host.data_ptr(), 0, host.nbytes());
  return host.to(device, at::kLong, true);
}

bool dense(const std::vector<Tensor>& tensors) {
  return !tensors.empty() && std::all_of(tensors.begin(), tensors.end(), [](const Tensor& one) { return one.is_non_overlapping_and_dense() && one.numel() > 0; });
}

void split_with_sizes_copy_out(const c10::OperatorHandle& handle, Stack* stack) {
  auto given = torch::jit::last(*stack, 4);
  Tensor self = given[0].toTensor();
  auto sizes = given[1].toIntVector();
  auto out = given[3].toTensorVector();
  int64_t dim = given[2].toInt(), splits = static_cast<int64_t>(sizes.size());
  bool fits = dense({self}) && dense(out) && out.size() == sizes.size() && self.dim() > 0 &&
      std::all_of(out.begin(), out.end(), [&](const Tensor& one) { return one.dtype() == self.dtype(); });
  if (!fits) {
    at::compositeexplicitautograd::split_with_sizes_copy_outf(self, sizes, dim, out);
    return torch::jit::drop(*stack, 4);
  }
  dim = at::maybe_wrap_dim(dim, self.dim());
  int64_t chunks = c10::multiply_integers(self.sizes().slice(0, dim));
  auto blocks = [&](int64_t rounds) {
    int64_t sum = 0;
    for (int64_t size : sizes) sum += up(size * self.stride(dim) * static_cast<int64_t>(self.element_size()), kTile * rounds);
    return sum;
  };
  int64_t factor = up(blocks(1) * chunks, kMostBlocks);
  int64_t rounds = up(factor, std::min(static_cast<int64_t>(std::ceil(std::sqrt(factor))), chunks));
  Tensor held = table(4 * splits + 1 + blocks(rounds), self.device());
  fallback(handle, stack);
}

// torch frees this table before it launches the kernel, on whose stream its memory is then used again.
void chunk_cat(const c10::OperatorHandle& handle, Stack* stack) {
  bool has_out = handle.schema().arguments().size() == 4;
  auto given = torch::jit::last(*stack, has_out ? 4 : 3);
  auto tensors = given[0].toTensorVector();
  int64_t dim = given[1].toInt(), chunks = given[2].toInt(), blocks = 0;
  bool fits = dense(tensors) && chunks > 0;
  if (fits) dim = at::maybe_wrap_dim(dim, tensors[0].dim());
  for (auto& one : tensors) fits = fits && one.dim() > dim;
  auto of = fits ? tensors[0].scalar_type() : at::kByte, into = has_out ? given[3].toTensor().scalar_type() : of;
  if (!fits || (of != into && (of != at::kBFloat16 || into != at::kFloat))) {
    Tensor result = has_out ? given[3].toTensor() : Tensor();
    if (has_out) at::compositeexplicitautograd::_chunk_cat_outf(tensors, dim, chunks, result);
    else result = at::compositeexplicitautograd::_chunk_cat(tensors, dim, chunks);
    torch::jit::drop(*stack, has_out ? 4 : 3);
    return torch::jit::push(*stack, result);
  }
  for (auto& one : tensors) {
    int64_t behind = c10::multiply_integers(one.sizes().slice(dim + 1));
    blocks += up(up(one.size(dim), chunks) * behind * static_cast<int64_t>(c10::elementSize(into)), kTile);
  }
  table(6 * static_cast<int64_t>(tensors.size()) + 2 + blocks, tensors[0].device());
  fallback(handle, stack);
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("split_with_sizes_copy.out", torch::CppFunction::makeFromBoxedFunction<&split_with_sizes_copy_out>());
  m.impl("_chunk_cat", torch::CppFunction::makeFromBoxedFunction<&chunk_cat>());
  m.impl("_chunk_cat.out", torch::CppFunction::makeFromBoxedFunction<&chunk_cat>());
}

}  // namespace
}  // namespace simgpu
