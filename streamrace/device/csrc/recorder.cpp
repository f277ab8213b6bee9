#include "recorder.h"

#include <c10/util/bit_cast.h>

#include <cstring>

#include "fallback.h"

namespace simgpu {

Recorder& recorder() {
  static auto* one = new Recorder;
  return *one;
}

// The kind of a value, its first word. Read by streamrace/device/recording.py.
enum Word : int64_t {
  kNone, kInt, kFloat, kBool, kComplex, kText, kView, kList, kOnDevice, kNumbers, kScratch
};

// Names of calls other than operators, see streamrace.trace.records.Call.
constexpr const char *kLook = "look", *kNothing = "nothing", *kWrote = "wrote";

void Recorder::begin(bool wanted) {
  *this = Recorder();
  on = wanted;
  before_ = blocks_made();
}

int64_t Recorder::keep(std::string bytes) {
  bytes_[++kept_] = std::move(bytes);
  return kept_;
}

void Recorder::refuse(const std::string& why) {
  if (on && refused_.insert(why).second) trace().note(WordKind::kUnrepeatable, {name_id(why)});
}

void Recorder::view(std::vector<int64_t>& words, int64_t block, const at::Tensor& tensor, int64_t offset) {
  words.insert(words.end(), {kView, block, static_cast<int64_t>(tensor.scalar_type()), tensor.is_conj(), tensor.is_neg(), offset, tensor.dim()});
  words.insert(words.end(), tensor.sizes().begin(), tensor.sizes().end());
  words.insert(words.end(), tensor.strides().begin(), tensor.strides().end());
}

void Recorder::tensor(std::vector<int64_t>& words, const at::Tensor& given, const at::Tensor& taken) {
  if (!given.defined()) return words.push_back(kNone);
  bool number = given.unsafeGetTensorImpl()->is_wrapped_number();
  if (given.is_cpu() && number) {  // a number of the program, which has less influence on the result's type
    Executing quiet(c10::get_default_dtype_as_scalartype());
    auto item = given.item();
    auto plain = item.isFloatingPoint() ? c10::IValue(item.toDouble()) : item.isComplex() ? c10::IValue(item.toComplexDouble())
               : item.isBoolean() ? c10::IValue(item.toBool()) : c10::IValue(item.toLong());
    return value(words, plain, plain);
  }
  if (number) refuse("a number that was moved to the device is an argument of an operator, and cannot be recorded");
  if (given.is_cuda()) {
    Block* block = block_of(given.storage().unsafeGetStorageImpl());
    return block ? part(words, {given, block}) : view(words, -1, given, 0);  // without elements
  }
  if (Block* block = pinned_block_of(taken)) return part(words, {taken, block});
  if (pinned_block_of(given)) refuse("an operator takes a number from pinned memory when it is issued, and the recording cannot tell who wrote it");
  part(words, {taken, nullptr});
}

void Recorder::part(std::vector<int64_t>& words, Part part) {
  auto& tensor = part.tensor;
  if (part.block) {
    if (part.block->number <= before_) refuse("it uses memory of the device that was there before the recording began");
    return view(words, part.block->number, tensor, tensor.storage_offset());
  }
  // Memory that comes from the host has numbers below those of the device's blocks.
  auto bytes = keep({static_cast<const char*>(tensor.storage().data()), tensor.storage().nbytes()});
  trace().note(WordKind::kInitial, {-1 - bytes, bytes});
  view(words, -1 - bytes, tensor, tensor.storage_offset());
}

void Recorder::value(std::vector<int64_t>& words, const c10::IValue& given, const c10::IValue& taken) {
  if (given.isTensor()) return tensor(words, given.toTensor(), taken.toTensor());
  if (given.isNone()) return words.push_back(kNone);
  if (given.isInt()) words.insert(words.end(), {kInt, given.toInt()});
  else if (given.isDouble()) words.insert(words.end(), {kFloat, c10::bit_cast<int64_t>(given.toDouble())});
  else if (given.isBool()) words.insert(words.end(), {kBool, given.toBool()});
  else if (given.isString()) words.insert(words.end(), {kText, name_id(given.toStringRef())});
  else if (given.isDevice()) words.push_back(kOnDevice);
  else if (given.isGenerator()) words.push_back(kNumbers);
  else if (given.isComplexDouble()) {
    auto number = given.toComplexDouble();
    words.insert(words.end(), {kComplex, c10::bit_cast<int64_t>(number.real()), c10::bit_cast<int64_t>(number.imag())});
  } else if (given.isList()) {
    auto list = given.toListRef(), here = taken.toListRef();
    words.insert(words.end(), {kList, static_cast<int64_t>(list.size())});
    for (size_t i = 0; i < list.size(); ++i) value(words, list[i], here[i]);
  } else {
    words.push_back(kNone);
    refuse("an argument of type " + given.tagKind() + " cannot be recorded");
  }
}

std::vector<int64_t> Recorder::arguments(const c10::OperatorHandle& handle, const torch::jit::Stack& given,
                                         const torch::jit::Stack& taken, const std::vector<int>& outs) {
  auto& name = handle.operator_name();
  int64_t id = name_id(name.name + "." + (name.overload_name.empty() ? "default" : name.overload_name));
  std::vector<int64_t> words{id, static_cast<int64_t>(c10::get_default_dtype_as_scalartype()), static_cast<int64_t>(given.size())};
  for (size_t i = 0; i < given.size(); ++i) {
    bool out = std::find(outs.begin(), outs.end(), static_cast<int>(i)) != outs.end() && given[i].isTensor();
    if (out) words.insert(words.end(), {kScratch, static_cast<int64_t>(given[i].toTensor().scalar_type())});
    else value(words, given[i], taken[i]);
  }
  return words;
}

void Recorder::call(int64_t op, std::vector<int64_t> words, const Fresh& fresh, const at::Generator& numbers, bool host) {
  words.push_back(static_cast<int64_t>(fresh.size()));
  for (auto& [place, made] : fresh) {
    words.push_back(place);
    tensor(words, made, made);
  }
  int64_t state = 0;
  if (numbers.defined()) {
    Executing quiet(c10::get_default_dtype_as_scalartype());
    auto bytes = numbers.get_state();
    state = keep({static_cast<const char*>(bytes.data_ptr()), bytes.nbytes()});
  }
  write(op, std::move(words), state, host);
}

void Recorder::call(int64_t op, const c10::OperatorHandle& handle, const torch::jit::Stack& given,
                    const torch::jit::Stack& taken, const Fresh& fresh, const at::Generator& numbers) {
  call(op, arguments(handle, given, taken, {}), fresh, numbers, false);
}

void Recorder::write(int64_t op, std::vector<int64_t> words, int64_t numbers, bool host) {
  if (static_cast<int64_t>(known_.size()) == kMost) known_.clear();
  auto [place, fresh] = known_.try_emplace(std::move(words), calls_);
  if (fresh) {
    ++calls_;
    trace().note(WordKind::kDefine, place->second, place->first);
  }
  trace().note(WordKind::kCall, {op, place->second, numbers, host});
}

void Recorder::copy(int64_t op, Part to, Part from) {
  static const int64_t name = name_id("aten::copy_.default");
  std::vector<int64_t> words{name, static_cast<int64_t>(c10::get_default_dtype_as_scalartype()), 3};
  part(words, to);
  part(words, from);
  words.insert(words.end(), {kBool, 0, 0});
  write(op, std::move(words), 0, false);
}

void Recorder::look(int64_t op, Part from, const at::Tensor& like) {
  static const int64_t name = name_id(kLook);
  std::vector<int64_t> words{name, static_cast<int64_t>(c10::get_default_dtype_as_scalartype()), 3};
  part(words, from);
  words.insert(words.end(), {kScratch, static_cast<int64_t>(like.scalar_type()), kList, like.dim()});
  for (int64_t size : like.sizes()) words.insert(words.end(), {kInt, size});
  words.push_back(0);
  write(op, std::move(words), 0, false);
}

void Recorder::pinned(const Block& block) {
  if (on) held_[block.number] = std::string(block.data, block.nbytes);
}

static const char* const kGiven = "pinned memory was given away by numpy() while the device had work on it, and what the program does through it is not seen";

void Recorder::used(const Block& block, int64_t stream) {
  if (!on) return;
  auto& given = given_[block.number];
  given.streams.insert(stream);
  if (given.arrays > 0) refuse(kGiven);
}

void Recorder::given(const Block& block) {
  if (!on) return;
  auto& given = given_[block.number];
  ++given.arrays;
  for (int64_t stream : given.streams) {
    auto& tail = timeline().stream(stream);
    if (!tail.settle() || tail.known > timeline().now) refuse(kGiven);
  }
}

void Recorder::released(const Block& block) {
  auto given = given_.find(block.number);
  if (given != given_.end() && given->second.arrays > 0) --given->second.arrays;
}

void Recorder::known(const std::vector<Access>& accesses, const char* data) {
  for (auto& access : accesses) {
    auto held = held_.find(access.block);
    if (held == held_.end()) continue;
    each_run(access, [&](int64_t lo, int64_t hi) { std::memcpy(held->second.data() + lo, data + lo, static_cast<size_t>(hi - lo)); });
  }
}

void Recorder::read(const std::vector<Access>& accesses, const char* data) {
  for (auto& access : accesses) {
    auto held = held_.find(access.block);
    if (held == held_.end()) continue;
    bool same = true;
    each_run(access, [&](int64_t lo, int64_t hi) { same &= std::memcmp(held->second.data() + lo, data + lo, static_cast<size_t>(hi - lo)) == 0; });
    if (!same) refuse("pinned memory was written past torch's operators before it was copied to the device, which a recording does not see");
  }
}

void Recorder::nothing(int64_t op) {
  static const int64_t name = name_id(kNothing);
  write(op, {name, static_cast<int64_t>(at::kFloat), 0, 0}, 0, false);
}

void Recorder::wrote(int64_t op, const std::string& bytes) {
  static const int64_t name = name_id(kWrote);
  write(op, {name, static_cast<int64_t>(at::kFloat), 0, 0}, keep(bytes), true);
}

}  // namespace simgpu
