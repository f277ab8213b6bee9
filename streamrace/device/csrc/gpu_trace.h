// What torch's own sanitizer (torch.cuda._sanitizer) and others who call torch._C._activate_gpu_trace are told, at the
// points where a CUDA build tells it (c10/cuda: CUDACachingAllocator.cpp, CUDAStream.cpp, CUDAFunctions.h,
// impl/CUDAGuardImpl.h). Until somebody asks it costs one look at a flag.
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
