// CUDA graphs: capture of what streams are given, and its replay (CUDA C++ Programming Guide, "CUDA Graphs"; CUDA Runtime
// API, "Stream Management", cudaStreamBeginCapture).
//
// While a stream is captured, its launches, records and waits become nodes of a graph: nothing reaches the virtual time or
// the trace. A stream that waits for an event of a capture becomes part of it. A replay issues the nodes again, in their
// order: those of the captured stream to the stream of the replay, those of each other stream to a hidden stream of the
// graph. So the trace of a replay is that of the same calls, without the host's time between them.
#pragma once

#include <set>
#include <thread>
#include <unordered_map>
#include <unordered_set>

#include "device.h"
#include "generator.h"

namespace simgpu {

// An access of a node, and the address by which the node has the memory. `part`: if the memory is of a graph's pool, the
// number of the allocation to which it belonged during the capture; else -1.
struct Place {
  Access access;
  const char* data;
  int64_t part;
};

// Random numbers that a node draws: where the generator then was, counted from the beginning of the graph.
struct Draw {
  std::shared_ptr<GeneratorState> state;
  uint64_t offset;
  at::Generator numbers;  // from which the node's effect draws
};

struct Node {
  enum Kind { kLaunch, kRecord, kWait } kind;
  int64_t stream;  // that was captured
  int64_t kernel = 0, nominal = 0, site = 0;
  std::vector<Place> reads, writes;
  bool late = false;  // these are bounds: each replay reports what it accesses
  Effect effect;
  std::vector<Draw> draws;
  std::shared_ptr<Rendezvous> rendezvous;  // of a collective
  size_t marker = 0;                 // kRecord, kWait: which of the graph's markers
  std::vector<size_t> after;         // kLaunch: the launches that it follows directly
};

// CUDA's errors (cudaError_t, driver_types.h).
enum { kUnsupported = 900, kInvalidated, kMerge, kUnmatched, kUnjoined, kIsolation, kImplicit, kCapturedEvent, kWrongThread };

struct Graph : std::enable_shared_from_this<Graph> {
  enum Mode { kGlobal, kThreadLocal, kRelaxed } mode;
  int64_t number, origin, pool;
  std::thread::id thread = std::this_thread::get_id();
  int failed = 0;     // the CUDA error by which the capture became invalid
  bool open = true;   // it is still captured
  std::vector<Node> nodes;
  std::map<int64_t, std::vector<size_t>> tails;  // by captured stream: its last launches
  std::vector<std::vector<size_t>> markers;      // the same at each record
  std::map<int64_t, int64_t> hidden;             // by captured stream: the stream that has its nodes in a replay
  std::set<std::shared_ptr<GeneratorState>> registered;           // generators from which it may draw
  std::map<std::shared_ptr<GeneratorState>, uint64_t> drawn;       // by how much a replay advances them
  std::unordered_set<int64_t> freed;  // blocks of its accesses that are freed
  int64_t launches = 0;
  Marker end;                // of its last replay,
  int64_t replayed_on = -1;  // and its stream
  std::vector<Marker> met;   // the markers of the replay that goes on
};
using GraphPtr = std::shared_ptr<Graph>;

class Captures {
 public:
  bool any() const { return open_ > 0; }  // a stream is captured
  Graph* of(int64_t stream) const {       // null: it is not captured
    if (open_ == 0) return nullptr;
    auto found = captured_.find(stream);
    return found == captured_.end() ? nullptr : found->second.get();
  }
  int64_t pool_of(int64_t stream) const {  // of its allocations; 0: the common one
    Graph* graph = of(stream);
    return graph ? graph->pool : 0;
  }

  // Raise CUDA's errors. `begin` returns the graph's number, `end` that of its launches.
  int64_t begin(int64_t stream, int64_t pool, Graph::Mode mode);
  int64_t end(int64_t graph);
  // Issues the nodes of a replay from node `from` on, up to the next collective; returns its position, or the number of
  // nodes: all are issued. `from` negative: it begins; else this is a collective, the number `number` of its group.
  int64_t replay(int64_t graph, int64_t from, int64_t number, int64_t site);
  void drop(int64_t graph);

  // What the captured streams are given.
  void launch(Graph& graph, Node node, const Accesses& accesses);
  Marker record(Graph& graph, int64_t stream);
  void wait(int64_t stream, const Marker& marker, int64_t site);  // the stream or the marker is captured
  at::Generator draw(Graph& graph, const std::shared_ptr<GeneratorState>& state, int64_t count);

  // Calls that no capture allows: they make it invalid, and raise CUDA's error.
  void refuse_wait(const Marker& marker) const {  // of the host, or its query, for a captured marker
    if (marker.graph) refuse(*marker.graph, kCapturedEvent);
  }
  void refuse_query() const;                           // of anything, if the mode of a capture forbids it
  void refuse_synchronize(int64_t stream = -1) const;  // of a captured stream; negative: of the whole device
  [[noreturn]] static void refuse(Graph& graph, int error);
  [[noreturn]] static void raise(int error);

  void freed(int64_t block);  // memory that graphs may have by address
  void let_draw(int64_t graph, const std::shared_ptr<GeneratorState>& state) { at(graph).registered.insert(state); }
  std::vector<std::pair<int64_t, int64_t>> streams(int64_t graph) const;  // captured, hidden

 private:
  int64_t open_ = 0, made_ = 0;
  std::map<int64_t, GraphPtr> captured_, graphs_;  // by stream; by number
  std::unordered_multimap<int64_t, int64_t> users_;  // by block: graphs
  std::vector<Draw> draws_;  // of the launch that comes next

  Graph& at(int64_t graph) const { return *graphs_.at(graph); }
  void leave(Graph& graph);
  std::vector<Access> present(const Graph& graph, const Node& node, bool writes, int64_t site) const;
};

Captures& captures();

// The operation that a replay runs; -1: the work that runs is no node. Effects note what they read under its number.
extern int64_t replayed_operation;

}  // namespace simgpu
