// Runs every operator that the device does not implement itself: issued here, below autograd, autocast and all modes, in
// place of CUDA's kernels. Its tensors become CPU aliases of the same memory, and the CPU's kernel runs on them when the
// launch executes. Shapes of new results come from that kernel, once per signature, on stand-ins: meta kernels
// disagree with it in places (the log-sum-exp of the CPU's flash attention has another dtype).
#include "fallback.h"

#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/bit_cast.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "callsite.h"
#include "capture.h"
#include "dry.h"
#include "generator.h"
#include "operators.h"
#include "recorder.h"
#include "probes.h"
#include "wider.h"

namespace simgpu {

// gloo's threads move values for the device while it waits for them: they have no Python state.
thread_local bool executing = !PyGILState_GetThisThreadState();

Executing::Executing(at::ScalarType dtype)
    : keys_(c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
            c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset),
      grad_(true),  // some kernels return more if gradients are needed; superfluous results are not used
      before_(executing),
      dtype_(c10::get_default_dtype()) {
  executing = true;
  if (c10::typeMetaToScalarType(dtype_) != dtype) c10::set_default_dtype(c10::scalarTypeToTypeMeta(dtype));
}

Executing::~Executing() {
  if (c10::get_default_dtype() != dtype_) c10::set_default_dtype(dtype_);
  executing = before_;
}

at::Tensor place_of(const at::Tensor& tensor, bool written, Accesses& accesses) {
  TORCH_CHECK(tensor.layout() == at::kStrided && !tensor.is_quantized(), "streamrace: a sparse or quantized tensor cannot be simulated: the simulated GPU has dense tensors only, so keep it on the CPU");
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  Block* block = block_of(storage);
  if (!block) {
    TORCH_CHECK(storage->nbytes() == 0, "streamrace: this tensor's memory does not come from the simulated GPU's allocator");
    auto none = at::detail::empty_cpu({0}, tensor.scalar_type());
    none.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
    return none;
  }
  add_access(tensor, *block, written ? accesses.writes : accesses.reads);
  return alias(tensor, *block);
}

void see(int64_t op, const at::Tensor& tensor, bool copied) {
  if (!probes().on || !tensor.defined()) return;
  if (replayed_operation >= 0) op = replayed_operation;
  at::Tensor row = tensor.contiguous();
  probes().read(op, row.data_ptr(), row.nbytes(), row.itemsize(), copied);
  if (row.numel() != 1 || row.is_complex() || row.scalar_type() == at::kUInt64) return;
  if (row.is_floating_point()) probes().number(op, row.item().toDouble());
  else probes().number(op, row.item().toLong());
}

namespace {

using at::Tensor;
using c10::IValue;
using Stack = torch::jit::Stack;

struct Spec {
  std::vector<int64_t> sizes, strides;
  at::ScalarType dtype;
  bool conjugate = false, negative = false;
};
struct Signature {
  std::vector<std::optional<Spec>> fresh;     // of the returned tensors, lists flattened
  std::vector<std::pair<int, Spec>> resized;  // "out=" arguments that do not have the result's shape
  std::vector<std::pair<int, bool>> conjugated;  // arguments whose conjugate bit changes
  std::vector<IValue> plain;                  // results that are not tensors, by result
  bool wide = false;                          // computed in a wider type: see wider.h
  int64_t nominal = 0;
  int64_t flops = 0;
};
struct KeyHash {
  size_t operator()(const std::vector<int64_t>& key) const {
    size_t hash = key.size();
    for (int64_t word : key) hash = (hash ^ static_cast<size_t>(word)) * 0x9E3779B97F4A7C15ull + (hash >> 29);
    return hash;
  }
};

const char* const kDense = " of a sparse, quantized or strided nested tensor cannot be simulated: the simulated GPU has dense tensors only "
                           "(nested tensors: layout=torch.jagged; the others: use the CPU)";

Spec spec_of(const Tensor& tensor, const Operator& op) {
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == at::kStrided && !tensor.is_quantized() && !tensor.is_nested(), "streamrace: ", name_of(op.name), kDense);
  return {tensor.sizes().vec(), tensor.strides().vec(), tensor.scalar_type(), tensor.is_conj(), tensor.is_neg()};
}

Tensor allocate(const Spec& spec, int64_t site) {
  Allocating from(site);
  auto made = at::detail::empty_strided_generic(spec.sizes, spec.strides, device_allocator(), c10::DispatchKeySet(c10::DispatchKey::CUDA), spec.dtype);
  if (spec.conjugate) made.unsafeGetTensorImpl()->_set_conj(true);
  if (spec.negative) made.unsafeGetTensorImpl()->_set_neg(true);
  return made;
}

// Gives an "out=" argument the layout of its result, and memory for it: the result may have gaps.
void reshape(const Tensor& out, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t site) {
  at::native::resize_output(out, sizes);
  out.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  auto needed = at::detail::computeStorageNbytes(sizes, strides, out.itemsize(), out.storage_offset());
  auto* storage = out.storage().unsafeGetStorageImpl();
  if (out.numel() > 0 && needed > storage->nbytes()) resize_storage(storage, needed, site);
}

// A call as it is issued.
struct Call {
  static constexpr int64_t kTensor = int64_t{1} << 40, kKind = int64_t{1} << 41;
  const c10::OperatorHandle& handle;
  const Operator& op;
  Accesses accesses;
  std::vector<int64_t> key, shapes;
  Stack inputs;
  std::vector<std::pair<Tensor, Tensor>> met;  // arguments and their stand-ins
  int64_t nbytes = 0, largest = 0, switches = 0;
  int switched = 0;
  bool masked = false, hides = false, wide = false;

  Call(const c10::OperatorHandle& handle_, const Operator& op_) : handle(handle_), op(op_) {}

  Tensor tensor(const Tensor& given, bool written, size_t place = SIZE_MAX) {
    if (!given.defined()) {
      key.push_back(-1);
      return given;
    }
    auto sizes = given.sizes(), strides = given.strides();
    bool number = given.unsafeGetTensorImpl()->is_wrapped_number();  // such a number has less influence on the result's type
    key.push_back(kTensor + (static_cast<int64_t>(given.scalar_type()) << 8 | given.dim()) + (given.is_cuda() ? 1 << 20 : 0) + (number ? 1 << 21 : 0) +
                  (given.is_conj() ? 1 << 22 : 0) + (given.is_neg() ? 1 << 23 : 0));
    key.insert(key.end(), sizes.begin(), sizes.end());
    key.insert(key.end(), strides.begin(), strides.end());
    shapes.push_back(static_cast<int64_t>(given.scalar_type()) << 8 | given.dim());
    shapes.insert(shapes.end(), sizes.begin(), sizes.end());
    nbytes += given.numel() * static_cast<int64_t>(given.itemsize()) * (written && op.updates ? 2 : 1);
    largest = std::max(largest, given.numel());
    if (given.is_cuda()) {
      auto here = place_of(given, written, accesses);
      if (op.outs.empty()) return here;
      for (size_t i = 0; written && i < met.size(); ++i) {  // in place: a kernel checks whether "out=" is also its input
        if (!met[i].first.is_same(given)) continue;
        key.push_back(kKind + 12 + static_cast<int64_t>(i));
        return met[i].second;
      }
      met.emplace_back(given, here);
      return here;
    }
    Block* pinned = op.whole ? pinned_block_of(given) : nullptr;
    if (pinned) {
      if (written) recorder().unknown(pinned->number);
      record_event(given, *pinned, Device::current());
      add_access(given, *pinned, written ? accesses.writes : accesses.reads);
      return alias(given, *pinned);
    }
    TORCH_CHECK(given.is_cpu() && !written && (given.dim() == 0 || op.indices || is_rate(given, place)),
                "Expected all tensors to be on the same device, but found at least two devices, cuda:", device().used_index(),
                " and ", given.device(), "! (", name_of(op.name), ")");
    if (number) return given;
    Executing quiet(c10::get_default_dtype_as_scalartype());
    return given.clone();  // as it is now: the host may change it after the launch
  }

  bool is_rate(const Tensor& given, size_t place) const {  // a fused optimizer takes lr.item() (FusedAdamKernel.cu)
    auto& arguments = handle.schema().arguments();
    return given.numel() == 1 && place < arguments.size() && arguments[place].name() == "lr";
  }

  void argument(const IValue& value, size_t place) {
    bool written = op.written[place] || (hides && op.hidden[place]);
    if (value.isTensor()) {
      inputs.emplace_back(tensor(value.toTensor(), written, place));
    } else if (value.isTensorList()) {
      c10::List<Tensor> made;
      auto given = value.toTensorList();
      key.push_back(static_cast<int64_t>(given.size()));
      made.reserve(given.size());
      for (const Tensor& one : given) made.push_back(tensor(one, written));
      inputs.emplace_back(std::move(made));
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<Tensor>> made;
      for (const std::optional<Tensor>& one : value.toOptionalTensorList()) {
        key.push_back(one.has_value());
        masked |= one && one->defined() && (one->scalar_type() == at::kBool || one->scalar_type() == at::kByte);
        made.push_back(one ? std::optional<Tensor>(tensor(*one, written)) : std::nullopt);
      }
      inputs.emplace_back(std::move(made));
    } else if (value.isDevice()) {
      c10::Device named = value.toDevice();
      if (named.is_cuda()) device().bind(named.index() < 0 ? device().chosen() : named.index());
      inputs.emplace_back(named.is_cuda() ? c10::Device(c10::kCPU) : named);
    } else {
      if (value.isBool() && switched < 62) switches |= static_cast<int64_t>(value.toBool()) << switched++;
      plain(value);
      inputs.push_back(value);
    }
  }

  // A kind precedes each value, to distinguish -5 from a half, 1 from True, and dimension -4 from "none".
  void plain(const IValue& value) {
    auto many = [this](int64_t kind, const auto& list) {
      key.push_back(kind);
      key.push_back(static_cast<int64_t>(list.size()));
      for (int64_t one : list) key.push_back(one);
    };
    if (value.isInt()) key.insert(key.end(), {kKind, value.toInt()});
    else if (value.isBool()) key.push_back(kKind + (value.toBool() ? 1 : 2));
    else if (value.isNone()) key.push_back(kKind + 3);
    else if (value.isDouble() && op.sized_by_floats) key.insert(key.end(), {kKind + 4, c10::bit_cast<int64_t>(value.toDouble())});
    else if (value.isDouble()) key.push_back(kKind + 5);
    else if (value.isComplexDouble()) key.push_back(kKind + 6);
    else if (value.isString()) key.insert(key.end(), {kKind + 7, static_cast<int64_t>(std::hash<std::string>{}(value.toStringRef()))});
    else if (value.isIntList()) many(kKind + 8, value.toIntVector());
    else if (value.isBoolList()) many(kKind + 9, value.toBoolList().vec());
    else if (value.isList()) key.insert(key.end(), {kKind + 10, static_cast<int64_t>(value.toListRef().size())});
    else key.push_back(kKind + 11);
  }
};

void call_boxed(const c10::OperatorHandle& handle, const Operator& op, Stack& stack, bool wide) {
  if (wide) return call_wider(handle, op, stack);
#if !STREAMRACE_TORCH_SINCE(12)
  Stack held;  // torch drops its arguments before it takes a second "out=" of them as its result
  if (!op.outs.empty()) held = stack;
#endif
  handle.callBoxed(stack);
#if !STREAMRACE_TORCH_SINCE(6)
  // Some kernels leave a 16-bit "out=" as it was and return another tensor (mean).
  for (size_t i = 0; i < op.returns.size() && !op.outs.empty(); ++i) {
    if (op.returns[i] < 0 || !stack[i].isTensor()) continue;
    Tensor out = held[op.returns[i]].toTensor(), result = stack[i].toTensor();
    if (!out.is_same(result)) stack[i] = out.copy_(result);
  }
#endif
}

// Runs the CPU's kernel. `numbers`: the generator of its random numbers, if any. `wide`: in a wider type.
void execute(const c10::OperatorHandle& handle, const Operator& op, Stack& stack, at::ScalarType dtype, const at::Generator& numbers, bool wide) {
  Executing quiet(dtype);
  if (!numbers.defined()) return call_boxed(handle, op, stack, wide);
  if (op.generator >= 0) {
    stack[op.generator] = numbers;
    return call_boxed(handle, op, stack, wide);
  }
  auto theirs = at::detail::getDefaultCPUGenerator();  // the kernel draws from the CPU's own generator
  auto before = theirs.get_state();
  theirs.set_state(numbers.get_state());
  call_boxed(handle, op, stack, wide);
  at::Generator(numbers).set_state(theirs.get_state());
  theirs.set_state(before);
}

// The same, but in a wider type if the CPU's kernel lacks the type and CUDA's has it. Returns whether it was.
bool execute_either(const c10::OperatorHandle& handle, const Operator& op, Stack& stack, at::ScalarType dtype, const at::Generator& numbers, bool wide) {
  if (wide || !may_be_wider(handle, op, stack)) {
    execute(handle, op, stack, dtype, numbers, wide);
    return wide;
  }
  Stack again = stack;
  try {
    execute(handle, op, stack, dtype, numbers, false);
    return false;
  } catch (const c10::Error&) {
    stack = std::move(again);
  }
  execute(handle, op, stack, dtype, numbers, true);
  return true;
}

// Returns the CPU's generator for a call that draws as many numbers as its largest tensor has; none for other calls.
// Random numbers are drawn at the time of issue, as with CUDA's Philox offset.
at::Generator numbers_of(const Operator& op, const Stack& stack, int64_t count) {
  if (!op.random) return {};
  at::Generator given = op.generator >= 0 && stack[op.generator].isGenerator() ? stack[op.generator].toGenerator() : default_generator(device().used_index());
  TORCH_CHECK(given.device().is_cuda(), "Expected a 'cuda' device type for generator but found '", given.device().type(), "'");
  return static_cast<Generator*>(given.unsafeGetGeneratorImpl())->draw(count);
}

void each_tensor(const Stack& stack, const std::function<void(const Tensor&)>& see) {
  for (auto& value : stack) {
    if (value.isTensor()) see(value.toTensor());
    else if (value.isTensorList())
      for (const Tensor& one : value.toTensorList()) see(one);
  }
}

constexpr double kAsItIs = std::numeric_limits<double>::quiet_NaN();

using Stood = std::unordered_map<const c10::TensorImpl*, Tensor>;

IValue stand_in(const IValue& value, double filling, Stood& known) {
  auto one = [&](const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    auto& there = known[tensor.unsafeGetTensorImpl()];
    if (there.defined()) return there;
    auto made = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options());
    if (tensor.is_conj()) made.unsafeGetTensorImpl()->_set_conj(true);
    if (tensor.is_neg()) made.unsafeGetTensorImpl()->_set_neg(true);
    if (std::isnan(filling)) made = tensor.is_non_overlapping_and_dense() ? made.copy_(tensor) : tensor.clone();
    else made.fill_(tensor.scalar_type() == at::kBool ? 1.0 : filling);
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
    return there = made;
  };
  if (value.isTensor()) return one(value.toTensor());
  if (value.isTensorList()) {
    c10::List<Tensor> made;
    for (const Tensor& tensor : value.toTensorList()) made.push_back(one(tensor));
    return made;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<Tensor>> made;
    for (const std::optional<Tensor>& tensor : value.toOptionalTensorList())
      made.push_back(tensor ? std::optional<Tensor>(one(*tensor)) : std::nullopt);
    return made;
  }
  return value;
}

// Runs the kernel on zeros, which are valid indices, or on ones, which are valid divisors; returns results and arguments.
// LAPACK counts rows from 1 without checks: with a zero it would write outside the matrix. Some kernels check values
// (segments whose lengths must have a sum): they get the values themselves, once the stream has reached them. A GPU's
// host would not wait, so this is no order in the trace. If the kernel lacks the type, and CUDA's has it, the call uses
// a wider type from here on.
std::pair<Stack, Stack> rehearse(Call& call, const at::Generator& numbers) {
  auto dtype = c10::get_default_dtype_as_scalartype();
  for (double filling : {0.0, 1.0, kAsItIs}) {
    if (call.op.pivots && filling == 0.0) continue;
    Stack stood;
    if (std::isnan(filling) && dry().on && !dry().known(call.accesses.reads)) dry().refuse(name_of(call.op.name));
    if (std::isnan(filling)) {
      TORCH_CHECK(!captures().of(Device::current()), "streamrace: ", name_of(call.op.name), " checks its values when it is issued, which a CUDA graph "
                  "does not have then: run it without a graph");
      device().meet(Device::current());
    }
    {
      Executing quiet(dtype);
      Stood known;
      for (auto& value : call.inputs) stood.push_back(stand_in(value, filling, known));
    }
    Stack stack = stood;
    auto before = numbers.defined() ? numbers.get_state() : Tensor();
    try {
      call.wide = execute_either(call.handle, call.op, stack, dtype, numbers, call.wide);
      return {std::move(stack), std::move(stood)};
    } catch (c10::Error& error) {
      if (numbers.defined()) at::Generator(numbers).set_state(before);
      if (!std::isnan(filling)) continue;
      if (std::string(error.what()).find("\" not implemented for '") != std::string::npos)
        error.add_context("streamrace: the simulated GPU computes by the CPU's kernels, and " + std::string(name_of(call.op.name)) + " has none for this type, though a GPU may have one: use another type there");
      throw;
    } catch (const std::exception&) {  // from libraries built for torch's stable interface
      if (numbers.defined()) at::Generator(numbers).set_state(before);
      if (std::isnan(filling)) throw;
    }
  }
  return {};
}

// The same in a dry run, where kernels run on small tensors only.
std::pair<Stack, Stack> rehearse_dry(Call& call, const at::Generator& numbers) {
  std::optional<std::pair<Stack, Stack>> said;
  bool small = dry().fits(call.nbytes);
  try {
    said = on_meta(call.handle, call.op, call.inputs);
  } catch (const c10::NotImplementedError&) {
  } catch (const std::exception& error) {  // a meta kernel in Python raises other exceptions than c10::Error
    // This is the message for a custom operator without a meta kernel; any other error is the program's.
    if (!small && std::string(error.what()).find("no fake impl registered") == std::string::npos) throw;
  }
  if (small && (!said || dry().fits(bytes_of(said->first)))) {
    auto real = rehearse(call, numbers);
    if (said) dry().compare(call.handle, call.op, said->first, real.first);
    return real;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(said, "streamrace: a dry run learns what an operator returns from its meta kernel, and ", call.handle.operator_name(),
                              " has none: give it one (torch.library.register_fake), or leave it out of a dry run");
  TORCH_CHECK_NOT_IMPLEMENTED(!dry().differs(call.handle), "streamrace: the meta kernel of ", call.handle.operator_name(), " says otherwise than the CPU's, so a dry run "
                              "does not know what it returns: leave it out of a dry run, or run the program on smaller tensors");
  return std::move(*said);
}

// Collects warnings of kernels. Those of a rehearsal are issued after it, the equal ones of the execution are not.
struct Warned final : c10::WarningHandler {
  std::vector<c10::Warning> all;
  c10::WarningUtils::WarningHandlerGuard guard{this};
  void process(const c10::Warning& one) override { all.push_back(one); }
};

std::vector<c10::Warning> rehearsed(Call& call, const at::Generator& numbers, std::pair<Stack, Stack>& made) {
  Warned warned;
  made = dry().on ? rehearse_dry(call, numbers) : rehearse(call, numbers);
  return std::move(warned.all);
}

Signature learn(Call& call) {
  Signature made;
  int64_t nbytes = call.nbytes;
  auto shapes = call.shapes;
  {  // also if nothing is fresh: unsuitable arguments raise an error at once
    auto numbers = call.op.random ? at::detail::createCPUGenerator() : at::Generator();
    std::pair<Stack, Stack> rehearsal;
    auto warnings = rehearsed(call, numbers, rehearsal);
    auto& [results, stood] = rehearsal;
    made.wide = call.wide;
    for (size_t i = 0; i < results.size(); ++i) {
      made.plain.push_back(call.op.returns[i] == Operator::kPlain ? results[i] : IValue());
      if (call.op.returns[i] != Operator::kFresh) continue;
      auto see = [&](const Tensor& tensor) {
        made.fresh.push_back(tensor.defined() ? std::optional<Spec>(spec_of(tensor, call.op)) : std::nullopt);
        if (!tensor.defined()) return;
        nbytes += tensor.numel() * static_cast<int64_t>(tensor.itemsize());
        shapes.push_back(static_cast<int64_t>(tensor.scalar_type()) << 8 | tensor.dim());
        shapes.insert(shapes.end(), tensor.sizes().begin(), tensor.sizes().end());
      };
      each_tensor({results[i]}, see);
    }
    for (size_t place = 0; place < stood.size(); ++place) {
      if (!call.op.written[place] || !stood[place].isTensor() || !stood[place].toTensor().defined()) continue;
      auto now = spec_of(stood[place].toTensor(), call.op);
      if (now.conjugate != call.inputs[place].toTensor().is_conj()) made.conjugated.emplace_back(place, now.conjugate);
      if (now.sizes == call.inputs[place].toTensor().sizes()) continue;
      bool out = std::find(call.op.outs.begin(), call.op.outs.end(), place) != call.op.outs.end();
      TORCH_CHECK(out, "streamrace: ", name_of(call.op.name), " would give its argument another shape: take its result instead");
      made.resized.emplace_back(place, now);
    }
    for (auto& warning : warnings)  // a program that lets "out=" be resized gets this warning each time
      if (made.resized.empty() || warning.msg().find("was resized since") == std::string::npos) c10::warn(warning);
  }
  auto& costs = device().costs;
  made.nominal = costs.kernel ? static_cast<int64_t>(costs.kernel(name_of(call.op.name), nbytes, shapes.data(), static_cast<int64_t>(shapes.size()), call.switches, &made.flops)) : 2000;
  return made;
}

void see(int64_t op, const IValue& value) {
  if (value.isTensor()) {
    Executing quiet(c10::get_default_dtype_as_scalartype());
    simgpu::see(op, value.toTensor());
  } else if (value.isTensorList()) {
    Executing quiet(c10::get_default_dtype_as_scalartype());
    for (const Tensor& one : value.toTensorList()) simgpu::see(op, one);
  } else if (value.isBool() || value.isInt() || value.isDouble()) {
    auto number = value.isDouble() ? c10::bit_cast<int64_t>(value.toDouble()) : value.isInt() ? value.toInt() : int64_t{value.toBool()};
    probes().read(op, &number, sizeof number, sizeof number);
    if (value.isDouble()) probes().number(op, value.toDouble());
    else probes().number(op, number);
  } else if (value.isComplexDouble()) {
    auto number = value.toComplexDouble();
    probes().read(op, &number, sizeof number, sizeof number);
  }
}

// Returns an operator's results that are new tensors, with their positions among the results. `outs`: including those
// passed to it as outputs.
Recorder::Fresh made_of(const Operator& op, const Stack& results, bool outs) {
  Recorder::Fresh made;
  for (size_t i = 0; i < results.size(); ++i) {
    bool out = outs && std::find(op.outs.begin(), op.outs.end(), op.returns[i]) != op.outs.end();
    int64_t place = results[i].isTensor() ? static_cast<int64_t>(i) : 0;  // a list is an operator's only result
    if (op.returns[i] != Operator::kFresh && !out) continue;
    each_tensor({results[i]}, [&](const Tensor& one) {
      if (one.defined()) made.emplace_back(place, one);
      ++place;
    });
  }
  return made;
}

// Puts a result into memory whose size was found before: as much of it as there is room for.
void put(const Tensor& here, const Tensor& result) {
  if (here.sizes() == result.sizes()) {
    here.copy_(result);
  } else if (here.dim() > 0 && here.dim() == result.dim()) {
    int64_t rows = std::min(here.size(0), result.size(0));
    here.narrow(0, 0, rows).copy_(result.narrow(0, 0, rows));
  }
}

// Handles a result that the host needs: it waits for the current stream, as a device-to-host read does. An operator that
// rereads was counted for until then, and its second kernel reads the inputs as they are when that kernel runs.
void read(Call& call, const Stack& given, Stack& results, int64_t site) {
  auto& costs = device().costs;
  int64_t stream = Device::current();
  auto nominal = costs.kernel ? static_cast<int64_t>(costs.kernel(name_of(call.op.name), call.nbytes, call.shapes.data(), static_cast<int64_t>(call.shapes.size()), call.switches, nullptr)) : 2000;
  device().launch(stream, call.op.name, call.accesses, nominal, nullptr, site);
  int64_t op = trace().ops;
  device().synchronize(stream, How::kRead, site);
  auto numbers = numbers_of(call.op, given, call.largest);
  if (dry().on && !dry().known(call.accesses.reads)) {
    static const int64_t one_value = name_id("aten::_local_scalar_dense");
    const char* name = name_of(call.op.name);
    if (call.op.name != one_value) dry().refuse(name);
    results = {dry().answer(name, given[0].toTensor().scalar_type())};
    return;
  }
  std::vector<int64_t> words;
  at::Generator then;
  if (recorder().on) {
    words = recorder().arguments(call.handle, given, call.inputs, call.op.outs);
    if (numbers.defined()) then = numbers.clone();
  }
  auto without_outs = [&op = call.op](Stack& inputs) {  // the kernel may need more memory than they have
    Executing quiet(c10::get_default_dtype_as_scalartype());
    for (int place : op.outs)
      if (inputs[place].isTensor()) inputs[place] = at::detail::empty_cpu({0}, inputs[place].toTensor().scalar_type());
  };
  bool again = call.op.rereads, late = again && !dry().on;  // late: the second kernel computes the result
  Stack inputs = late ? call.inputs : Stack();
  without_outs(call.inputs);
  Stack outs = call.inputs;
  results = std::move(call.inputs);
  bool wide = execute_either(call.handle, call.op, results, c10::get_default_dtype_as_scalartype(), numbers, false);
  for (auto& value : results) see(op, value);
  Accesses written;
  std::vector<Tensor> places;
  auto keep = [&](const Tensor& here, const Tensor& result) {
    Executing quiet(c10::get_default_dtype_as_scalartype());
    if (late) places.push_back(here);
    else here.copy_(result);
  };
  auto own = [&](const Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    Tensor made = allocate(spec_of(tensor, call.op), site);
    keep(place_of(made, true, written), tensor);
    return made;
  };
  for (int place : call.op.outs) {
    const Tensor& out = given[place].toTensor();
    Tensor result = outs[place].toTensor();
    if (out.sizes() != result.sizes()) reshape(out, result.sizes(), result.strides(), site);
    keep(place_of(out, true, written), result);
  }
  for (size_t i = 0; i < results.size(); ++i) {
    int source = call.op.returns[i];
    if (source >= 0) {
      results[i] = given[source];
    } else if (results[i].isTensor()) {
      results[i] = own(results[i].toTensor());
    } else if (results[i].isTensorList()) {
      c10::List<Tensor> made;
      for (const Tensor& one : results[i].toTensorList()) made.push_back(own(one));
      results[i] = made;
    }
  }
  if (recorder().on) recorder().call(op, words, late ? Recorder::Fresh() : made_of(call.op, results, true), then, true);
  if (!late) {
    if (written.writes.empty()) return;
    if (recorder().on) recorder().nothing(trace().ops + 1);
    if (again) written.reads = call.accesses.reads;
    device().launch(stream, call.op.name, written, again ? nominal : 0, nullptr, site);
    return dry().wrote(written.writes, true);
  }
  if (std::all_of(places.begin(), places.end(), [](const Tensor& here) { return here.numel() == 0; })) return;
  if (recorder().on) recorder().call(trace().ops + 1, std::move(words), made_of(call.op, results, true), {}, false);
  written.reads = call.accesses.reads;
  auto run = [&handle = describe_handle(call.handle), &op = call.op, inputs = std::move(inputs), places = std::move(places),
              without_outs, dtype = c10::get_default_dtype_as_scalartype(), wide]() mutable {
    without_outs(inputs);
    execute(handle, op, inputs, dtype, {}, wide);
    Executing quiet(dtype);
    size_t next = 0;
    for (auto& [_, result] : made_of(op, inputs, true)) put(places[next++], result);
  };
  device().launch(stream, call.op.name, written, nominal, device().guarded(call.op.name, std::move(run)), site);
}

Signature& signature_of(Call& call) {
  static auto* known = new std::unordered_map<std::vector<int64_t>, Signature, KeyHash>;
  call.key.push_back(reinterpret_cast<int64_t>(&call.op));
  call.key.push_back(static_cast<int64_t>(c10::get_default_dtype_as_scalartype()));
  auto place = known->find(call.key);
  if (place == known->end()) place = known->emplace(call.key, learn(call)).first;
  return place->second;
}

}  // namespace

// Returns the device on which an operator runs, by its tensors or, without one, by its argument; -1: it has none.
static int device_of(const Operator& op, const Stack& given) {
  int found = -1;
  auto see = [&](const Tensor& one) {
    if (!one.defined() || !one.is_cuda()) return;
    if (found < 0) found = one.device().index();
    TORCH_CHECK(found == one.device().index(), "Expected all tensors to be on the same device, but found at least two devices, cuda:", found,
                " and ", one.device(), "! (", name_of(op.name), ")");
  };
  each_tensor(given, see);
  for (auto& value : given)
    if (value.isOptionalTensorList())
      for (const std::optional<Tensor>& one : value.toOptionalTensorList())
        if (one) see(*one);
  for (auto& value : given)
    if (found < 0 && value.isDevice() && value.toDevice().is_cuda()) found = value.toDevice().index();
  return found;
}

static bool wants_gradient(const c10::OperatorHandle& handle, const Stack& stack) {
  bool any = false;
  Stack arguments(stack.end() - static_cast<int64_t>(handle.schema().arguments().size()), stack.end());
  each_tensor(arguments, [&](const Tensor& one) { any |= one.defined() && one.requires_grad(); });
  return any;
}

void fallback(const c10::OperatorHandle& handle, Stack* stack) {
  int64_t site = may_have_made_node() && wants_gradient(handle, *stack) ? call_site_of_node() : call_site();
  Lock lock;
  const Operator& op = describe(handle);
  size_t count = op.written.size();
  Stack given(std::make_move_iterator(stack->end() - static_cast<int64_t>(count)), std::make_move_iterator(stack->end()));
  stack->erase(stack->end() - static_cast<int64_t>(count), stack->end());
  TORCH_CHECK_NOT_IMPLEMENTED(op.known, "streamrace: the operator ", handle.operator_name(), " cannot be simulated: it has no kernel for the CPU: use an operator that both devices have");
  for (int source : op.returns)
    TORCH_CHECK(source != Operator::kView, "streamrace: the view ", handle.operator_name(), " is not known to the simulated GPU");

  OnDevice on(device().several() ? device_of(op, given) : -1);
  auto capture = [&] {
    Call call(handle, op);
    call.hides = !op.hidden.empty() && (op.hidden_when < 0 || given[op.hidden_when].toBool());
    call.inputs.reserve(count);
    for (size_t i = 0; i < count; ++i) call.argument(given[i], i);
    return call;
  };
  Call call = capture();
  if (op.asks) {
    execute(handle, op, call.inputs, c10::get_default_dtype_as_scalartype(), {}, false);
    for (auto& value : call.inputs) stack->push_back(std::move(value));
    return;
  }
  bool masked = op.masks && call.masked;  // CUDA calls nonzero for it, which blocks the host
  if (op.host || (masked && (op.returns[0] == Operator::kFresh || !op.outs.empty()))) {
    Stack results;
    read(call, given, results, site);
    for (auto& value : results) stack->push_back(std::move(value));
    return;
  }
  if (masked) device().synchronize(Device::current(), How::kRead, site);
  Signature* signature = &signature_of(call);
  if (!signature->resized.empty()) {
    for (auto& [place, spec] : signature->resized) {
      reshape(given[place].toTensor(), spec.sizes, spec.strides, site);
    }
    call.~Call();
    new (&call) Call(capture());
    signature = &signature_of(call);
    TORCH_CHECK(signature->resized.empty(), "streamrace: ", handle.operator_name(), " asks for another shape each time");
  }
  bool real = !dry().on || dry().computes(op, call.accesses);  // else nothing is computed
  int64_t nbytes = call.nbytes;
  size_t made = signature->fresh.size();
  std::vector<Tensor> fresh(made), places(made);
  for (size_t turn = 0; turn < made; ++turn) {
    size_t i = op.backwards ? made - 1 - turn : turn;
    auto& spec = signature->fresh[i];
    if (!spec) continue;
    fresh[i] = allocate(*spec, site);
    places[i] = place_of(fresh[i], true, call.accesses);
    nbytes += fresh[i].numel() * static_cast<int64_t>(fresh[i].itemsize());
    call.largest = std::max(call.largest, fresh[i].numel());
  }
  if (dry().on) real = real && dry().fits(nbytes);
  at::Generator then = numbers_of(op, given, call.largest);
  Stack results;
  for (size_t i = 0, next = 0; i < op.returns.size(); ++i) {
    int source = op.returns[i];
    if (source >= 0) {
      results.push_back(given[source]);
    } else if (source == Operator::kPlain) {
      results.push_back(signature->plain.at(i));
    } else if (handle.schema().returns()[i].type()->kind() == c10::TypeKind::ListType) {
      c10::List<Tensor> made;
      for (; next < fresh.size(); ++next) made.push_back(fresh[next]);  // a list is an operator's only result
      results.emplace_back(std::move(made));
    } else {
      results.emplace_back(std::move(fresh[next++]));
    }
  }
  if (recorder().on) recorder().call(trace().ops + 1, handle, given, call.inputs, made_of(op, results, false), then);
  auto run = [&handle = describe_handle(handle), &op, inputs = std::move(call.inputs), places = std::move(places),
              dtype = c10::get_default_dtype_as_scalartype(), then = std::move(then), wide = signature->wide]() mutable {
    Warned unsaid;
    execute(handle, op, inputs, dtype, then, wide);
    if (places.empty()) return;
    size_t next = 0;
    Executing quiet(dtype);
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (op.returns[i] != Operator::kFresh) continue;
      each_tensor({inputs[i]}, [&](const Tensor& result) {
        if (Tensor& here = places[next++]; here.defined()) here.copy_(result);
      });
    }
  };
  device().flops += signature->flops;
  if (dry().on) {
    device().launch(Device::current(), op.name, call.accesses, signature->nominal, nullptr, site);
    if (real) device().guarded(op.name, std::move(run))();
    dry().wrote(call.accesses.writes, real);
  } else {
    device().launch(Device::current(), op.name, call.accesses, signature->nominal, device().guarded(op.name, std::move(run)), site);
  }
  for (auto& [place, conjugate] : signature->conjugated) given[place].toTensor().unsafeGetTensorImpl()->_set_conj(conjugate);
  for (auto& value : results) stack->push_back(std::move(value));
}

const c10::OperatorHandle& describe_handle(const c10::OperatorHandle& handle) {
  static auto* kept = new std::unordered_map<const void*, c10::OperatorHandle>;
  return kept->try_emplace(&handle.schema(), handle).first->second;
}

namespace {

// CUDA has one driver. With "out=" the CPU's kernel may use outputs as a larger workspace: it gets none of ours.
void least_squares(const c10::OperatorHandle& handle, Stack* stack) {
  const auto& schema = handle.schema();
  auto first = stack->end() - static_cast<int64_t>(schema.arguments().size());
  auto& driver = *(first + schema.argumentIndexWithName("driver").value());
  TORCH_CHECK(driver.isNone() || driver.toStringRef() == "gels", "torch.linalg.lstsq: parameter `driver` should be one of (gels) on CUDA, and is ", driver.toStringRef());
  driver = std::string("gels");
  if (schema.overload_name().empty()) return fallback(handle, stack);
  Stack outs(stack->end() - 4, stack->end());
  stack->erase(stack->end() - 4, stack->end());
  c10::Dispatcher::singleton().findSchemaOrThrow("aten::linalg_lstsq", "").callBoxed(stack);
  Stack made(stack->end() - 4, stack->end());
  stack->erase(stack->end() - 4, stack->end());
  for (size_t i = 0; i < 4; ++i) {
    const Tensor out = outs[i].toTensor(), result = made[i].toTensor();
    if (Lock lock; out.sizes() != result.sizes()) reshape(out, result.sizes(), result.strides(), call_site());
    out.copy_(result);
    stack->push_back(outs[i]);
  }
}

// Refuses tensors of another layout, by the operator's name, before any part of it runs.
void refuse(const c10::OperatorHandle& handle, Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "streamrace: ", handle.operator_name(), kDense);
}

#define STREAMRACE_FALLBACK(key, function) \
  TORCH_LIBRARY_IMPL(_, key, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&function>()); }
STREAMRACE_FALLBACK(CUDA, fallback)
STREAMRACE_FALLBACK(SparseCUDA, refuse)
STREAMRACE_FALLBACK(SparseCsrCUDA, refuse)
STREAMRACE_FALLBACK(QuantizedCUDA, refuse)
STREAMRACE_FALLBACK(NestedTensorCUDA, refuse)

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  // Operators with a composite in addition to the CPU's kernel, which would precede the fallback, and composites that
  // choose a kernel by the device's name: the CPU's kernel is used, so the bits are the CPU's.
  for (const char* name : {"convolution", "convolution_backward", "native_layer_norm", "native_group_norm", "silu_backward",
                           "mish_backward", "addr", "addr_", "addr.out", "any.dims", "any.dims_out", "all.dims", "all.dims_out",
                           "native_channel_shuffle", "linalg__powsum", "conj_physical_", "mode.values", "mse_loss",
                           "smooth_l1_loss"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fallback>());
  m.impl("linalg_lstsq", torch::CppFunction::makeFromBoxedFunction<&least_squares>());
  m.impl("linalg_lstsq.out", torch::CppFunction::makeFromBoxedFunction<&least_squares>());
  auto no = [](const Tensor&, const Tensor&, at::IntArrayRef, at::IntArrayRef, int64_t) { return false; };
  auto no_either = [](const Tensor&, const Tensor&, const Tensor&, const Tensor&, int64_t) { return false; };
  m.impl("_use_cudnn_ctc_loss", no);  // on CUDA the composite asks this, and then takes the other kernel
  m.impl("_use_cudnn_ctc_loss.Tensor", no_either);
  m.impl("_use_miopen_ctc_loss", no);
  m.impl("_use_miopen_ctc_loss.Tensor", no_either);
}

}  // namespace
}  // namespace simgpu
