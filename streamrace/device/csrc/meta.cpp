// Shapes of results according to torch's meta kernels. These are for all devices, and mostly follow CUDA: if the CPU's
// kernel gives another type or other strides, the CPU's count, as a live run has its results. So for small tensors the
// CPU's kernel runs as well, and the meta kernel of an operator for which the two ever differed is not used.
#include <ATen/EmptyTensor.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/cat_meta_dispatch.h>

#include "dry.h"
#include "fallback.h"

namespace simgpu {
namespace {

using at::Tensor;
using c10::IValue;
using Stack = Dry::Stack;

Tensor hollow(const Tensor& tensor) {
  if (!tensor.defined() || tensor.unsafeGetTensorImpl()->is_wrapped_number()) return tensor;
  auto made = at::detail::empty_strided_meta(tensor.sizes(), tensor.strides(), tensor.scalar_type());
  auto* impl = made.unsafeGetTensorImpl();
  if (tensor.is_conj()) impl->_set_conj(true);
  if (tensor.is_neg()) impl->_set_neg(true);
  return made;
}

IValue hollow(const IValue& value) {
  if (value.isTensor()) return hollow(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> made;
    for (const Tensor& tensor : value.toTensorList()) made.push_back(hollow(tensor));
    return made;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> made;
    for (const std::optional<Tensor>& tensor : value.toOptionalTensorList())
      made.push_back(tensor ? std::optional<Tensor>(hollow(*tensor)) : std::nullopt);
    return made;
  }
  return value.isDevice() ? IValue(c10::Device(c10::kMeta)) : value;
}

void each(const Stack& stack, const std::function<void(const Tensor&)>& see) {
  for (auto& value : stack) {
    if (value.isTensor()) see(value.toTensor());
    else if (value.isTensorList())
      for (const Tensor& one : value.toTensorList()) see(one);
  }
}

Tensor said(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) { return at::detail::empty_strided_meta(sizes, strides, dtype); }

// Corrects meta kernels that differ from the CPU's. Found and kept up to date by tests/device/test_dry_shapes.py.
void correct(const Operator& op, const Stack& inputs, Stack& results) {
  static const int64_t layer_norm = name_id("aten::native_layer_norm"), batch_norm = name_id("aten::native_batch_norm"),
                       legit = name_id("aten::_native_batch_norm_legit"), convolution = name_id("aten::convolution");
  bool layer = op.name == layer_norm, batch = op.name == batch_norm || op.name == legit;
  if (layer || batch) {  // mean and deviation have the input's type, unless the parameters have another
    size_t from = layer ? 2 : 1, to = layer ? 4 : inputs.size() - 3;
    auto dtype = inputs[0].toTensor().scalar_type();
    bool saved = layer || inputs[to].toBool(), mixed = false;
    for (size_t i = from; i < to; ++i) {
      auto one = inputs[i].toOptional<Tensor>();
      mixed |= one && one->defined() && one->scalar_type() != dtype;
    }
    for (size_t i : {1, 2}) {
      const Tensor result = results[i].toTensor();
      if (mixed) dtype = at::kFloat;
      results[i] = saved ? said(result.sizes(), result.strides(), dtype) : said({0}, {1}, dtype);
    }
  } else if (op.name == convolution) {
    // The meta kernel does not know the backend, which decides the result's strides. The CPU's choice needs only shapes.
    const Tensor &input = inputs[0].toTensor(), &weight = inputs[1].toTensor(), result = results[0].toTensor();
    auto list = [&](size_t i) { return inputs[i].toIntVector(); };
    auto stride = list(3), padding = list(4), dilation = list(5), more = list(7);
    auto backend = at::native::select_conv_backend(input, weight, inputs[2].toOptional<Tensor>(), c10::fromIntArrayRefSlow(stride),
        c10::fromIntArrayRefSlow(padding), c10::fromIntArrayRefSlow(dilation), inputs[6].toBool(), c10::fromIntArrayRefSlow(more),
        inputs[8].toInt(), at::OptionalSymIntArrayRef());
    results[0] = at::detail::empty_meta(result.sizes(), result.scalar_type(), at::native::_determine_backend_memory_format(input, weight, backend));
  }
}

// Calls the CPU's own structured kernel: torch's meta kernel in Python takes 50 ms for 16,384 tensors.
bool concatenated(const Operator& op, Stack& stack) {
  static const int64_t cat = name_id("aten::cat");
  if (op.name != cat || stack.size() < 2 || !stack[0].isTensorList() || !stack[1].isInt()) return false;
  auto tensors = stack[0].toTensorVector();
  auto result = stack.size() == 2 ? at::meta::cat(tensors, stack[1].toInt()) : stack[2].toTensor();
  if (stack.size() == 3) at::meta::cat_out(result, tensors, stack[1].toInt());
  stack = {result};
  return true;
}

}  // namespace

std::pair<Stack, Stack> on_meta(const c10::OperatorHandle& handle, const Operator& op, const Stack& inputs) {
  Executing quiet(c10::get_default_dtype_as_scalartype());
  Stack stood;
  for (auto& value : inputs) stood.push_back(hollow(value));
  for (size_t i = 0; i < inputs.size(); ++i)  // meta kernels take no CPU generator
    if (inputs[i].isGenerator()) stood[i] = IValue();
  Stack stack = stood;
  if (!concatenated(op, stack)) handle.callBoxed(stack);
  correct(op, inputs, stack);
  return {std::move(stack), std::move(stood)};
}

int64_t bytes_of(const Stack& stack) {
  int64_t nbytes = 0;
  each(stack, [&](const Tensor& one) {
    if (one.defined()) nbytes += one.numel() * static_cast<int64_t>(one.itemsize());
  });
  return nbytes;
}

void Dry::compare(const c10::OperatorHandle& handle, const Operator& op, const Stack& meta, const Stack& cpu) {
  bool same = meta.size() == cpu.size();
  for (size_t i = 0; same && i < cpu.size(); ++i) {
    if (op.returns[i] != Operator::kFresh) continue;
    std::vector<Tensor> one, other;
    each({meta[i]}, [&](const Tensor& tensor) { one.push_back(tensor); });
    each({cpu[i]}, [&](const Tensor& tensor) { other.push_back(tensor); });
    same = one.size() == other.size();
    for (size_t j = 0; same && j < one.size(); ++j) {
      same = one[j].defined() == other[j].defined();
      if (!same || !one[j].defined()) continue;
      same = one[j].scalar_type() == other[j].scalar_type() && one[j].sizes() == other[j].sizes();
      for (int64_t dim = 0; same && dim < one[j].dim(); ++dim)
        same = one[j].numel() == 0 || one[j].size(dim) == 1 || one[j].stride(dim) == other[j].stride(dim);
    }
  }
  if (!same) dissent.insert(c10::str(handle.operator_name()));
}

// Operators known to differ.
static const std::set<std::string> kDiffer = {
    "aten::_batch_norm_with_update", "aten::_embedding_bag", "aten::_fft_c2r", "aten::_fft_r2c",
    "aten::linalg_eig", "aten::linalg_solve_triangular", "aten::max_unpool2d", "aten::nonzero_static",
};

bool Dry::differs(const c10::OperatorHandle& handle) const { return kDiffer.count(handle.schema().name()) > 0 || dissent.count(c10::str(handle.operator_name())) > 0; }

}  // namespace simgpu
