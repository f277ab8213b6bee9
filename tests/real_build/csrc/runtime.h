// Declarations that the parts of the fake CUDA runtime share. They repeat the little of CUDA 13's headers that torch's
// calls need, so that no CUDA headers are needed to build the libraries.
#pragma once

#include <cstddef>
#include <cstdint>

enum Error {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kInvalidDevice = 101,
  kInvalidHandle = 400,
  kNotReady = 600,
};

struct Dim3 {
  unsigned x, y, z;
};

// Returns `error`, and keeps it for cudaGetLastError.
int failed(int error);
int device_count();
int current_device();

// A stream's or an event's queries answer "not ready" so many times after work was given to it, or after it was recorded.
struct Pending {
  unsigned left = 0;
  void begin();
  int query();
};

// Notes that work was given to `stream`, so that its queries begin anew. It takes that many nanoseconds of virtual time,
// which is over for the host when it waits, or has asked in vain as often as it takes microseconds.
void work_on(void* stream, int64_t nanoseconds = 0);
// The host waits for the work on `stream`.
void wait_for(void* stream);
// The name of `stream` in the log: 0 for the default stream, then 1, 2, ... in the order in which they were created.
unsigned number_of(void* stream);
