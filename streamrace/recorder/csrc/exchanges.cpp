// Collectives: c10d's operators, as ProcessGroupNCCL gets them. The stream of one is that which is made to wait for the
// current stream meanwhile; without such a wait it is the current one.
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "tracker.h"

namespace simgpu {

using c10::IValue;

namespace {

void add_all(const IValue& value, std::vector<Access>& accesses) {
  if (value.isTensor()) {
    tracker().touch(value.toTensor(), accesses);
  } else if (value.isList()) {
    for (const IValue& item : value.toListRef()) add_all(item, accesses);
  }
}

const IValue* named(const Running& call, c10::ArrayRef<IValue> inputs, const char* name) {
  for (size_t i = 0; i < inputs.size() && i < call.effects->names.size(); ++i)
    if (call.effects->names[i] == name) return &inputs[i];
  return nullptr;
}

const IValue* group_of(c10::ArrayRef<IValue> inputs) {
  for (auto& value : inputs)
    if (value.isObject()) return &value;
  return nullptr;
}

int64_t number(const IValue* value, int64_t otherwise) { return value && value->isInt() ? value->toInt() : otherwise; }

bool on_gpu(const IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() && value.toTensor().is_cuda();
  if (!value.isList()) return false;
  for (const IValue& item : value.toListRef())
    if (on_gpu(item)) return true;
  return false;
}

}  // namespace

// To be called before the tracker's lock is taken: Python knows the group's ranks. Returns whether NCCL carries it.
bool collective_group(Running& call, c10::ArrayRef<IValue> inputs) {
  const IValue* object = group_of(inputs);
  if (!object || inputs.empty() || !on_gpu(inputs[0])) return false;
  auto group = object->toCustomClass<c10d::ProcessGroup>();
  const auto& kind = call.effects->collective;
  int64_t own = group->getRank(), other = number(named(call, inputs, kind == "send" ? "dst" : "src"), -1);
  bool pair = kind == "send" || kind == "recv";
  call.root = pair ? (kind == "send" ? own : other) : number(named(call, inputs, "root_rank"), -1);
  int state = PyGILState_Ensure();
  call.group = tracker().group_number(group->getGroupName().c_str(), pair ? call.root : -1, pair ? (kind == "send" ? other : own) : -1);
  call.at_root = call.root == own;
  if (call.root >= 0) call.root = tracker().global_rank(group->getGroupName().c_str(), call.root);
  PyGILState_Release(state);
  return true;
}

void collective_accesses(Running& call, c10::ArrayRef<IValue> inputs) {
  const auto& kind = call.effects->collective;
  auto &reads = call.accesses.reads, &writes = call.accesses.writes;
  call.on_gpu = true;
  if (kind == "barrier") return;
  if (kind == "send") return add_all(inputs[0], reads);
  if (kind == "recv") return add_all(inputs[0], writes);
  if (kind == "broadcast") return add_all(inputs[0], call.at_root ? reads : writes);
  if (kind == "all_reduce" || kind == "reduce") {
    add_all(inputs[0], reads);
    if (kind == "all_reduce" || call.at_root) add_all(inputs[0], writes);
    return;
  }
  add_all(inputs[0], writes);
  if (inputs.size() > 1) add_all(inputs[1], reads);
}

}  // namespace simgpu
