#include "operators.h"

#include <ATen/core/enum_tag.h>

#include <torch/library.h>

#include <set>
#include <unordered_map>

#include "fallback.h"
#include "operator_names.h"
#include "trace.h"
#include "wider.h"

namespace simgpu {

// Operators of other libraries whose result's size depends on values, for which their CUDA kernels wait, without a tag.
const std::set<std::string> kSizedByValues = {"torchvision::nms"};

// Operators that return a number: only for some of them the tags tell whether the host waits.
static const std::set<std::string> kIndexed = {
    "aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_", "aten::_unsafe_index",
    "aten::_unsafe_index_put",
};

static bool holds_tensors(const c10::TypePtr& type) { return type->str().find("Tensor") != std::string::npos; }

static std::unordered_map<std::string, std::pair<std::set<std::string>, std::string>>& hidden() {
  static auto* all = new std::unordered_map<std::string, std::pair<std::set<std::string>, std::string>>;
  return *all;
}

void hides(const std::string& name, const std::vector<std::string>& arguments, const std::string& when) {
  hidden()[name] = {{arguments.begin(), arguments.end()}, when};
}

bool hides(const std::string& name, const std::string& argument) {
  auto told = hidden().find(name);
  return told != hidden().end() && told->second.first.count(argument) > 0;
}

static std::set<std::string>& whole() {
  static auto* all = new std::set<std::string>;
  return *all;
}

void take_whole(const std::string& name) {
  auto at = name.find("::");
  static auto* libraries = new std::vector<std::unique_ptr<torch::Library>>;
  libraries->push_back(std::make_unique<torch::Library>(torch::Library::IMPL, name.substr(0, at), c10::DispatchKey::CUDA, __FILE__, __LINE__));
  libraries->back()->impl(name.substr(at + 2).c_str(), torch::CppFunction::makeFromBoxedFunction<&fallback>());
  whole().insert(name);
}

static Operator read(const c10::OperatorHandle& handle) {
  const auto& schema = handle.schema();
  Operator one;
  one.name = name_id(schema.name());
  std::unordered_map<std::string, int> aliases;
  bool any_written = false, any_result = false, any_tensor = false;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto& argument = schema.arguments()[i];
    const auto* info = argument.alias_info();
    bool written = info && info->isWrite();
    one.written.push_back(written);
    any_written |= written;
    one.pivots |= argument.name().find("pivots") != std::string::npos;
    any_tensor |= holds_tensors(argument.type());
    if (written && argument.kwarg_only()) one.outs.push_back(static_cast<int>(i));
    if (info)
      for (auto& symbol : info->beforeSets()) aliases[symbol.toQualString()] = static_cast<int>(i);
    if (argument.type()->str().find("Generator") != std::string::npos) one.generator = static_cast<int>(i);
  }
  for (const auto& result : schema.returns()) {
    int source = holds_tensors(result.type()) ? Operator::kFresh : Operator::kPlain;
    if (const auto* info = result.alias_info())
      for (auto& symbol : info->beforeSets()) {
        auto found = aliases.find(symbol.toQualString());
        if (found != aliases.end()) source = one.written[found->second] ? found->second : Operator::kView;
      }
    any_result |= source != Operator::kPlain;
    one.returns.push_back(source);
  }
  for (auto tag : handle.getTags()) {
    one.random |= tag == at::Tag::nondeterministic_seeded;
    one.host |= tag == at::Tag::data_dependent_output || tag == at::Tag::dynamic_output_shape;
  }
  one.known = handle.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU);
  const auto& name = schema.name();
  one.asks = asks_only(name);
  one.indices = one.masks = kIndexed.count(name) > 0;
  one.rereads = rereads(name);
  one.backwards = allocates_backwards(name);
  one.whole = whole().count(name) > 0;
  one.updates = any_written && name.starts_with("aten::_foreach_") && name != "aten::_foreach_zero_" && name != "aten::_foreach_copy_";
  one.wider = types_wider(name);
  one.host |= kSizedByValues.count(name) > 0;
  one.host |= !any_result && !any_written && any_tensor && !schema.returns().empty() && !one.asks;
  if (one.indices) one.host = false;
  one.sized_by_floats = name == "aten::arange" || name == "aten::range" || name == "aten::linspace";
  auto told = hidden().find(name);
  if (told != hidden().end()) {
    for (size_t i = 0; i < schema.arguments().size(); ++i) {
      const auto& argument = schema.arguments()[i].name();
      one.hidden.push_back(told->second.first.count(argument) > 0);
      if (argument == told->second.second) one.hidden_when = static_cast<int>(i);
    }
  }
  return one;
}

const Operator& describe(const c10::OperatorHandle& handle) {
  static auto* known = new std::unordered_map<const void*, Operator>;
  auto place = known->find(&handle.schema());
  if (place == known->end()) place = known->emplace(&handle.schema(), read(handle)).first;
  return place->second;
}

}  // namespace simgpu
