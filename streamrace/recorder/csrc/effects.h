// What an operator does to memory, as its schema tells.
#pragma once

#include <ATen/record_function.h>

#include <string>
#include <vector>

namespace simgpu {

struct Effects {
  int64_t name = 0;              // of its kernel in the trace
  std::vector<std::string> names;  // of its arguments
  std::vector<bool> written;     // by argument
  std::vector<bool> hidden;      // by argument: written without a declaration, if argument `hidden_when` is true
  int hidden_when = -1;
  std::vector<bool> fresh;       // by result: new memory
  std::vector<bool> outs;        // by result: an argument that it writes, and may have given memory
  bool view = false;             // gives a view
  bool ours = false;             // launches kernels of its own, whatever other operators it calls
  bool copies = false;           // copy_, which may pass between host and device
  bool allocates = false;        // gives memory that it does not write
  bool rereads = false;          // reads its arguments once more after the host has waited
  bool records_stream = false;
  std::string collective;        // of c10d: its kind
};

// Null: the call is no operator, or touches no memory itself: what it calls is seen.
const Effects* effects_of(const at::RecordFunction& call);

// Declares what the schema of `name` omits: it writes these arguments, if argument `when` (or "") is true.
void hides_too(const std::string& name, const std::vector<std::string>& arguments, const std::string& when);

}  // namespace simgpu
