// Packs records as a trace's file holds them (streamrace/trace/records.py), from the device's words.
#pragma once

#include <cstdint>
#include <string>

namespace simgpu {

struct Packed {
  std::string bytes;           // msgpack, as streamrace/trace/encoding.py would write it
  int64_t operations = 0;      // launches and collectives among the records
  int64_t op = -1;             // the last one's number
};

// Packs the records from word `at` on, until one that only Python can complete: moves `at` there.
void pack(const int64_t* words, int64_t count, int64_t& at, Packed& packed);

}  // namespace simgpu
