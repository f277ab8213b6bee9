// Values for the real CUDA build, whose kernels do nothing here: after an operator's own CUDA kernel has run, with its
// allocations and launches, the CPU's kernel computes the same on tensors that are views of the same memory.
//
// Each CUDA kernel of torch's operators is replaced in the dispatcher, below autograd and below the modes of Python. So
// a mode sees one operator, whatever is computed here, and operators that C++ code calls have values, too.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/List.h>
#include <ATen/ops/from_blob.h>
#include <ATen/record_function.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <unordered_set>

#include "numbers.h"

extern "C" void streamrace_answer(long long value);  // memory.cpp
extern "C" void streamrace_no_answer();

namespace {

using c10::DispatchKey;
using c10::IValue;
using torch::jit::Stack;

// Operators that touch no values, or whose own work on the host is all that they do.
bool leaves_values(const std::string& name) {
  static const std::unordered_set<std::string> kThose = {
      "aten::empty",        "aten::empty_strided", "aten::set_",          "aten::resize_",     "aten::record_stream",
      "aten::is_set_to",    "aten::is_pinned",     "aten::_pin_memory",   "aten::_local_scalar_dense",
      "aten::_has_same_storage_numel", "aten::_resize_output_", "aten::_efficientzerotensor",
  };
  return kThose.count(name) != 0;
}

bool is_view(const c10::FunctionSchema& schema) {
  for (auto& result : schema.returns()) {
    if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return true;
  }
  return false;
}

// Operators whose kernels count something, by which the host then allocates the result.
bool counts(const std::string& name) {
  return name == "aten::nonzero" || name == "aten::_unique2" || name == "aten::unique_consecutive" || name == "aten::unique_dim";
}

at::Tensor on_host(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda()) return tensor;
  TORCH_CHECK(tensor.layout() == c10::kStrided, "the real build computes no values of ", tensor.layout(), " tensors");
  // Made by no operator that a profiler or a mode would see.
  auto made = at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options().device(c10::kCPU));
  made._set_conj(tensor.is_conj());
  made._set_neg(tensor.is_neg());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
  return made;
}

// Calls `each` for the tensors in an argument or a result, and returns the same with what that returned.
template <typename Each>
IValue mapped(const IValue& value, const Each& each) {
  if (value.isTensor()) return each(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> made;
    for (const at::Tensor& one : value.toTensorVector()) made.push_back(each(one));
    return made;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> made;
    for (const std::optional<at::Tensor>& one : value.toOptionalTensorVector()) {
      made.push_back(one ? std::optional<at::Tensor>(each(*one)) : std::nullopt);
    }
    return made;
  }
  return value;
}

template <typename Each>
void for_each(const IValue& value, const Each& each) {
  mapped(value, [&](const at::Tensor& one) {
    each(one);
    return one;
  });
}

IValue argument_on_host(const IValue& value) {
  if (value.isDevice() && value.toDevice().is_cuda()) return c10::Device(c10::kCPU);
  if (value.isGenerator()) return IValue();  // the default one, which has the numbers of this draw
  return mapped(value, on_host);
}

// The CPU's default generator is that of one draw, and afterwards what it was.
class Numbers {
 public:
  explicit Numbers(const std::vector<IValue>& arguments) {
    at::Generator of;
    for (auto& one : arguments) {
      if (one.isGenerator() && one.toGenerator().device().is_cuda()) of = one.toGenerator();
    }
    if (!of.defined()) {
      auto device = c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice();
      of = at::globalContext().defaultGenerator(device);
    }
    drawn_ = simgpu::numbers_at(of.current_seed(), of.get_offset());
  }

  void lend() {
    before_ = own_.get_state();
    own_.set_state(drawn_.get_state());
  }

  ~Numbers() {
    if (before_.defined()) own_.set_state(before_);
  }

 private:
  at::Generator own_ = at::detail::getDefaultCPUGenerator(), drawn_;
  at::Tensor before_;
};

class WithValues : public c10::OperatorKernel {
 public:
  WithValues(c10::SafeKernelFunction real, bool draws, bool counts) : real_(std::move(real)), draws_(draws), counts_(counts) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
    auto& schema = op.schema();
    size_t count = schema.arguments().size();
    std::vector<IValue> arguments(stack->end() - count, stack->end());
    std::optional<Numbers> numbers;
    if (draws_) numbers.emplace(arguments);
    auto saved = written(schema, arguments);
    if (counts_) streamrace_answer(counted(op, arguments));
    real_.callBoxed(op, keys, stack);
    if (counts_) streamrace_no_answer();

    at::DisableRecordFunctionGuard unseen;
    for (auto& [tensor, before] : saved) {
      if (tensor.sizes() == before.sizes()) tensor.copy_(before);
    }
    if (numbers) numbers->lend();
    Stack host = on_the_host(op, arguments);
    size_t results = schema.returns().size();
    for (size_t at = 0; at < results; ++at) {
      auto& real = (*stack)[stack->size() - results + at];
      if (schema.returns()[at].alias_info() == nullptr) deliver(op, host[at], real);
    }
  }

 private:
  static Stack on_the_host(const c10::OperatorHandle& op, const std::vector<IValue>& arguments) {
    Stack host;
    for (auto& one : arguments) host.push_back(argument_on_host(one));
    c10::impl::ExcludeDispatchKeyGuard below(c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::DispatchKeySet({DispatchKey::Python, DispatchKey::PythonTLSSnapshot}));
    try {
      op.callBoxed(&host);
    } catch (const c10::NotImplementedError&) {
      // Memory-efficient and flash attention: sdpa_kernel(SDPBackend.MATH) chooses operators that both have.
      TORCH_CHECK_NOT_IMPLEMENTED(false, "the real build computes no values of ", op.operator_name(), ", which has kernels for CUDA alone");
    }
    return host;
  }

  static long long counted(const c10::OperatorHandle& op, const std::vector<IValue>& arguments) {
    at::DisableRecordFunctionGuard unseen;
    return on_the_host(op, arguments)[0].toTensor().size(0);  // along the counted dimension, which is the first
  }

  // What the operator will overwrite, and its values: its own copies have happened when the CPU's kernel reads.
  static std::vector<std::pair<at::Tensor, at::Tensor>> written(const c10::FunctionSchema& schema, const std::vector<IValue>& arguments) {
    std::vector<std::pair<at::Tensor, at::Tensor>> made;
    at::DisableRecordFunctionGuard unseen;
    for (size_t at = 0; at < arguments.size(); ++at) {
      auto* alias = schema.arguments()[at].alias_info();
      if (alias == nullptr || !alias->isWrite()) continue;
      for_each(arguments[at], [&](const at::Tensor& one) {
        if (!one.defined() || !one.is_cuda()) return;
        auto host = on_host(one);
        made.emplace_back(host, host.clone());
      });
    }
    return made;
  }

  static void deliver(const c10::OperatorHandle& op, const IValue& host, IValue& real) {
    std::vector<at::Tensor> values;
    for_each(host, [&](const at::Tensor& one) { values.push_back(one); });
    size_t at = 0;
    for_each(real, [&](const at::Tensor& one) {
      const at::Tensor& value = values.at(at++);
      if (!one.defined() || !one.is_cuda() || !value.defined()) return;
      TORCH_CHECK(one.sizes() == value.sizes(), "the real build's ", op.operator_name(), " has ", one.sizes(), ", the CPU's ", value.sizes());
      on_host(one).copy_(value);
    });
    if (values.empty()) real = host;  // a number, which the real kernel computed from nothing
  }

  c10::SafeKernelFunction real_;
  bool draws_, counts_;
};

struct Quiet : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

bool has_tag(const c10::OperatorHandle& op, at::Tag tag) {
  for (auto& one : op.getTags()) {
    if (one == tag) return true;
  }
  return false;
}

// Kept to the end of the process: their ends would undo the registrations.
std::vector<c10::RegistrationHandleRAII>& registrations() {
  static auto* made = new std::vector<c10::RegistrationHandleRAII>();
  return *made;
}

void install() {
  Quiet handler;  // torch warns of kernels that take another's place
  c10::WarningUtils::WarningHandlerGuard held(&handler);
  auto& dispatcher = c10::Dispatcher::singleton();
  auto names = dispatcher.getAllOpNamesForDispatchKey(DispatchKey::CUDA);
  names.push_back({"aten::copy_", ""});  // one kernel for all devices, which launches
  for (auto& name : names) {
    if (name.name.rfind("aten::", 0) != 0 || leaves_values(name.name)) continue;
    auto op = dispatcher.findSchema(name);
    if (!op || is_view(op->schema()) || has_tag(*op, at::Tag::inplace_view)) continue;
    auto real = op->getComputedKernelForDispatchKey(DispatchKey::CUDA);
    auto kernel = std::make_unique<WithValues>(std::move(real), has_tag(*op, at::Tag::nondeterministic_seeded), counts(name.name));
    registrations().push_back(dispatcher.registerImpl(
        name, DispatchKey::CUDA, c10::KernelFunction::makeFromBoxedFunctor(std::move(kernel)), std::nullopt, nullptr, "streamrace: values"));
  }
}

struct Installed {
  Installed() { install(); }
} installed;

}  // namespace
