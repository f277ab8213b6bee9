// Part of allocator.cpp: expandable segments, as in CUDACachingAllocator.cpp. A stream has one for small and one for large
// allocations: a range of addresses of more than the device's memory, whose pages get memory (are mapped) when a chunk
// grows into them, and lose it when cached memory is given back. Pools of CUDA graphs have ordinary segments.
#pragma once

size_t page_of(const Segment& segment) { return segment.small ? kSmallSegment : kMiddleSegment; }

// Splits what is behind the first `size` bytes of a chunk off.
Chunk* split(Chunk& chunk, size_t size) {
  auto* tail = new Chunk{chunk.data + size, chunk.size - size, chunk.stream, chunk.segment, true, chunk.mapped, &chunk, chunk.behind};
  if (tail->behind) tail->behind->before = tail;
  chunk.behind = tail;
  chunk.size = size;
  return tail;
}

// Returns a free chunk from which `size` bytes of addresses are free: before it nothing, or what is mapped already.
Chunk* addresses_for(Memory& memory, size_t size, int64_t stream, bool small) {
  for (Chunk* chunk : memory.unmapped[{stream, small}]) {
    if (chunk->before && chunk->before->free) chunk = chunk->before;
    size_t room = 0;
    for (Chunk* next = chunk; room < size && next && next->free; next = next->behind) room += next->size;
    if (room >= size) return chunk;
  }
  size_t page = small ? kSmallSegment : kMiddleSegment;
  auto total = static_cast<size_t>(std::min(memory.total, int64_t{1} << 42));
  size_t whole = (total + total / 8 + page - 1) / page * page;
  char* data = addresses(whole);
  auto* segment = new Segment{&memory, ++state().segments_made, data, whole, data, small, true};
  auto* chunk = new Chunk{data, whole, stream, segment, true, false};
  segment->first = chunk;
  state().segments[data] = segment;
  unmapped_of(*chunk).insert(chunk);
  return chunk;
}

// Maps the first `size` bytes of a chunk, in whole pages. Returns whether the device has the memory.
bool map(Memory& memory, Chunk*& chunk, size_t size, bool anyway) {
  size_t page = page_of(*chunk->segment), bytes = (size + page - 1) / page * page;
  if (!anyway && sum(memory.stats.reserved_bytes) > memory.total - static_cast<int64_t>(bytes)) return false;
  unmapped_of(*chunk).erase(chunk);
  if (bytes < chunk->size) {
    Chunk* rest = split(*chunk, bytes);
    unmapped_of(*rest).insert(rest);
  }
  chunk->mapped = true;
  count(memory.stats.reserved_bytes, *chunk, bytes);
  ++memory.stats.num_device_alloc;
  merge_with_neighbours(chunk);
  pool_of(*chunk).insert(chunk);
  return true;
}

Chunk* expand(Memory& memory, size_t size, int64_t stream, bool small, bool anyway) {
  Chunk* chunk = addresses_for(memory, size, stream, small);
  if (!chunk->mapped && !map(memory, chunk, std::min(chunk->size, size), anyway)) return nullptr;
  while (chunk->size < size) {
    Chunk* next = chunk->behind;
    if (!map(memory, next, std::min(size - chunk->size, next->size), anyway)) return nullptr;
    chunk = next;
  }
  pool_of(*chunk).erase(chunk);
  return chunk;
}

// Of free chunks that are large enough: not the one at the end of a segment, which can grow, where another one is.
Pool::iterator best_to_expand(Pool& pool, Pool::iterator place) {
  if (!state().expandable) {  // any more
    while (place != pool.end() && (*place)->segment->expandable) ++place;
    return place;
  }
  auto room = [](const Chunk* chunk) { return chunk->size + (chunk->behind && !chunk->behind->mapped ? chunk->behind->size : 0); };
  if (place == pool.end()) return place;
  for (auto next = std::next(place); (*place)->segment->expandable && next != pool.end() && room(*next) < room(*place);) place = next++;
  return place;
}

// Gives the pages back that free chunks have whole. The host waits for the chunk's stream. No program may rely on that, so
// it is no order. Pending work may use them none the less: the range keeps its bytes.
void unmap(Memory& memory) {
  std::vector<Chunk*> chunks;
  for (auto& [key, pool] : memory.pools)
    for (Chunk* chunk : pool)
      if (chunk->segment->expandable) chunks.push_back(chunk);
  std::set<int64_t> streams;
  for (Chunk* chunk : chunks) {
    size_t page = page_of(*chunk->segment), begins = chunk->data - chunk->segment->data;
    size_t from = (begins + page - 1) / page * page, to = (begins + chunk->size) / page * page;
    if (from >= to) continue;
    pool_of(*chunk).erase(chunk);
    if (from > begins) {
      Chunk* rest = split(*chunk, from - begins);
      pool_of(*chunk).insert(chunk);
      chunk = rest;
    }
    if (chunk->size > to - from) {
      Chunk* rest = split(*chunk, to - from);
      pool_of(*rest).insert(rest);
    }
    formers().take_away(reinterpret_cast<uintptr_t>(chunk->data), chunk->size);
    probes().given_back(chunk->data, chunk->data + chunk->size);
    count(memory.stats.reserved_bytes, *chunk, chunk->size, true);
    ++memory.stats.num_device_free;
    chunk->mapped = false;
    merge_with_neighbours(chunk);
    unmapped_of(*chunk).insert(chunk);
    streams.insert(chunk->stream);
  }
  for (int64_t stream : streams)
    if (!captures().any()) device().meet(stream);
}
