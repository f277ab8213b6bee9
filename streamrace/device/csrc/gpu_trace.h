// Notifies torch's own sanitizer (torch.cuda._sanitizer) and other users of torch._C._activate_gpu_trace, at the same
// points as a CUDA build (c10/cuda: CUDACachingAllocator.cpp, CUDAStream.cpp, CUDAFunctions.h, impl/CUDAGuardImpl.h).
// Costs one test of a flag until it is activated.
#pragma once

#include <c10/core/impl/GPUTrace.h>

#include "lock.h"

namespace simgpu {

// tell(&Told::trace_gpu_event_record, event, stream): addresses and streams are numbers.
using Told = c10::impl::PyInterpreterVTable;

template <typename... Parameters, typename... Arguments>
void tell(void (Told::*what)(c10::DeviceType, Parameters...) const, Arguments... arguments) {
  const auto* interpreter = c10::impl::GPUTrace::get_trace();
  if (C10_UNLIKELY(interpreter != nullptr) && python_alive) ((**interpreter).*what)(c10::kCUDA, (Parameters)arguments...);
}

}  // namespace simgpu
