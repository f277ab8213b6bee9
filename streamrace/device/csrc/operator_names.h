// Operators that schemas and tags do not describe enough: the simulated GPU and the recorder of a real one agree on them.
#pragma once

#include <set>
#include <string>

namespace simgpu {

// Only reads metadata of a tensor.
inline bool asks_only(const std::string& name) {
  static const std::set<std::string> all = {"aten::is_set_to", "aten::is_same_size", "aten::is_pinned"};
  return all.count(name) > 0;
}

// The kernel that writes the result is launched after the host has waited for the result's size, and reads the arguments
// again (ATen/native/cuda: Nonzero.cu, IndexKernel.cpp, SummaryOps.cu, Repeat.cu, Unique.cu).
inline bool rereads(const std::string& name) {
  static const std::set<std::string> all = {
      "aten::nonzero", "aten::masked_select", "aten::index", "aten::_unsafe_index", "aten::index_put", "aten::index_put_",
      "aten::_index_put_impl_", "aten::_unsafe_index_put", "aten::bincount", "aten::repeat_interleave", "aten::unique_dim",
  };
  return all.count(name) > 0;
}

// Allocates its last result first (ATen/native/cuda: Dropout.cu). Who gets memory again depends on the order.
inline bool allocates_backwards(const std::string& name) { return name == "aten::native_dropout"; }

}  // namespace simgpu
