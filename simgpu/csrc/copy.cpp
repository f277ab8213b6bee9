// copy_: within the device, and between it and the host (CUDA Runtime API, "API synchronization behavior";
// torch's aten/src/ATen/native/cuda/Copy.cu).
//
// host -> device, pageable: staged when it is issued, so the host may change its memory at once.
// host -> device, pinned: read when the copy ends. The host must leave the memory alone until then.
// device -> host, pageable: the call returns when the copy is complete, also with non_blocking.
// device -> host, pinned: written when the copy ends; with non_blocking nothing tells the host when.
// Without non_blocking the host waits for the stream in each case.
#include <ATen/ops/copy.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <torch/library.h>

#include <cstring>

#include "callsite.h"
#include "fallback.h"
#include "generator.h"
#include "operators.h"

namespace simgpu {
namespace {

using at::Tensor;

int64_t cost(const char* name, const Tensor& moved) {
  auto& costs = device().costs;
  auto nbytes = moved.numel() * static_cast<int64_t>(moved.itemsize());
  return costs.kernel ? static_cast<int64_t>(costs.kernel(name, nbytes, nullptr, 0)) : 2000;
}

Block* pinned(const Tensor& tensor) {
  return tensor.is_cpu() && tensor.has_storage() ? pinned_block_of(tensor.storage().data()) : nullptr;
}

void check(const Tensor& tensor) {
  TORCH_CHECK(tensor.layout() == at::kStrided && (tensor.is_cpu() || tensor.is_cuda()),
              "simgpu: cannot copy between the simulated GPU and ", tensor.device(), " (", tensor.layout(), ")");
}

at::ScalarType dtype() { return c10::get_default_dtype_as_scalartype(); }

Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  check(self), check(source);
  if (self.numel() == 0) return self;
  int64_t site = call_site();
  Lock lock;
  Accesses accesses;
  int64_t stream = Device::current();
  static const int64_t within = name_id("aten::copy_"), up = name_id("cudaMemcpyAsync HtoD"), down = name_id("cudaMemcpyAsync DtoH");
  if (self.is_cuda() && source.is_cuda()) {
    Tensor from = place_of(source, false, accesses), to = place_of(self, true, accesses);
    device().launch(stream, within, accesses, cost("aten::copy_", self),
                    device().guarded(within, [from, to, dtype = dtype()]() mutable { Executing quiet(dtype); to.copy_(from); }), site);
    return self;
  }
  bool as_it_is = self.scalar_type() == source.scalar_type() && self.strides() == source.strides() &&
      self.is_non_overlapping_and_dense() && self.is_conj() == source.is_conj() && self.is_neg() == source.is_neg();
  if (self.is_cuda()) {
    Tensor from;
    Block* block = pinned(source);
    if (block && as_it_is) {  // the copy engine reads the host's memory itself
      record_stream(*block, stream);
      add_access(source, *block, accesses.reads);
      from = alias(source, *block);
    } else {
      timeline().catch_up();
      Executing quiet(dtype());
      if (block) {
        Accesses read;
        add_access(source, *block, read.reads);
        device().host_access(within, read, site);
      }
      from = source.to(self.scalar_type(), false, true);
    }
    Tensor to = place_of(self, true, accesses);
    device().launch(stream, up, accesses, cost("cudaMemcpyAsync HtoD", self),
                    device().guarded(up, [from, to, dtype = dtype()]() mutable { Executing quiet(dtype); to.copy_(from); }), site);
    if (!non_blocking) device().synchronize(stream, How::kSynchronize, site);
    return self;
  }
  Tensor from = place_of(source, false, accesses), to = self;
  Block* block = pinned(self);
  bool direct = block && as_it_is;
  if (block) {
    record_stream(*block, stream);
    add_access(self, *block, accesses.writes);
    to = alias(self, *block);
  } else {
    Executing quiet(dtype());
    to = self.detach();  // its version was counted where the copy was issued
  }
  device().launch(stream, down, accesses, cost("cudaMemcpyAsync DtoH", self),
                  device().guarded(down, [from, to, dtype = dtype()]() mutable { Executing quiet(dtype); to.copy_(from); }), site);
  if (!non_blocking) device().synchronize(stream, How::kRead, site);
  else if (!direct) device().host_wait(device().record(stream), How::kRead, site);
  return self;
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) { m.impl("copy_", copy_); }

// -- the host's own use of pinned memory --------------------------------------------------------

// They look at a tensor's kind alone.
bool asks(const std::string& name) {
  auto ends = [&](const char* with) { return name.size() >= strlen(with) && name.compare(name.size() - strlen(with), strlen(with), with) == 0; };
  return name == "aten::is_pinned" || name == "aten::is_same_size" || name == "aten::is_set_to" || ends("_like") ||
      name.rfind("aten::new_", 0) == 0 || name.rfind("aten::sym_", 0) == 0;
}

// What the host's kernels do to pinned memory are accesses too, on its own clock. They are seen where the
// dispatcher is entered; this watch is set when memory is pinned for the first time.
std::unique_ptr<at::ObserverContext> on_operator(const at::RecordFunction& function) {
  if (executing) return nullptr;
  auto schema = function.operator_schema();
  if (!schema || asks(schema->name())) return nullptr;
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
    any |= pinned(one) != nullptr;
  });
  if (!any || device_too) return nullptr;
  for (auto& result : schema->returns()) only_looks &= result.alias_info() && !result.alias_info()->isWrite();
  if (only_looks && !schema->returns().empty()) return nullptr;  // a view
  Lock lock;
  Accesses accesses;
  look([&](const Tensor& one, bool written) {
    if (!one.defined()) return;
    if (Block* block = pinned(one)) add_access(one, *block, written ? accesses.writes : accesses.reads);
  });
  if (accesses.reads.empty() && accesses.writes.empty() && !trace().on) {
    timeline().catch_up();
    return nullptr;
  }
  if (!accesses.reads.empty() || !accesses.writes.empty())
    device().host_access(name_id(schema->name()), accesses, call_site());
  return nullptr;
}

}  // namespace

void watch_pinned_memory() {
  static bool watched = false;
  if (watched) return;
  watched = true;
  at::addGlobalCallback(at::RecordFunctionCallback(&on_operator).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

}  // namespace simgpu
