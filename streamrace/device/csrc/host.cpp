// The host's own accesses to pinned memory.
#include <ATen/record_function.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>

#include "callsite.h"
#include "dry.h"
#include "fallback.h"
#include "operators.h"
#include "recorder.h"
#include "unwritten.h"

namespace simgpu {
namespace {

using at::Tensor;

// Operators that read only metadata of a tensor; _to_copy leaves the reading to a copy_, which may be the device's.
bool asks(const std::string& name) {
  auto ends = [&](const char* with) { return name.size() >= strlen(with) && name.compare(name.size() - strlen(with), strlen(with), with) == 0; };
  return name == "aten::is_pinned" || name == "aten::_to_copy" || name == "aten::is_same_size" || name == "aten::is_set_to" || ends("_like") ||
      name.rfind("aten::new_", 0) == 0 || name.rfind("aten::sym_", 0) == 0;
}

// The memory that a host operator writes, for the recorder: its values are known after the operator.
struct Writing final : at::ObserverContext {
  int64_t op = 0;
  std::vector<std::pair<Access, const char*>> places;
};

// Accesses of the host's kernels to pinned memory, on the host's own clock. They are seen where the dispatcher is
// entered; this callback is installed when memory is pinned for the first time.
std::unique_ptr<at::ObserverContext> on_operator(const at::RecordFunction& function) {
  if (executing || !PyGILState_GetThisThreadState()) return nullptr;  // a thread of gloo, for which the device waits
  auto schema = function.operator_schema();
  if (!schema || asks(schema->name()) || schema->name() == "simgpu::host_looks") return nullptr;
  auto inputs = function.inputs();
  auto look = [&](const std::function<void(const Tensor&, bool)>& see) {
    for (size_t i = 0; i < inputs.size() && i < schema->arguments().size(); ++i) {
      const auto& argument = schema->arguments()[i];
      bool written = (argument.alias_info() && argument.alias_info()->isWrite()) || hides(schema->name(), argument.name());
      if (inputs[i].isTensor()) see(inputs[i].toTensor(), written);
      else if (inputs[i].isTensorList())
        for (const Tensor& one : inputs[i].toTensorList()) see(one, written);
    }
  };
  bool any = false, device_too = false, only_looks = true;
  look([&](const Tensor& one, bool) {
    if (!one.defined()) return;
    device_too |= one.is_cuda();
    any |= one.is_cpu() && one.has_storage();
  });
  if (!any || device_too) return nullptr;
  for (auto& result : schema->returns()) only_looks &= result.alias_info() && !result.alias_info()->isWrite();
  if (only_looks && !schema->returns().empty()) return nullptr;  // a view
  Lock lock;
  Accesses accesses;
  std::vector<const char*> written_at;
  look([&](const Tensor& one, bool written) {
    Block* block = one.defined() ? pinned_block_of(one) : nullptr;
    if (!block) return;
    add_access(one, *block, written ? accesses.writes : accesses.reads);
    written_at.resize(accesses.writes.size(), block->data);
  });
  if (accesses.reads.empty() && accesses.writes.empty() && !trace().on) {
    timeline().catch_up();
    return nullptr;
  }
  if (accesses.reads.empty() && accesses.writes.empty()) return nullptr;
  device().host_access(name_id(schema->name()), accesses, call_site());
  if (dry().on) {
    bool known = dry().known(accesses.reads);
    if (!known) dry().refuse_later(schema->name().c_str());
    dry().wrote(accesses.writes, known);
  }
  if (!recorder().on || accesses.writes.empty()) return nullptr;
  auto writing = std::make_unique<Writing>();
  writing->op = trace().ops;
  for (size_t i = 0; i < accesses.writes.size(); ++i) writing->places.emplace_back(accesses.writes[i], written_at[i]);
  return writing;
}

void after_operator(const at::RecordFunction&, at::ObserverContext* context) {
  if (!context) return;
  auto* writing = static_cast<Writing*>(context);
  Lock lock;
  std::string bytes;
  for (auto& [access, data] : writing->places)
    each_run(access, [&, data = data](int64_t lo, int64_t hi) { bytes.append(data + lo, static_cast<size_t>(hi - lo)); });
  recorder().wrote(writing->op, bytes);
  for (auto& [access, data] : writing->places) recorder().known({access}, data);
}

// Records accesses that bypass the dispatcher (streamrace/device/host.py). `name` empty: nothing is read now. `how` not
// empty: the program gets an address.
void sees(Block& block, const Accesses& accesses, const std::string& name, const std::string& how, int64_t site) {
  bool pinned = block.stream == kHost;
  if (pinned && !name.empty()) {
    if (accesses.reads.empty()) timeline().catch_up();
    else device().host_access(name_id(name), accesses, site);
    if (dry().on && !dry().known(accesses.reads)) dry().refuse(name.c_str());
  }
  if (pinned && (how == "numpy" || how == "dlpack")) recorder().given(block);
  if (pinned && (how == "numpy released" || how == "dlpack released")) recorder().released(block);
  if (!how.empty() && !pinned) unwritten().dropped(block.number);  // the holder of an address may write there
  if (!how.empty()) trace().note(WordKind::kExport, {block.number, name_id(how), site, timeline().now});
}

void host_looks(const Tensor& tensor, c10::string_view name, c10::string_view how) {
  int64_t site = call_site();
  Lock lock;
  Block* block = tensor.is_cuda() ? block_of(tensor.storage().unsafeGetStorageImpl()) : pinned_block_of(tensor);
  if (!block) return;
  Accesses accesses;
  add_access(tensor, *block, accesses.reads);
  sees(*block, accesses, std::string(name), std::string(how), site);
}

TORCH_LIBRARY_FRAGMENT(simgpu, m) {
  m.def("host_looks(Tensor tensor, str name, str how) -> ()", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, host_looks));
}

}  // namespace

void watch_pinned_memory() {
  static bool watched = false;
  if (watched) return;
  watched = true;
  at::addGlobalCallback(at::RecordFunctionCallback(&on_operator, &after_operator).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

#pragma GCC visibility push(default)
extern "C" {

// The same for the bytes from `address` on, for a storage without a tensor.
void simgpu_host_looks_at(const char* address, int64_t nbytes, const char* name, const char* how) {
  int64_t site = call_site();
  Lock lock;
  Block* block = pinned_block_of(address);
  if (!block) return;
  int64_t lo = address - block->data;
  Accesses accesses;
  if ((trace().on || dry().on) && nbytes > 0)
    accesses.reads.push_back({block->number, lo, std::min(lo + nbytes, static_cast<int64_t>(block->nbytes)), 0});
  sees(*block, accesses, name, how, site);
}

}  // extern "C"
#pragma GCC visibility pop
}  // namespace simgpu
