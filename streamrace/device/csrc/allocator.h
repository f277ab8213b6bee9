// Device memory: a caching allocator like torch's (c10/cuda/CUDACachingAllocator.cpp) over the host's memory.
//
// Blocks are cut from segments and handed out again per stream, without any wait: memory that is freed while another
// stream still uses it, without a record_stream, is exposed to its next owner. A free touches nothing. Only memory
// that was never handed out is poisoned (bytes 0xFF: NaN, or -1).
//
// In the trace a block is an allocation. A free is recorded when the program releases the memory, and touches nothing.
// When it is handed out again, the trace records which bytes of the new block were in which former block (kReuse).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <set>

#include "device.h"
#include "formers.h"
#include "versions.h"

namespace simgpu {

struct Chunk;

struct Block {
  int64_t number;
  size_t nbytes;
  char* data;
  int64_t stream;  // kHost: pinned memory of the host
  Chunk* chunk = nullptr;
  c10::Storage alias;  // the same bytes as a CPU storage that does not own them
  std::vector<int64_t> recorded;
  bool registered = false;  // pinned memory of the program (cudaHostRegister)
  int64_t shift = 0;        // in a pool of CUDA graphs: where in the trace's block it begins,
  int64_t part = -1;        // and the number of the allocation
  int64_t pool = 0;         // pinned memory: the pool of graphs that it is of; 0: the common one
  bool captured = false;    // pinned memory: a captured copy uses it
};

// Returns the block of a storage; null for memory of other allocators.
Block* block_of(const c10::StorageImpl* storage);
Block* block_of(const c10::DataPtr& data);
Block* pinned_block_of(const void* address);  // of any address within the block
Block* pinned_block_of(const at::Tensor& tensor);
// Work of `stream` uses the memory: the host allocator waits for it before it hands the memory out again, if it knows the
// memory by the tensor's own storage or by its start. It does not know parts that came from elsewhere (torch.from_numpy).
void record_event(const at::Tensor& host, Block& block, int64_t stream);

// Adds the bytes that the tensor covers.
void add_access(const at::Tensor& tensor, const Block& block, std::vector<Access>& accesses);
// Returns the same elements as a CPU tensor over the block's memory. Like a kernel, it keeps no memory alive.
at::Tensor alias(const at::Tensor& tensor, Block& block);
void record_stream(Block& block, int64_t stream);

c10::DeviceAllocator* device_allocator();
c10::Allocator* pinned_allocator();
char* memory_of_host(size_t size);  // `size`: a multiple of a page
Block* make_block(size_t nbytes, char* data, int64_t stream, int64_t site);  // `site`: call site of the allocation
int64_t blocks_made();  // number of blocks so far, which is the last block's number
void free_pinned(void* block);
void resize_storage(c10::StorageImpl* storage, size_t nbytes, int64_t site);
void watch_pinned_memory();  // watches the host's own accesses to it, from now on (host.cpp)

// Memory that CUDA graphs have by address (capture.h). From the first capture on the allocator knows blocks by number.
void follow_blocks();
void block_freed(const Block& block);
std::pair<const char*, int64_t> whereabouts(const Access& access);  // its address, and the part of a pool it belongs to
Block* block_at(const char* data);  // that has this byte now; null if none has
// Returns the accesses to the blocks that have these bytes now; none if the memory was given back.
std::optional<std::vector<Access>> owners_of(const char* data, int64_t nbytes);
void use_pool(int64_t pool, int64_t by);  // counts the graphs of a pool, whose memory is kept for them
void end_captured();                      // what captured streams used can be handed out again
void each_pinned_block(const std::function<void(Block&)>& look);
bool is_pinned_memory(const char* data);  // the allocator has it, in use or not

// The call site of this thread's allocations, if it is known already; otherwise the allocator determines it.
class Allocating {
 public:
  explicit Allocating(int64_t site) : before_(std::exchange(here(), site)) {}
  ~Allocating() { here() = before_; }
  static int64_t site();

 private:
  static int64_t& here();  // -1: unknown
  int64_t before_;
};

// The device's memory, and the part that a program may use: larger requests are refused as CUDA refuses them.
extern void (*out_of_memory)(int64_t device, int64_t wanted, int64_t total, int64_t free);  // called before the error
void size_memory(int index, int64_t total, int64_t allowed);  // of a device; negative: of each
void expand_segments(bool expandable);  // torch's setting of that name, for memory that is reserved from now on
void overdraw_memory();  // counts what does not fit (num_ooms) in place of an error
std::pair<size_t, size_t> memory_info(int index);             // free bytes, and all bytes
int device_of_memory(const void* data);

// Memory that passes from block to block (formers.cpp).
Formers& formers();
void record_free(const Block& block);                    // records the free of the block
void record_reuse(const Block& block, int64_t site);  // records the former owners of its bytes

}  // namespace simgpu
