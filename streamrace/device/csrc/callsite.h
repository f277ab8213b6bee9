// Where in the program a call came from: the Python stack without torch's frames and our own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace simgpu {

// The number of the current stack; 0 where nobody traces. Takes Python's lock, so it is called before
// the device's is taken. On a thread without Python frames (autograd's) it is the stack in which the node that runs
// was made, marked "(backward)"; where that is not known, that of the main thread, which waits in backward().
int64_t call_site();

// The same, where autograd has just made a node for this operator: the node's backward work gets this stack. Autograd
// makes it before it calls the kernel, and only for an operator of which an argument wants a gradient.
bool may_have_made_node();
int64_t call_site_of_node();

template <typename... Tensors>
int64_t call_site_of(const Tensors&... arguments) {
  return may_have_made_node() && (arguments.requires_grad() || ...) ? call_site_of_node() : call_site();
}
inline void note_view_of(const at::Tensor& base) {
  if (may_have_made_node() && base.requires_grad()) call_site_of_node();
}

// Is the frame of this code object recorded? The number of the stack of these (code, instruction) pairs. The number of
// a stack's twin for backward work.
void give_call_sites(int (*reported)(void* code), int64_t (*define)(const void* const* codes, const int* instructions, int count),
                     int64_t (*backward)(int64_t stack));
// Called, with Python's lock held, when the trace has become long (Trace::full).
void give_hand_on(void (*hand_on)());

// Asked before an event is waited for, by a stream (`waits`) or by the host: does something else happen at this place of
// the program (streamrace/device/overrides.py)? Null while nobody wants to know.
extern int (*event_overridden)(int waits, int64_t stream);

}  // namespace simgpu
