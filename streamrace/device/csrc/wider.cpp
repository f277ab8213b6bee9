#include "wider.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <functional>
#include <optional>
#include <unordered_map>

#include "fallback.h"
#include "versions.h"

namespace simgpu {
namespace {

using at::ScalarType;
using at::Tensor;
using c10::IValue;
using Stack = torch::jit::Stack;

std::unordered_map<std::string, uint64_t>& told() {
  static auto* all = new std::unordered_map<std::string, uint64_t>;
  return *all;
}

bool is_narrow_float(ScalarType type) { return type == at::kHalf || type == at::kBFloat16 || type == at::kComplexHalf; }

ScalarType wide_of(ScalarType narrow) {
  switch (narrow) {
    case at::kHalf: case at::kBFloat16: return at::kFloat;
    case at::kComplexHalf: return at::kComplexFloat;
    case at::kBool: return at::kByte;
    default: return at::kDouble;  // for integers: exact up to 53 bits
  }
}

// The types of a call. `from`: the narrow type that only CUDA's kernel takes.
struct Types {
  std::optional<ScalarType> from;

  Types(const Operator& op, const c10::FunctionSchema& schema, const Stack& stack) {
    auto see = [&](ScalarType type) {
      if (!from && (op.wider >> static_cast<int>(type) & 1)) from = type;
    };
    bool first = true;
    for (auto& value : stack) {
      if (!value.isTensor() || !value.toTensor().defined()) continue;
      auto type = value.toTensor().scalar_type();
      if (first && (at::isFloatingType(type) || at::isComplexType(type)) && !is_narrow_float(type)) break;  // it is wide
      first = false;
      see(type);
    }
    for (size_t i = 0; i < stack.size(); ++i)
      if (names_type(schema.arguments()[i]) && stack[i].isInt()) see(static_cast<ScalarType>(stack[i].toInt()));
  }
  static bool names_type(const c10::Argument& argument) { return argument.real_type()->str().find("ScalarType") != std::string::npos; }
  bool widens(ScalarType type) const { return type == *from || (is_narrow_float(type) && is_narrow_float(*from)); }
  ScalarType narrow(ScalarType type) const {
    if (*from != at::kBFloat16 && type == at::kFloat && is_narrow_float(*from)) return at::kHalf;
    if (type == at::kComplexFloat && is_narrow_float(*from)) return at::kComplexHalf;
    return type == wide_of(*from) ? *from : type;
  }
};

// A batch's mean and deviation have the type in which CUDA accumulates, and gradients of parameters the parameters' type.
std::function<bool(size_t)> kept_wide(const c10::FunctionSchema& schema, const Stack& given, const Types& types) {
  if (schema.name().find("batch_norm") == std::string::npos) return [](size_t) { return false; };
  bool narrow = false;
  for (size_t i = 0; i < given.size(); ++i)
    if (schema.arguments()[i].name() == "weight" && given[i].isTensor() && given[i].toTensor().defined()) narrow = types.widens(given[i].toTensor().scalar_type());
  bool backward = schema.name().find("backward") != std::string::npos;
  return [=](size_t result) { return result > 0 && !(backward && narrow); };
}

}  // namespace

void take_wider(const std::string& name, ScalarType dtype) { told()[name] |= uint64_t{1} << static_cast<int>(dtype); }

uint64_t types_wider(const std::string& name) {
  auto place = told().find(name.back() == '_' ? name.substr(0, name.size() - 1) : name);
  return place == told().end() ? 0 : place->second;
}

bool may_be_wider(const c10::OperatorHandle& handle, const Operator& op, const Stack& stack) { return op.wider != 0 && Types(op, handle.schema(), stack).from; }

void call_wider(const c10::OperatorHandle& handle, const Operator& op, Stack& stack) {
  const auto& schema = handle.schema();
  Types types(op, schema, stack);
  Stack given = stack;
  bool stays = false;  // a softmax of half numbers with a result of wide ones
  for (size_t i = 0; i < stack.size(); ++i) {
    const auto& argument = schema.arguments()[i];
    bool out = std::find(op.outs.begin(), op.outs.end(), static_cast<int>(i)) != op.outs.end();
    if (stack[i].isTensor() && stack[i].toTensor().defined() && types.widens(stack[i].toTensor().scalar_type())) {
      const Tensor narrow = stack[i].toTensor();
      auto wide = wide_of(narrow.scalar_type());
      stack[i] = out ? at::empty({0}, narrow.options().dtype(wide)) : narrow.to(wide);
    } else if (Types::names_type(argument) && stack[i].isInt() && types.widens(static_cast<ScalarType>(stack[i].toInt()))) {
      stack[i] = static_cast<int64_t>(wide_of(static_cast<ScalarType>(stack[i].toInt())));
    } else if (argument.name() == "half_to_float" && stack[i].toBool()) {
      stays = true;
      stack[i] = false;
    }
  }
  bool hides = !op.hidden.empty() && (op.hidden_when < 0 || given[op.hidden_when].toBool());
  auto keeps = kept_wide(schema, given, types);
  Stack wide = stack;
  handle.callBoxed(stack);
  for (size_t i = 0; i < given.size(); ++i) {
    bool written = op.written[i] || (hides && op.hidden[i]);
    if (!written || !given[i].isTensor() || !given[i].toTensor().defined()) continue;
    Tensor narrow = given[i].toTensor(), result = wide[i].toTensor();
    if (narrow.is_same(result)) continue;
    if (narrow.sizes() == result.sizes()) narrow.copy_(result);
    else narrow.set_(result.to(narrow.scalar_type()));  // the caller gives it that shape, and calls again
  }
  for (size_t i = 0; i < stack.size(); ++i) {
    if (op.returns[i] >= 0) {
      stack[i] = given[op.returns[i]];
    } else if (stack[i].isTensor() && stack[i].toTensor().defined() && !stays && !keeps(i)) {
      const Tensor result = stack[i].toTensor();
      stack[i] = result.to(types.narrow(result.scalar_type()));
    }
  }
}

namespace {

// For complex numbers only CUDA has it.
void nansum(const c10::OperatorHandle& handle, Stack* stack) {
  auto& self = *(stack->end() - static_cast<int64_t>(handle.schema().arguments().size()));
  if (!self.toTensor().is_complex()) return fallback(handle, stack);
  self = self.toTensor().masked_fill(self.toTensor().isnan(), 0);
  const char* overload = handle.schema().overload_name() == "out" ? "IntList_out" : "dim_IntList";
  c10::Dispatcher::singleton().findSchemaOrThrow("aten::sum", overload).callBoxed(stack);
}

// Products of 16-bit numbers with 32-bit results: only CUDA has them. The launch is one, and has the narrow numbers.
// On the CPU, too, a program may call them here.
void product(const c10::OperatorHandle& handle, Stack* stack) {
  const auto& schema = handle.schema();
  auto first = stack->end() - static_cast<int64_t>(schema.arguments().size());
  auto named = first + schema.argumentIndexWithName("out_dtype").value();
  auto dtype = static_cast<ScalarType>(named->toInt()), narrow = first->toTensor().scalar_type();
  TORCH_CHECK(dtype == narrow || (dtype == at::kFloat && (narrow == at::kHalf || narrow == at::kBFloat16)),
              "out_dtype must be the same as input dtype or fp32 for fp16/bf16 inputs");
  for (auto one = first; one < named; ++one) *one = one->toTensor().to(dtype);
  stack->erase(named);
  c10::Dispatcher::singleton().findSchemaOrThrow(schema.name().c_str(), schema.overload_name() == "dtype_out" ? "out" : "").callBoxed(stack);
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("nansum", torch::CppFunction::makeFromBoxedFunction<&nansum>());
  m.impl("nansum.out", torch::CppFunction::makeFromBoxedFunction<&nansum>());
}

#if STREAMRACE_TORCH_SINCE(8)
TORCH_LIBRARY_IMPL(aten, CPU, m) {
  for (const char* name : {"mm.dtype", "mm.dtype_out", "bmm.dtype", "bmm.dtype_out", "addmm.dtype", "addmm.dtype_out", "baddbmm.dtype", "baddbmm.dtype_out"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&product>());
}
#endif

}  // namespace
}  // namespace simgpu
