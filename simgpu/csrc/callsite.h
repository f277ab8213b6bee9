// Where in the program a call came from: the Python stack without torch's frames and our own.
#pragma once

#include <cstdint>

namespace simgpu {

// The number of the current stack; 0 where nobody traces. Takes Python's lock, so it is called before
// the device's is taken. A thread without Python frames (autograd's) stands where the main thread does,
// which waits for it in backward().
int64_t call_site();

// Is the frame of this code object told? And: the number of the stack of these (code, instruction) pairs.
void give_call_sites(int (*told)(void* code), int64_t (*define)(const void* const* codes, const int* instructions, int count));
// Called, with Python's lock held, when the trace has become long (Trace::full).
void give_hand_on(void (*hand_on)());

}  // namespace simgpu
