// Finds which bytes of a new block were in which former block. Between a free and the next allocation memory has no owner,
// but the last owner's work on the streams may still touch it; so may the work of earlier owners, if the last one
// touched nothing. The trace records the last owner of each byte, and leaves the rest to the detector.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

namespace simgpu {

class Formers {
 public:
  void let_go(int64_t block, uintptr_t data, size_t nbytes);                     // `block` was freed
  void hand_out(int64_t block, uintptr_t data, size_t nbytes, int64_t site);     // a new block, allocated at `site`
  void take_away(uintptr_t data, size_t nbytes);                                 // memory that no block will get
  void keep(std::vector<std::pair<uintptr_t, size_t>> segments);                 // all other memory is taken away

 private:
  struct Former {
    int64_t block;
    uintptr_t data, end;  // the start of the block, and the end of this piece of it
  };
  std::map<uintptr_t, Former> pieces_;           // by start; disjoint
  std::unordered_map<int64_t, int64_t> count_;   // number of each block's pieces

  bool lose(int64_t block, int64_t pieces);  // returns whether it was the last
};

}  // namespace simgpu
