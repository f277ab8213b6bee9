// The place in the program from which a call came: the Python stack without torch's frames and our own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace simgpu {

// Returns the number of the current stack; 0 while nothing is traced. Takes Python's lock, so it is called before the
// device's lock is taken. On a thread without Python frames (autograd's) it is the stack in which the running node was
// created, marked "(backward)"; if that is unknown, that of the main thread, which waits in backward().
int64_t call_site();
int64_t replayed_site(int64_t captured, int64_t replay);  // of a captured launch in a replay (capture.h)

// The same if autograd has just created a node for this operator: the node's backward work gets this stack. Autograd
// creates it before it calls the kernel, and only for an operator with an argument that needs a gradient.
bool may_have_made_node();
int64_t call_site_of_node();
// The same before the operator, called with `site`: the next node that this thread creates gets it.
void site_of_next_node(int64_t site);

template <typename... Tensors>
int64_t call_site_of(const Tensors&... arguments) {
  return may_have_made_node() && (arguments.requires_grad() || ...) ? call_site_of_node() : call_site();
}
inline void note_view_of(const at::Tensor& base) {
  if (may_have_made_node() && base.requires_grad()) call_site_of_node();
}

// `reported`: what the frames of this code object are (callsites.py). `define`: the number of the stack of these (code,
// instruction) pairs. `backward`: the number of the stack for backward work of a stack. `replayed`:
// that of a captured call and the replay.
void give_call_sites(int (*reported)(void* code), int64_t (*define)(const void* const* codes, const int* instructions, int count),
                     int64_t (*backward)(int64_t stack), int64_t (*replayed)(int64_t captured, int64_t replay));
// Sets the function that is called, with Python's lock held, when the trace has become long (Trace::full).
void give_hand_on(void (*hand_on)());

// Called before a stream (`waits`) or the host waits for an event: returns whether an override replaces the wait at this
// place of the program (streamrace/device/overrides.py). Null while there are none.
extern int (*event_overridden)(int waits, int64_t stream);

}  // namespace simgpu
