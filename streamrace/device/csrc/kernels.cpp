// The few operators that the device implements itself: they create memory, or another view of a tensor.
// All other views are composites that end in as_strided, so they are views by construction.
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "allocator.h"
#include "callsite.h"

namespace simgpu {
namespace {

using at::IntArrayRef;
using at::Tensor;
using std::optional;
const c10::DispatchKeySet kCuda(c10::DispatchKey::CUDA);

// Makes the device the current one, which the allocator uses.
void check(c10::OptionalDeviceGuard& guard, optional<c10::Device> wanted, optional<c10::Layout> layout, optional<bool> pinned) {
  if (wanted && wanted->index() >= 0) guard.reset_device(*wanted);
  if (device().bound() || device().several()) device().bind(device().chosen());
  TORCH_CHECK(layout.value_or(at::kStrided) == at::kStrided, "streamrace: a tensor of the layout ", *layout, " cannot be simulated: the simulated GPU has dense tensors only, so keep it on the CPU");
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
}

Tensor empty(IntArrayRef size, optional<at::ScalarType> dtype, optional<c10::Layout> layout, optional<c10::Device> where,
             optional<bool> pinned, optional<at::MemoryFormat> format) {
  c10::OptionalDeviceGuard guard;
  check(guard, where, layout, pinned);
  return at::detail::empty_generic(size, device_allocator(), kCuda, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, optional<at::ScalarType> dtype, optional<c10::Layout> layout,
                     optional<c10::Device> where, optional<bool> pinned) {
  c10::OptionalDeviceGuard guard;
  check(guard, where, layout, pinned);
  return at::detail::empty_strided_generic(size, stride, device_allocator(), kCuda, c10::dtype_or_default(dtype));
}

// A tensor that outgrows its memory moves to new memory, in the order of the current stream.
const Tensor& resize_(const Tensor& self, IntArrayRef size, optional<at::MemoryFormat> format) {
  auto* impl = self.unsafeGetTensorImpl();
  if (self.sizes() != size) impl->set_sizes_contiguous(size);  // with the same shape its strides stay
  if (format && *format != at::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  auto needed = at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.itemsize(), self.storage_offset());
  auto* storage = self.storage().unsafeGetStorageImpl();
  if (impl->numel() > 0 && needed > storage->nbytes()) {
    int64_t site = call_site();
    Lock lock;
    resize_storage(storage, needed, site);
  }
  return self;
}

Tensor& set_storage(Tensor& self, at::Storage source, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  TORCH_CHECK(source.device().is_cuda(), "Attempted to set the storage of a tensor on device \"", self.device(),
              "\" to a storage on different device \"", source.device(), "\".");
  bool whole = stride.data() == nullptr;
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  if (whole) impl->set_sizes_contiguous(size);
  else impl->set_sizes_and_strides(size, stride);
  at::native::checkInBoundsForStorage(self.sizes(), self.strides(), offset, self.dtype(), self.storage());
  return self;
}

Tensor& set_source(Tensor& self, at::Storage source) {
  auto length = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage(self, std::move(source), 0, {length}, {});
}

Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

Tensor& set_nothing(Tensor& self) {
  c10::Storage none(c10::Storage::use_byte_size_t(), 0, device_allocator()->allocate(0), device_allocator(), true);
  return set_storage(self, std::move(none), 0, {0}, {});
}

void record_stream_(Tensor& self, c10::Stream stream) {
  Lock lock;
  if (Block* block = block_of(self.storage().unsafeGetStorageImpl())) record_stream(*block, device().number_of(stream));
}

// A view's backward pass may be real work (an expand's is a sum), which gets the view's line.
template <auto kernel>
struct Viewed;
template <typename... More, Tensor (*kernel)(const Tensor&, More...)>
struct Viewed<kernel> {
  static Tensor call(const Tensor& self, More... more) {
    note_view_of(self);
    return kernel(self, more...);
  }
};

// The value reaches CUDA's kernel through the host, which waits for it (aten/src/ATen/native/cuda/Indexing.cu).
at::Scalar read(const Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "masked_fill_ only supports a 0-dimensional value tensor, but got tensor with ", value.dim(), " dimension(s).");
  return value.item();
}

Tensor& masked_fill_(Tensor& self, const Tensor& mask, const Tensor& value) { return self.masked_fill_(mask, read(value)); }
Tensor masked_fill(const Tensor& self, const Tensor& mask, const Tensor& value) { return self.masked_fill(mask, read(value)); }

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", &Viewed<&at::native::as_strided_tensorimpl>::call);
  m.impl("view", &Viewed<&at::native::view>::call);
  m.impl("_reshape_alias", &Viewed<&at::native::_reshape_alias>::call);
  m.impl("unfold", &Viewed<&at::native::unfold>::call);
  m.impl("view_as_real", &Viewed<&at::native::view_as_real>::call);
  m.impl("view_as_complex", &Viewed<&at::native::view_as_complex>::call);
  m.impl("masked_fill_.Tensor", masked_fill_);
  m.impl("masked_fill.Tensor", masked_fill);
  m.impl("resize_", resize_);
  m.impl("set_", set_nothing);
  m.impl("set_.source_Storage", set_source);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Tensor", set_tensor);
  m.impl("record_stream", record_stream_);
}

}  // namespace
}  // namespace simgpu
