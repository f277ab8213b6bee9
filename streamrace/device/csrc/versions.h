// Differences of other versions of torch. The device is written for 2.13.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Stream.h>
#if __has_include(<torch/headeronly/version.h>)
#include <torch/headeronly/version.h>
#else
#include <torch/csrc/api/include/torch/version.h>
#endif

#define STREAMRACE_TORCH_SINCE(minor) (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= (minor))

// Marks a function that overrides one of torch's from that version on, and is only ours before.
#if STREAMRACE_TORCH_SINCE(6)
#define OVERRIDE_SINCE_6 override
#else
#define OVERRIDE_SINCE_6
#endif
#if STREAMRACE_TORCH_SINCE(7)
#define OVERRIDE_SINCE_7 override
#else
#define OVERRIDE_SINCE_7
#endif
#if STREAMRACE_TORCH_SINCE(10)
#define OVERRIDE_SINCE_10 override
#else
#define OVERRIDE_SINCE_10
#endif
#if STREAMRACE_TORCH_SINCE(11)
#define OVERRIDE_SINCE_11 override
#else
#define OVERRIDE_SINCE_11
#endif

#if STREAMRACE_TORCH_SINCE(13)
#define OVERRIDE_SINCE_13 override
#else
#define OVERRIDE_SINCE_13
#endif

#if !STREAMRACE_TORCH_SINCE(9)
namespace c10 {
#if !STREAMRACE_TORCH_SINCE(7)
namespace CachingAllocator = CachingDeviceAllocator;
#endif
using MempoolId_t = std::pair<unsigned long long, unsigned long long>;

// The interface for allocators of any device. Before 2.9 torch did not call it: streamrace/device/memory.py does.
struct DeviceAllocator : Allocator {
  virtual bool initialized() = 0;
  virtual void emptyCache(MempoolId_t pool = {0, 0}) = 0;
  virtual void recordStream(const DataPtr& data, Stream stream) = 0;
  virtual CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) = 0;
  virtual void resetAccumulatedStats(DeviceIndex device) = 0;
  virtual void resetPeakStats(DeviceIndex device) = 0;
};
}  // namespace c10
#endif
