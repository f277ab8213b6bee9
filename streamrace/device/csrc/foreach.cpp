// torch._foreach_*: operators on lists of tensors, as optimizers and gradient clipping use them. CUDA runs one on all
// tensors of its lists if these are alike, and otherwise tensor by tensor (can_use_fast_route in
// ATen/native/ForeachUtils.h); so does the device. CUDA splits a long list into several launches; here it is one.
#include <ATen/OpMathType.h>
#include <ATen/native/TypeProperties.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <cmath>

#include "fallback.h"

namespace simgpu {

using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

namespace {

constexpr int64_t kChunk = 65536;  // numbers of a tensor that a block of CUDA's kernel takes (MultiTensorApply.cuh)

bool is_alike(const Tensor& one, const Tensor& first) {
  return one.device() == first.device() && one.layout() == at::kStrided && one.is_non_overlapping_and_dense();
}

// Whether the result for this number has the tensor's own type.
bool keeps_type(const Tensor& one, const IValue& value) {
  return !value.isScalar() || at::native::result_type(one, value.toScalar()) == one.scalar_type();
}

bool keeps_type_of_all(const c10::List<Tensor>& first, const IValue& value) {
  if (!value.isList() || value.isTensorList()) return first.empty() || keeps_type(first[0], value);
  auto numbers = value.toListRef();
  if (numbers.size() != first.size()) return false;
  for (size_t i = 0; i < numbers.size(); ++i)
    if (!keeps_type(first[i], numbers[i])) return false;
  return true;
}

// Operators that CUDA runs on integers at once, too, as they give integers.
bool takes_integers(const std::string& name) {
  static const std::set<std::string> those = {"add", "add_", "sub", "sub_", "mul", "mul_", "zero_", "copy_"};
  return those.count(name.substr(sizeof "aten::_foreach_" - 1)) > 0;
}

bool takes_all_at_once(const std::string& name, const Stack& given) {
  auto first = given.front().toTensorList();
  if (first.empty()) return false;
  if (name == "aten::_foreach_norm") {
    double order = given[1].toScalar().toDouble();
    if (order != 0 && order != 1 && order != 2 && !std::isinf(order)) return false;
  }
  const Tensor leading = first[0];
  bool copies = name == "aten::_foreach_copy_", integers = takes_integers(name);
  for (auto& value : given) {
    if (value.isTensor()) {
      const Tensor& one = value.toTensor();  // such as the factor that clips gradients
      if (one.dim() != 0 || at::native::result_type(leading, one) != leading.scalar_type()) return false;
      if (one.is_cuda() && one.scalar_type() != leading.scalar_type()) return false;
    }
    if (!value.isTensorList()) {
      if (!keeps_type_of_all(first, value)) return false;
      continue;
    }
    auto list = value.toTensorList();
    if (list.size() != first.size()) return false;
    for (size_t i = 0; i < list.size(); ++i) {
      const Tensor one = list[i], same = first[i];
      if (!is_alike(one, leading) || one.sizes() != same.sizes() || one.strides() != same.strides()) return false;
      if (!at::isFloatingType(one.scalar_type()) && !integers) return false;
      if (one.scalar_type() != (copies ? list[0].get().toTensor() : leading).scalar_type()) return false;
    }
  }
  return true;
}

// CUDA's norm writes a part for each chunk of each tensor before it adds these (ForeachReduceOp.cu).
Tensor parts_of_norm(const c10::List<Tensor>& given) {
  int64_t most = 0;
  for (const Tensor& one : given) most = std::max(most, one.numel());
  const Tensor first = given[0];
  return at::zeros({static_cast<int64_t>(given.size()) * ((most + kChunk - 1) / kChunk)}, first.options().dtype(at::toOpMathType(first.scalar_type())));
}

void foreach(const c10::OperatorHandle& handle, Stack* stack) {
  const auto& name = handle.schema().name();
  Stack given(stack->end() - static_cast<int64_t>(handle.schema().arguments().size()), stack->end());
  if (!takes_all_at_once(name, given)) return handle.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  Tensor parts = name == "aten::_foreach_norm" ? parts_of_norm(given.front().toTensorList()) : Tensor();
  fallback(handle, stack);
}

// Those that CUDA has no kernel for, or whose kernel reduces tensors in other ways than a norm.
bool is_left(const std::string& name, const std::string& overload) {
  static const std::set<std::string> left = {"aten::_foreach_max", "aten::_foreach_mm", "aten::_foreach_powsum", "aten::_foreach_zero", "aten::_foreach_copy"};
  return left.count(name) > 0 || overload.find("out") != std::string::npos || overload == "ScalarAndTensor";
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  for (auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("aten::_foreach_", 0) != 0 || is_left(name.name, name.overload_name)) continue;
    auto full = name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
    m.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&foreach>());
  }
}

}  // namespace
}  // namespace simgpu
