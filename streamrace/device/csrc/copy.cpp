// copy_: within the device, and between it and the host (CUDA Runtime API, "API synchronization behavior";
// torch's aten/src/ATen/native/cuda/Copy.cu).
//
// host -> device, pageable: staged when it is issued, so the host may change its memory at once.
// host -> device, pinned: read when the copy ends. The host must leave the memory alone until then.
// device -> host, pageable: the call returns when the copy is complete, also with non_blocking.
// device -> host, pinned: written when the copy ends; with non_blocking nothing tells the host when.
// Without non_blocking the host waits for the stream in each case.
//
// Where the two differ in type or layout the copy takes a detour through further memory (copy_kernel_cuda,
// copy_requires_temporaries): with non_blocking types are converted on the device, so contiguous pinned memory is still read
// or written by the copy.
#include <ATen/ops/copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <cstring>

#include "callsite.h"
#include "capture.h"
#include "dry.h"
#include "fallback.h"
#include "generator.h"
#include "operators.h"
#include "recorder.h"
#include "probes.h"

namespace simgpu {
namespace {

using at::Tensor;

// Cost of a copy. `moved` passes the link between host and device, once. Within the device memory is read and written.
int64_t cost(const char* name, const Tensor& moved, const Tensor* from = nullptr) {
  auto& costs = device().costs;
  auto nbytes = moved.numel() * static_cast<int64_t>(moved.itemsize());
  if (from) nbytes += from->numel() * static_cast<int64_t>(from->itemsize());
  return costs.kernel ? static_cast<int64_t>(costs.kernel(name, nbytes, nullptr, 0, 0, nullptr)) : 2000;
}

void check(const Tensor& tensor) {
  TORCH_CHECK(tensor.layout() == at::kStrided && (tensor.is_cpu() || tensor.is_cuda()),
              "streamrace: cannot copy between the simulated GPU and ", tensor.device(), " (", tensor.layout(), ")");
}

at::ScalarType dtype() { return c10::get_default_dtype_as_scalartype(); }

Block* block_behind(const Tensor& tensor) { return block_of(tensor.storage().unsafeGetStorageImpl()); }
// In a dry run the launch has no effect; small known values are copied at once. Returns whether they were.
bool copied(const Accesses& accesses, const Tensor& from, const Tensor& to, bool known = true) {
  bool real = known && dry().fits(to.numel() * static_cast<int64_t>(to.itemsize())) && dry().known(accesses.reads);
  if (real) {
    Executing quiet(dtype());
    Tensor(to).copy_(from);
  }
  dry().wrote(accesses.writes, real);
  return real;
}

// Fills memory that is not pinned, where a missing value cannot be noticed later: only for a trusted reader, with
// zeros, and never integers, which count something.
void arrive_hollow(const Tensor& to) {
  if (!dry().trusted("a copy to the host", to.is_floating_point() ? 2 : 1)) TORCH_CHECK(false, dry().refusal);
  dry().deceived = true;
  auto *begin = static_cast<char*>(to.data_ptr()), *end = begin + to.nbytes();
  auto page = [](char* at) { return reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(at) + 4095) / 4096 * 4096); };
  char *from = page(begin), *until = page(end - 4095);
  if (to.is_contiguous() && until > from) {  // whole pages are discarded, which takes no memory
    std::memset(begin, 0, static_cast<size_t>(from - begin));
    std::memset(until, 0, static_cast<size_t>(end - until));
    if (forget_pages(from, static_cast<size_t>(until - from))) return;
  }
  Executing quiet(dtype());
  Tensor(to).zero_();
}

// A copy between two devices runs on the source's current stream, which waits for the destination's before it; the
// destination's waits for it (Copy.cu, copy_device_to_device). Each waits as the program's own wait would.
Tensor& copy_to_peer(Tensor& self, const Tensor& source, int64_t stream, int64_t site) {
  static const int64_t name = name_id("cudaMemcpyAsync PtoP");
  int64_t theirs = device().current(self.device().index());
  device().wait(stream, device().record(theirs), site);
  Accesses accesses;
  Tensor from = place_of(source, false, accesses), to = place_of(self, true, accesses);
  if (recorder().on) recorder().copy(trace().ops + 1, {to, block_behind(self)}, {from, block_behind(source)});
  auto copy = [from, to, dtype = dtype()]() mutable {
    Executing quiet(dtype);
    to.copy_(from);
  };
  device().launch(stream, name, accesses, cost(name_of(name), self), dry().on ? Effect() : device().guarded(name, std::move(copy)), site);
  if (dry().on) copied(accesses, from, to);
  device().wait(theirs, device().record(stream), site);
  return self;
}

// Raises torch's error for a source that cannot be broadcast to the destination (TensorIterator.cpp, compute_shape).
void check_shapes(const Tensor& self, const Tensor& source) {
  if (self.sizes() == source.sizes()) return;
  auto shape = at::infer_size(self.sizes(), source.sizes());
  TORCH_CHECK(self.sizes() == shape, "output with shape ", self.sizes(), " doesn't match the broadcast shape ", at::IntArrayRef(shape));
}

bool alike(const Tensor& self, const Tensor& source) {
  return self.sizes() == source.sizes() && self.scalar_type() == source.scalar_type() &&
      ((self.strides() == source.strides() && self.is_non_overlapping_and_dense()) || (self.is_contiguous() && source.is_contiguous()));
}

Tensor& copy_once(Tensor& self, const Tensor& source, bool non_blocking) {
  int64_t site = call_site_of(self, source);
  Lock lock;
  Accesses accesses;
  OnDevice on(device().several() ? (source.is_cuda() ? source : self).device().index() : -1);
  int64_t stream = Device::current();
  TORCH_CHECK(self.is_cuda() == source.is_cuda() || !captures().of(stream) || pinned_block_of(self.is_cpu() ? self : source),  // Copy.cu
              "Cannot copy between CPU and CUDA tensors during CUDA graph capture unless the CPU tensor is pinned. "
              "Please use tensor.pin_memory() or allocate the tensor with pin_memory=True.");
  static const int64_t within = name_id("aten::copy_"), up = name_id("cudaMemcpyAsync HtoD"), down = name_id("cudaMemcpyAsync DtoH");
  if (self.is_cuda() && source.is_cuda() && self.device() != source.device()) return copy_to_peer(self, source, stream, site);
  if (self.is_cuda() && source.is_cuda()) {
    Tensor from = place_of(source, false, accesses), to = place_of(self, true, accesses);
    if (recorder().on) recorder().copy(trace().ops + 1, {to, block_behind(self)}, {from, block_behind(source)});
    if (dry().on) {
      device().launch(stream, within, accesses, cost("aten::copy_", self, &source), nullptr, site);
      copied(accesses, from, to);
      return self;
    }
    device().launch(stream, within, accesses, cost("aten::copy_", self, &source),
                    device().guarded(within, [from, to, dtype = dtype()]() mutable { Executing quiet(dtype); to.copy_(from); }), site);
    return self;
  }
  auto straight = [&](const Tensor& host) { return non_blocking && host.is_contiguous() && self.sizes() == source.sizes(); };
  bool as_it_is = alike(self, source) && self.is_conj() == source.is_conj() && self.is_neg() == source.is_neg();
  if (self.is_cuda()) {
    Tensor from;
    Block *block = pinned_block_of(source), *straight_from = nullptr;
    bool known = !(dry().deceived && source.is_floating_point() && dry().trusted("a copy to the device"));
    if (block && (as_it_is || straight(source))) {  // the copy engine reads the host's memory itself
      record_event(source, *block, stream);
      add_access(source, *block, accesses.reads);
      from = alias(source, *(straight_from = block));
    } else {
      timeline().catch_up();
      Executing quiet(dtype());
      if (block) {
        Accesses read;
        add_access(source, *block, read.reads);
        device().host_access(within, read, site);
        known = known && dry().known(read.reads);
      }
      bool hollow = dry().on && !(known && dry().fits(static_cast<int64_t>(source.nbytes())));
      if (!hollow) from = source.to(self.scalar_type(), false, true);
      known = known && !hollow;
    }
    Tensor to = place_of(self, true, accesses);
    std::vector<Access> read;  // from memory that the host may have changed
    if (recorder().on) recorder().copy(trace().ops + 1, {to, block_behind(self)}, {from, straight_from});
    if (recorder().on && straight_from) read = accesses.reads;
    Effect effect;
    if (!dry().on) {
      effect = device().guarded(up, [from, to, dtype = dtype(), read = std::move(read)]() mutable {
        if (!read.empty()) recorder().read(read, static_cast<const char*>(from.storage().data()));
        Executing quiet(dtype);
        to.copy_(from);
      });
    }
    device().launch(stream, up, accesses, cost(straight_from ? "cudaMemcpyAsync HtoD" : "cudaMemcpyAsync HtoD pageable", self), std::move(effect), site);
    if (dry().on) copied(accesses, from, to, known);
    if (!non_blocking) device().synchronize(stream, How::kCopy, site);
    return self;
  }
  Tensor from = place_of(source, false, accesses), to = self;
  Block* block = pinned_block_of(self);
  bool direct = block && (as_it_is || straight(self));
  if (block) {
    record_event(self, *block, stream);
    add_access(self, *block, accesses.writes);
    to = alias(self, *block);
  } else {
    Executing quiet(dtype());
    to = self.detach();  // its version was counted when the copy was issued
  }
  std::vector<Access> written;
  if (recorder().on) written = accesses.writes;
  if (recorder().on && block) recorder().copy(trace().ops + 1, {to, block}, {from, block_behind(source)});
  else if (recorder().on) recorder().look(trace().ops + 1, {from, block_behind(source)}, to);
  Effect effect;
  if (!dry().on) {
    effect = device().guarded(down, [from, to, dtype = dtype(), op = trace().ops + 1, written = std::move(written)]() mutable {
      Executing quiet(dtype);
      to.copy_(from);
      see(op, to, true);
      if (!written.empty()) recorder().known(written, static_cast<const char*>(to.storage().data()));
    });
  }
  device().launch(stream, down, accesses, cost(block ? "cudaMemcpyAsync DtoH" : "cudaMemcpyAsync DtoH pageable", self), std::move(effect), site);
  bool hollow = dry().on && !copied(accesses, from, to);
  if (!non_blocking) device().synchronize(stream, How::kRead, site);
  else if (!direct) device().host_wait(device().record(stream), How::kRead, site);
  if (hollow && !block) arrive_hollow(to);
  return self;
}

// A copy between the host and the device, by way of contiguous memory of the device where the tensor there is not so, or has
// another type, and types are converted on the device.
Tensor& copy_by_way(Tensor& self, const Tensor& source, bool non_blocking) {
  bool one_type = self.scalar_type() == source.scalar_type();
  if (self.is_cuda()) {
    if (self.is_contiguous() && (one_type || !non_blocking)) return copy_once(self, source, non_blocking);
    Tensor way = at::empty(self.sizes(), self.options().dtype((non_blocking ? source : self).scalar_type()));
    return copy_once(self, copy_once(way, source, non_blocking), non_blocking);
  }
  Tensor from = source;
  if (non_blocking && !one_type) {
    from = at::empty_like(source, source.options().dtype(self.scalar_type()));
    copy_once(from, source, true);
  }
  if (from.is_contiguous() && from.sizes() == self.sizes()) return copy_once(self, from, non_blocking);
  Tensor way = at::empty(self.sizes(), from.options());
  return copy_once(self, copy_once(way, from, non_blocking), non_blocking);
}

Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  check(self), check(source), check_shapes(self, source);
  if (self.numel() == 0 || self.is_same(source)) return self;
  bool passes = self.is_cuda() != source.is_cuda() && !alike(self, source);
  return passes ? copy_by_way(self, source, non_blocking) : copy_once(self, source, non_blocking);
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) { m.impl("copy_", copy_); }

}  // namespace
}  // namespace simgpu
