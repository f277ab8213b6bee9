// A fake NCCL: ranks exchange bytes through files when a call is made, and the call is logged with its stream. A call
// waits for the other ranks on the host, where NCCL's own would wait on the stream.
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "log.h"
#include "meeting.h"
#include "reductions.h"

// As the runtime numbers streams (streams.cpp), with which libnccl is loaded.
extern "C" unsigned streamrace_number_of(void* stream) __attribute__((weak));

namespace {

enum Result { kSuccess = 0, kInvalidArgument = 4, kInvalidUsage = 5 };
constexpr int kSplitNoColor = -1;

struct UniqueId {
  char bytes[128];
};

struct Communicator {
  Meeting meeting;
};

std::mutex lock;
thread_local int depth = 0;  // of ncclGroupStart
thread_local std::vector<std::function<void()>> sends, receives;
std::map<int, double> scales;  // of operations that multiply first

unsigned number_of(void* stream) { return streamrace_number_of != nullptr ? streamrace_number_of(stream) : 0; }

Bytes message(const void* from, size_t count, int type) {
  auto* begin = static_cast<const char*>(from);
  return Bytes(begin, begin + count * size_of(type));
}

void write(void* into, const Bytes& bytes) {
  if (!bytes.empty()) memcpy(into, bytes.data(), bytes.size());
}

int refuse(const char* why) {
  fprintf(stderr, "streamrace: the fake NCCL %s\n", why);
  return kInvalidUsage;
}

void log_collective(const char* name, const Communicator* on, size_t count, int type, void* stream) {
  log_call("nccl %s count %zu type %d of %d stream %u", name, count, type, on->meeting.size(), number_of(stream));
}

// Within a group, all sends leave before anything is received: in a ring each rank does both.
int run_group() {
  for (auto* calls : {&sends, &receives}) {
    auto now = std::move(*calls);
    calls->clear();
    for (auto& call : now) call();
  }
  return kSuccess;
}

int run_or_queue(std::vector<std::function<void()>>& queue, std::function<void()> call) {
  queue.push_back(std::move(call));
  return depth > 0 ? kSuccess : run_group();
}

// Collectives in a group are run at its end, after the sends and in their order: all ranks have the same.
int collective(std::function<void()> call) { return run_or_queue(receives, std::move(call)); }

void reduce_into(const std::vector<Bytes>& all, size_t begin, size_t count, int type, int operation, void* into) {
  std::lock_guard<std::mutex> held(lock);
  auto scale = scales.find(operation);
  reduce(all, begin, count, type, scale == scales.end() ? operation : kSum, scale == scales.end() ? 1 : scale->second, into);
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  *version = 22907;
  return kSuccess;
}

const char* ncclGetErrorString(int error) { return error == kSuccess ? "no error" : "invalid usage"; }
const char* ncclGetLastError(void*) { return ""; }

int ncclGetUniqueId(UniqueId* id) {
  std::lock_guard<std::mutex> held(lock);
  memset(id, 0, sizeof *id);
  snprintf(id->bytes, sizeof id->bytes, "%s", new_meeting().c_str());
  return kSuccess;
}

int ncclCommInitRankConfig(Communicator** made, int size, UniqueId id, int rank, void*) {
  *made = new Communicator{Meeting(id.bytes, rank, size)};
  log_call("nccl communicator rank %d of %d", rank, size);
  (*made)->meeting.exchange({});
  return kSuccess;
}

int ncclCommInitRank(Communicator** made, int size, UniqueId id, int rank) { return ncclCommInitRankConfig(made, size, id, rank, nullptr); }

int ncclCommInitRankScalable(Communicator** made, int size, int rank, int, UniqueId* ids, void* config) {
  return ncclCommInitRankConfig(made, size, ids[0], rank, config);
}

int ncclCommSplit(Communicator* parent, int color, int key, Communicator** made, void*) {
  int mine[2] = {color, key};
  std::string name = parent->meeting.name() + "-" + std::to_string(parent->meeting.rounds()) + "-" + std::to_string(color);
  auto all = parent->meeting.exchange(message(mine, 2, kInt32));
  int rank = 0, size = 0;
  for (size_t other = 0; other < all.size(); ++other) {
    int its[2];
    memcpy(its, all[other].data(), sizeof its);
    if (its[0] != color) continue;
    ++size;
    bool before = its[1] < key || (its[1] == key && static_cast<int>(other) < parent->meeting.rank());
    rank += before;
  }
  *made = color == kSplitNoColor ? nullptr : new Communicator{Meeting(name, rank, size)};
  log_call("nccl communicator rank %d of %d", rank, size);
  return kSuccess;
}

// Communicators stay: the watchdog's threads may ask for one that is destroyed.
int ncclCommFinalize(Communicator*) { return kSuccess; }
int ncclCommDestroy(Communicator*) { return kSuccess; }
int ncclCommAbort(Communicator*) { return kSuccess; }

int ncclCommGetAsyncError(Communicator*, int* error) {
  *error = kSuccess;
  return kSuccess;
}

int ncclCommCount(Communicator* on, int* count) {
  *count = on->meeting.size();
  return kSuccess;
}

int ncclCommUserRank(Communicator* on, int* rank) {
  *rank = on->meeting.rank();
  return kSuccess;
}

int ncclCommRegister(Communicator*, void* buffer, size_t, void** handle) {
  *handle = buffer;
  return kSuccess;
}

int ncclCommDeregister(Communicator*, void*) { return kSuccess; }

int ncclRedOpCreatePreMulSum(int* operation, void* scalar, int type, int, Communicator*) {
  std::lock_guard<std::mutex> held(lock);
  double factor = 0;
  switch (type) {
    case kFloat: factor = *static_cast<float*>(scalar); break;
    case kDouble: factor = *static_cast<double*>(scalar); break;
    case kHalf: factor = *static_cast<Half*>(scalar); break;
    case kBfloat16: factor = *static_cast<Bfloat16*>(scalar); break;
    default: return refuse("multiplies no integers before a sum");
  }
  static int made = 1000;
  *operation = ++made;
  scales[made] = factor;
  return kSuccess;
}

// Kept, as a group may run the collective later.
int ncclRedOpDestroy(int, Communicator*) { return kSuccess; }

int ncclGroupStart() {
  ++depth;
  return kSuccess;
}

int ncclGroupEnd() { return --depth > 0 ? kSuccess : run_group(); }

int ncclAllReduce(const void* from, void* into, size_t count, int type, int operation, Communicator* on, void* stream) {
  log_collective("all_reduce", on, count, type, stream);
  return collective([=] { reduce_into(on->meeting.exchange(message(from, count, type)), 0, count, type, operation, into); });
}

int ncclReduce(const void* from, void* into, size_t count, int type, int operation, int root, Communicator* on, void* stream) {
  log_collective("reduce", on, count, type, stream);
  return collective([=] {
    auto all = on->meeting.exchange(message(from, count, type));
    if (on->meeting.rank() == root) reduce_into(all, 0, count, type, operation, into);
  });
}

int ncclReduceScatter(const void* from, void* into, size_t count, int type, int operation, Communicator* on, void* stream) {
  log_collective("reduce_scatter", on, count, type, stream);
  return collective([=] {
    auto all = on->meeting.exchange(message(from, count * on->meeting.size(), type));
    reduce_into(all, on->meeting.rank() * count, count, type, operation, into);
  });
}

int ncclAllGather(const void* from, void* into, size_t count, int type, Communicator* on, void* stream) {
  log_collective("all_gather", on, count, type, stream);
  return collective([=] {
    char* at = static_cast<char*>(into);
    for (auto& part : on->meeting.exchange(message(from, count, type))) {
      write(at, part);
      at += part.size();
    }
  });
}

int ncclBroadcast(const void* from, void* into, size_t count, int type, int root, Communicator* on, void* stream) {
  log_collective("broadcast", on, count, type, stream);
  return collective([=] {
    bool sends_it = on->meeting.rank() == root;
    write(into, on->meeting.exchange(sends_it ? message(from, count, type) : Bytes())[root]);
  });
}

int ncclBcast(void* at, size_t count, int type, int root, Communicator* on, void* stream) {
  return ncclBroadcast(at, at, count, type, root, on, stream);
}

int ncclAlltoAll(const void* from, void* into, size_t count, int type, Communicator* on, void* stream) {
  log_collective("all_to_all", on, count, type, stream);
  return collective([=] {
    auto all = on->meeting.exchange(message(from, count * on->meeting.size(), type));
    size_t bytes = count * size_of(type);
    for (size_t rank = 0; rank < all.size(); ++rank) {
      memcpy(static_cast<char*>(into) + rank * bytes, all[rank].data() + on->meeting.rank() * bytes, bytes);
    }
  });
}

int ncclSend(const void* from, size_t count, int type, int peer, Communicator* on, void* stream) {
  log_collective("send", on, count, type, stream);
  return run_or_queue(sends, [=] { on->meeting.send(peer, message(from, count, type)); });
}

int ncclRecv(void* into, size_t count, int type, int peer, Communicator* on, void* stream) {
  log_collective("recv", on, count, type, stream);
  return run_or_queue(receives, [=] { write(into, on->meeting.receive(peer)); });
}

}  // extern "C"
