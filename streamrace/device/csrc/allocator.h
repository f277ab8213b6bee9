// Device memory: a caching allocator as torch's (c10/cuda/CUDACachingAllocator.cpp) over memory of the host's.
//
// Blocks are cut from segments and handed out again per stream, without any wait: who frees memory while
// another stream still uses it, and has not said so with record_stream, shows it to the next owner. A free
// touches nothing. Only memory that was never handed out is poisoned (bytes 0xFF: NaN, or -1).
//
// In the trace a block is an allocation. A free is recorded when the program lets go, and touches nothing. When the
// memory is handed out again, the trace records which bytes of the new block were which of the former one (WordKind::kReuse).
#pragma once

#include <ATen/core/Tensor.h>

#include <set>

#include "device.h"
#include "versions.h"

namespace simgpu {

struct Chunk;

struct Block {
  int64_t number;
  size_t nbytes;
  char* data;
  int64_t stream;  // kHost: pinned memory of the host's
  Chunk* chunk = nullptr;
  c10::Storage alias;  // the same bytes as a CPU storage, which owns nothing
  std::vector<int64_t> recorded;
  bool registered = false;  // pinned memory of the program's own (cudaHostRegister)
};

// The block behind a storage, or null: memory that is not ours.
Block* block_of(const c10::StorageImpl* storage);
Block* block_of(const c10::DataPtr& data);
Block* pinned_block_of(const void* address);  // of any address within it
Block* pinned_block_of(const at::Tensor& tensor);
// Work of `stream` uses it: the host allocator waits for that before it hands the memory out again, where it knows it, by
// the tensor's own storage or by where it begins. A part that came from elsewhere (torch.from_numpy) it does not.
void record_event(const at::Tensor& host, Block& block, int64_t stream);

// Adds what the tensor covers.
void add_access(const at::Tensor& tensor, const Block& block, std::vector<Access>& accesses);
// The same elements as a CPU tensor over the block's memory. It keeps nothing alive, as a kernel does not.
at::Tensor alias(const at::Tensor& tensor, Block& block);
void record_stream(Block& block, int64_t stream);

c10::DeviceAllocator* device_allocator();
c10::Allocator* pinned_allocator();
char* memory_of_host(size_t size);  // of a multiple of a page
Block* make_block(size_t nbytes, char* data, int64_t stream, int64_t site);  // `site`: of what allocates
int64_t blocks_made();  // so far; the last one's number
void free_pinned(void* block);
void resize_storage(c10::StorageImpl* storage, size_t nbytes, int64_t site);
void watch_pinned_memory();  // the host's own use of it, from now on (host.cpp)

// The call site of what allocates in this thread, where it is known already; else the allocator looks itself.
class Allocating {
 public:
  explicit Allocating(int64_t site) : before_(std::exchange(here(), site)) {}
  ~Allocating() { here() = before_; }
  static int64_t site();

 private:
  static int64_t& here();  // -1: not known
  int64_t before_;
};

// What the device has, and what a program may take of it: beyond that it is refused as CUDA refuses it.
extern void (*out_of_memory)(int64_t device, int64_t wanted, int64_t total, int64_t free);  // is told before the error
void size_memory(int64_t total, int64_t allowed);
std::pair<size_t, size_t> memory_info();  // free, and in all

// Memory that passes from block to block (reuse.cpp).
void let_go(const Block& block);                   // nobody has touched it since
void hand_out(const Block& block, int64_t site);   // whose bytes were others' before
void take_away(char* data, size_t size);           // there is no such memory any more

}  // namespace simgpu
