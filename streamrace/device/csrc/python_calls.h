// Counts the calls of the program's own Python functions, as the measure of what the host does between two launches.
#pragma once

#include <cstdint>

namespace simgpu {

// What the functions of a file are for the count.
enum class Counted : int {
  kYes,      // they count
  kPasses,   // they do not, and what they call counts
  kNothing,  // neither counts: what the device itself does
  kProgram,  // they do not; they run the program, so what they call counts again
};

// Counts from now on. The first of `count` prefixes with which the path of a file begins decides; a file of none counts.
void count_calls(const char* const* prefixes, const int* kinds, int count);

// Returns this thread's calls since it last asked; 0 the first time, as a program's start is no part of its training.
int64_t taken_calls();

}  // namespace simgpu
