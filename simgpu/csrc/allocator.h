// Device memory: a caching allocator as torch's (c10/cuda/CUDACachingAllocator.cpp) over memory of the host's.
//
// Blocks are cut from segments and handed out again per stream, without any wait: who frees memory while
// another stream still uses it, and has not said so with record_stream, shows it to the next owner. A free
// touches nothing. Only memory that was never handed out is poisoned (bytes 0xFF: NaN, or -1).
//
// In the trace a block is an allocation. That it was freed is told when the next owner first touches the
// memory, as nothing that happens before that can be harmed; a block that nobody gets again is never told freed.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>

#include <set>

#include "device.h"

namespace simgpu {

struct Chunk;

struct Ghost {  // a block whose memory was freed, and has not been touched by a next owner
  int64_t block;
  char *lo, *hi;
};

struct Block {
  int64_t number;
  size_t nbytes;
  char* data;
  int64_t stream;  // kHost: pinned memory of the host's
  Chunk* chunk = nullptr;
  c10::Storage alias;  // the same bytes as a CPU storage, which owns nothing
  std::vector<int64_t> recorded;
  std::vector<int64_t> ghosts;
};

// The block behind a storage, or null: memory that is not ours.
Block* block_of(const c10::StorageImpl* storage);
Block* block_of(const c10::DataPtr& data);
Block* pinned_block_of(const void* address);  // of any address within it

// Adds what the tensor covers. Freed blocks whose memory this is are told freed.
void add_access(const at::Tensor& tensor, Block& block, std::vector<Access>& accesses);
// The same elements as a CPU tensor over the block's memory. It keeps nothing alive, as a kernel does not.
at::Tensor alias(const at::Tensor& tensor, Block& block);
void record_stream(Block& block, int64_t stream);

c10::Allocator* device_allocator();
c10::Allocator* pinned_allocator();
void resize_storage(c10::StorageImpl* storage, size_t nbytes, int64_t site);
void empty_cache();
void watch_pinned_memory();  // the host's own use of it, from now on (copy.cpp)

struct MemoryStats {
  int64_t allocated = 0, allocated_peak = 0, reserved = 0, reserved_peak = 0, blocks = 0, allocations = 0, segments = 0;
};
MemoryStats& memory_stats();

}  // namespace simgpu
