// The bytes of a tensor, as the trace has them.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "trace.h"

namespace simgpu {

// Returns the bytes that the tensor covers of a block, in which its storage begins at byte `at`. `layouts`: of a strided
// tensor with gaps, the trace gets a number of its layout; else the number is -1. The tensor has elements.
inline Access range_of(const at::Tensor& tensor, int64_t block, int64_t at, bool layouts) {
  auto item = static_cast<int64_t>(tensor.itemsize());
  auto sizes = tensor.sizes(), strides = tensor.strides();
  int64_t lo = at + tensor.storage_offset() * item;
  if (tensor.is_contiguous()) return {block, lo, lo + tensor.numel() * item, 0};
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride, size
  for (size_t i = 0; i < sizes.size(); ++i)
    if (sizes[i] > 1 && strides[i] != 0) dims.emplace_back(strides[i], sizes[i]);
  std::sort(dims.begin(), dims.end());
  int64_t span = item, dense = 1, layout = 0;
  bool holes = false;
  for (auto& [stride, size] : dims) {
    span += (size - 1) * stride * item;
    holes |= stride > dense;
    dense = std::max(dense, stride * (size - 1) + dense);
  }
  if (holes) {
    for (auto& [stride, size] : dims) stride = std::exchange(size, stride * item);  // now size, stride in bytes
    layout = layouts ? trace().layout_id(item, dims) : -1;
  }
  return {block, lo, lo + span, layout};
}

}  // namespace simgpu
