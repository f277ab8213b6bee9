// Records as they stand in a trace's file (streamrace/trace/records.py), of the words from which streamrace/device/tracing.py makes them.
#pragma once

#include <cstdint>
#include <string>

namespace simgpu {

struct Packed {
  std::string bytes;           // msgpack, as its packer for Python writes it
  int64_t operations = 0;      // launches among the records
  int64_t op = -1;             // the last one's number
};

// Packs the records from word `at` on, until one of which the rest is known in Python: moves `at` there.
void pack(const int64_t* words, int64_t count, int64_t& at, Packed& packed);

}  // namespace simgpu
