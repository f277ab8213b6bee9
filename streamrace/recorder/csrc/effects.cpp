#include "effects.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <set>
#include <unordered_map>

#include "operator_names.h"
#include "trace.h"

namespace simgpu {
namespace {

struct Hidden {
  std::set<std::string> arguments;
  std::string when;
};
std::unordered_map<std::string, Hidden>& hidden() {
  static auto* all = new std::unordered_map<std::string, Hidden>;
  return *all;
}

// c10d's operators, by the name of the collective; what is not here exchanges nothing.
const std::unordered_map<std::string, std::string>& collectives() {
  static auto* all = new std::unordered_map<std::string, std::string>{
      {"allreduce_", "all_reduce"}, {"allreduce_coalesced_", "all_reduce"}, {"broadcast_", "broadcast"}, {"reduce_", "reduce"},
      {"allgather_", "all_gather"}, {"_allgather_base_", "all_gather"}, {"allgather_coalesced_", "all_gather"},
      {"allgather_into_tensor_coalesced_", "all_gather"}, {"reduce_scatter_", "reduce_scatter"},
      {"_reduce_scatter_base_", "reduce_scatter"}, {"reduce_scatter_tensor_coalesced_", "reduce_scatter"},
      {"gather_", "gather"}, {"scatter_", "scatter"}, {"alltoall_", "all_to_all"}, {"alltoall_base_", "all_to_all"},
      {"send", "send"}, {"recv_", "recv"}, {"barrier", "barrier"}};
  return *all;
}

bool begins(const std::string& text, const char* with) { return text.rfind(with, 0) == 0; }

// Operators without a kernel of their own on the GPU whose parts are operators, too.
bool composite(const c10::OperatorHandle& handle) {
  return handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

Effects read(const c10::FunctionSchema& schema, bool& counts) {
  Effects one;
  const auto& full = schema.name();
  auto at = full.find("::");
  std::string space = full.substr(0, at), base = full.substr(at + 2);
  one.name = name_id(full);
  bool any_written = false, any_tensor = false, any_result = false;
  auto told = hidden().find(full);
  for (const auto& argument : schema.arguments()) {
    const auto* info = argument.alias_info();
    one.names.push_back(argument.name());
    one.written.push_back(info && info->isWrite());
    any_written |= one.written.back();
    any_tensor |= argument.type()->str().find("Tensor") != std::string::npos;
    if (told == hidden().end()) continue;
    one.hidden.push_back(told->second.arguments.count(argument.name()) > 0);
    if (argument.name() == told->second.when) one.hidden_when = static_cast<int>(one.names.size()) - 1;
  }
  bool all_views = !schema.returns().empty();
  for (const auto& result : schema.returns()) {
    const auto* info = result.alias_info();
    bool tensor = result.type()->str().find("Tensor") != std::string::npos;
    any_result |= tensor;
    one.fresh.push_back(tensor && !info);
    one.outs.push_back(tensor && info && info->isWrite());
    all_views &= info && !info->isWrite();
  }
  one.view = all_views && !any_written;
  one.records_stream = full == "aten::record_stream";
  one.copies = full == "aten::copy_";
  one.allocates = begins(base, "empty") || begins(base, "new_empty") || base == "_empty_affine_quantized";
  one.rereads = rereads(full);
  counts = any_tensor || any_result;
  if (space == "c10d") {
    auto known = collectives().find(base);
    counts = known != collectives().end();
    if (counts) one.collective = known->second, one.name = name_id("nccl::" + known->second);
    return one;
  }
  if (space == "_c10d_functional" || space == "c10d_functional" || space == "simgpu" || space == "streamrace" || space == "profiler") counts = false;
  if (asks_only(full) || base == "set_" || base == "resize_" || begins(base, "sym_")) counts = false;
  auto handle = c10::Dispatcher::singleton().findSchema({full, schema.overload_name()});
  if (!handle || one.records_stream) return one;
  bool host = false;
  for (auto tag : handle->getTags()) host |= tag == at::Tag::data_dependent_output || tag == at::Tag::dynamic_output_shape;
  if (!any_result && !any_written && !host) counts = false;  // it asks for a property of its arguments
  if (composite(*handle) && !one.view) counts = false;
  one.ours = space == "aten" && handle->hasKernelForDispatchKey(c10::DispatchKey::CUDA);
  return one;
}

}  // namespace

void hides_too(const std::string& name, const std::vector<std::string>& arguments, const std::string& when) {
  hidden()[name] = {{arguments.begin(), arguments.end()}, when};
}

// Known by the address of the schema's name, which lives as long as the operator: a copy of the schema takes longer than all
// the rest of the recording.
const Effects* effects_of(const at::RecordFunction& call) {
  static auto* known = new std::unordered_map<const char*, std::unique_ptr<Effects>>;
  static auto* mutex = new std::mutex;
  const char* name = call.name();
  std::lock_guard guard(*mutex);
  auto found = known->find(name);
  if (found != known->end()) return found->second.get();
  auto schema = call.operator_schema();
  if (!schema) return nullptr;
  bool counts = true;
  auto made = std::make_unique<Effects>(read(*schema, counts));
  return known->emplace(name, counts ? std::move(made) : nullptr).first->second.get();
}

}  // namespace simgpu
