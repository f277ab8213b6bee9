// Operators: what they read and write, and on which stream.
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <functional>

#include "callsite.h"
#include "ranges.h"
#include "tracker.h"

namespace simgpu {

void listen_to_order();
void stop_listening_to_order();
bool collective_group(Running& call, c10::ArrayRef<c10::IValue> inputs);
void collective_accesses(Running& call, c10::ArrayRef<c10::IValue> inputs);

namespace {

using at::Tensor;
using c10::IValue;
using See = std::function<void(const Tensor&)>;

void each_tensor(const IValue& value, const See& see) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) see(value.toTensor());
  } else if (value.isList()) {
    for (const IValue& item : value.toListRef()) each_tensor(item, see);
  }
}

// A tensor around others, or that has no memory of its own: its operators come once more, for what is inside.
bool wraps(const Tensor& tensor) {
  static const c10::DispatchKeySet outer({c10::DispatchKey::Python, c10::DispatchKey::Functionalize, c10::DispatchKey::FuncTorchBatched,
                                          c10::DispatchKey::FuncTorchGradWrapper});
  return tensor.is_meta() || tensor.key_set().has_any(outer);
}

bool dense(const Tensor& tensor) { return tensor.layout() == at::kStrided && tensor.has_storage(); }

void add(const Tensor& tensor, const Tracked& block, std::vector<Access>& accesses) {
  if (tensor.numel() > 0) accesses.push_back(range_of(tensor, block.number, 0, true));
}

void argument(Running& call, const Tensor& one, bool written) {
  if (!dense(one)) return;
  call.given.push_back(one.storage().unsafeGetStorageImpl());
  if (one.is_cuda()) {
    call.on_gpu = true;
    if (call.effects->allocates && !written) return;
    if (Tracked* block = tracker().block_of(one)) add(one, *block, written ? call.accesses.writes : call.accesses.reads);
  } else if (one.is_cpu() && tracker().any_pinned() && !call.effects->copies && (written || !call.effects->allocates)) {
    if (Tracked* block = tracker().pinned_block_of(one, false)) add(one, *block, written ? call.host.writes : call.host.reads);
  }
}

// A copy between host and device (torch's aten/src/ATen/native/cuda/Copy.cu; the rules: streamrace/device/csrc/copy.cpp). One
// that takes a detour is a copy in which others are recorded.
void copy(Running& call, c10::ArrayRef<IValue> inputs) {
  const Tensor &to = inputs[0].toTensor(), &from = inputs[1].toTensor();
  bool non_blocking = inputs.size() > 2 && inputs[2].isBool() && inputs[2].toBool();
  if (!to.is_cuda() && !from.is_cuda()) return argument(call, from, false), argument(call, to, true), void();
  bool as_it_is = to.scalar_type() == from.scalar_type() && to.strides() == from.strides() && to.is_non_overlapping_and_dense() &&
      to.is_conj() == from.is_conj() && to.is_neg() == from.is_neg();
  const Tensor& host = to.is_cuda() ? from : to;
  bool straight = as_it_is || (non_blocking && host.is_contiguous() && to.sizes() == from.sizes());
  if (to.is_cuda() && from.is_cuda()) return argument(call, from, false), argument(call, to, true), void();
  argument(call, from.is_cuda() ? from : to, to.is_cuda());
  static const int64_t up = name_id("cudaMemcpyAsync HtoD"), down = name_id("cudaMemcpyAsync DtoH");
  call.kernel = to.is_cuda() ? up : down;
  Tracked* block = dense(host) ? tracker().pinned_block_of(host, true) : nullptr;
  if (block && (straight || !to.is_cuda())) {
    add(host, *block, to.is_cuda() ? call.accesses.reads : call.accesses.writes);
    tracker().used_by(*block, call.stream);
  } else if (block) {
    add(host, *block, call.host.reads);  // staged by the host, before the copy
  }
  if (to.is_cuda()) call.how = schema::How::kCopy;
  call.waits_after = !to.is_cuda() && !(block && straight);
}

// Holds the current stream before the work of this stack, once for an operator and all that it calls.
void hold_before(int64_t site) {
  if (running() != nullptr) return;
  {
    Lock lock;
    if (!tracker().held.count(site)) return;
  }
  Quiet ours;
  int state = PyGILState_Ensure();
  tracker().hold();
  PyGILState_Release(state);
}

std::unique_ptr<at::ObserverContext> begins(const at::RecordFunction& function) {
  if (!follows() || !PyGILState_GetThisThreadState()) return nullptr;
  const Effects* effects = effects_of(function);
  if (!effects) return nullptr;
  auto inputs = function.inputs();
  bool gradient = false, wrapped = false;
  for (auto& value : inputs)
    each_tensor(value, [&](const Tensor& one) {
      wrapped |= wraps(one);
      gradient |= one.requires_grad();
    });
  if (wrapped) return nullptr;
  bool node = gradient && at::GradMode::is_enabled();
  if (effects->view && !node) return nullptr;
  int64_t site = call_site();
  if (node) site_of_next_node(site);
  if (effects->view) return nullptr;
  hold_before(site);
  auto call = std::make_unique<Running>();
  call->effects = effects;
  call->kernel = effects->name;
  call->site = site;
  uintptr_t stream = tracker().current(), named = effects->records_stream ? tracker().handle_of(inputs[1].toStream()) : 0;
  bool collective = !effects->collective.empty();
  if (collective && !collective_group(*call, inputs)) return nullptr;
  Lock lock;
  call->stream = tracker().stream_of(stream);
  if (effects->records_stream) {
    const Tensor& one = inputs[0].toTensor();
    Tracked* block = one.is_cuda() && dense(one) ? tracker().block_of(one) : nullptr;
    if (block) tracker().used_by(*block, tracker().stream_of(named));
    return nullptr;
  }
  if (collective) {
    call->how = schema::How::kSynchronize;
    collective_accesses(*call, inputs);
  } else if (effects->copies) {
    copy(*call, inputs);
  } else {
    bool hides = !effects->hidden.empty() && (effects->hidden_when < 0 || inputs[effects->hidden_when].toBool());
    for (size_t i = 0; i < inputs.size() && i < effects->written.size(); ++i) {
      bool written = effects->written[i] || (hides && effects->hidden[i]);
      each_tensor(inputs[i], [&](const Tensor& one) { argument(*call, one, written); });
    }
  }
  call->outer = std::exchange(running(), call.get());
  return call;
}

// The tensors that the operator has made, if their memory is not an argument's; and those that it was given to write,
// which may have got their memory only then ("out=").
void results(Running& call, const std::vector<IValue>& outputs) {
  auto& writes = call.accesses.writes;
  for (size_t i = 0; i < outputs.size() && i < call.effects->fresh.size(); ++i) {
    bool fresh = call.effects->fresh[i];
    if (!fresh && !call.effects->outs[i]) continue;
    each_tensor(outputs[i], [&](const Tensor& one) {
      if (!dense(one) || wraps(one) || !one.is_cuda()) return;
      call.on_gpu = true;
      if (fresh && std::count(call.given.begin(), call.given.end(), one.storage().unsafeGetStorageImpl())) return;
      Tracked* block = tracker().block_of(one);
      if (!block || call.effects->allocates || one.numel() == 0) return;
      Access access = range_of(one, block->number, 0, true);
      auto same = [&](const Access& other) {
        return access.block == other.block && access.lo == other.lo && access.hi == other.hi && access.layout == other.layout;
      };
      if (fresh || std::none_of(writes.begin(), writes.end(), same)) writes.push_back(access);
    });
  }
}

bool empty(const Accesses& accesses) { return accesses.reads.empty() && accesses.writes.empty(); }

void ends(const at::RecordFunction& function, at::ObserverContext* context) {
  if (!context) return;
  auto& call = *static_cast<Running*>(context);
  running() = call.outer;
  if (!tracker().on) return;
  Lock lock;
  if (!call.effects->collective.empty()) {
    tracker().issue(call);
    if (call.outer) call.outer->inner = true;
    return;
  }
  if (call.effects->copies && call.copied) {
    if (call.outer) call.outer->inner = call.outer->copied = true;
    return;
  }
  results(call, function.outputs());
  if (!empty(call.host)) tracker().host_access(call.kernel, call.host, call.site);
  bool counts = call.on_gpu && !empty(call.accesses) && (call.effects->ours || call.effects->copies || !call.inner);
  if (counts && !call.waited) {
    tracker().launch(call, call.accesses);
    if (call.waits_after) tracker().host_waits(call.stream, schema::How::kRead, call.site);
  } else if (counts && !call.effects->copies && !call.accesses.writes.empty()) {
    if (!call.effects->rereads) call.accesses.reads.clear();
    tracker().launch(call, call.accesses);
  }
  if (call.outer && (counts || call.inner)) call.outer->inner = true;
  if (call.outer && counts && call.effects->copies) call.outer->copied = true;
}

// A node of autograd's graph: the engine calls record_stream, past all operators, for a gradient that was made on another
// stream than the node's (torch/csrc/autograd/input_buffer.cpp).
std::unique_ptr<at::ObserverContext> node_begins(const at::RecordFunction& function) {
  if (!follows()) return nullptr;
  uintptr_t current = tracker().current();
  Lock lock;
  int64_t stream = tracker().stream_of(current);
  for (auto& value : function.inputs())
    each_tensor(value, [&](const Tensor& one) {
      if (wraps(one) || !dense(one) || !one.is_cuda()) return;
      if (Tracked* block = tracker().block_of(one); block && block->stream >= 0) tracker().used_by(*block, stream);
    });
  return nullptr;
}

at::CallbackHandle handle = at::INVALID_CALLBACK_HANDLE, node_handle = at::INVALID_CALLBACK_HANDLE;

}  // namespace

void before_wait() {
  auto* call = running();
  if (!call) return;
  if (call->effects->collective == "barrier") tracker().issue(*call);  // the host waits for the barrier itself
  bool first = !call->waited;
  for (auto* one = call; one; one = one->outer) one->waited = true;
  bool own = call->effects->ours || call->effects->copies || !call->inner;
  if (!first || !call->on_gpu || !own || !call->effects->collective.empty() || (call->effects->copies && call->copied)) return;
  Accesses accesses = call->accesses;
  if (!call->effects->copies) accesses.writes.clear();
  if (!empty(accesses)) tracker().launch(*call, accesses);
}

void listen() {
  listen_to_order();
  auto callback = at::RecordFunctionCallback(&begins, &ends).needsInputs(true).needsOutputs(true).scopes({at::RecordScope::FUNCTION});
  handle = at::addGlobalCallback(callback);
  node_handle = at::addGlobalCallback(at::RecordFunctionCallback(&node_begins).needsInputs(true).scopes({at::RecordScope::BACKWARD_FUNCTION}));
}

void stop_listening() {
  stop_listening_to_order();
  at::removeCallback(handle);
  at::removeCallback(node_handle);
}

}  // namespace simgpu
