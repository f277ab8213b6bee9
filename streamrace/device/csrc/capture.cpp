#include "capture.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "allocator.h"
#include "callsite.h"
#include "recorder.h"

namespace simgpu {

int64_t replayed_operation = -1;

Captures& captures() {
  static auto* one = new Captures;
  return *one;
}

// -- errors ---------------------------------------------------------------------------------------

void Captures::raise(int error) {
  static const std::map<int, std::pair<const char*, const char*>> all{
      {401, {"the operation cannot be performed in the present state", "cudaErrorIllegalState"}},
      {kUnsupported, {"operation not permitted when stream is capturing", "cudaErrorStreamCaptureUnsupported"}},
      {kInvalidated, {"operation failed due to a previous error during capture", "cudaErrorStreamCaptureInvalidated"}},
      {kMerge, {"operation would cause a merge of two separate capture sequences", "cudaErrorStreamCaptureMerge"}},
      {kUnjoined, {"capturing stream has unjoined work", "cudaErrorStreamCaptureUnjoined"}},
      {kIsolation, {"dependency created on uncaptured work in another stream", "cudaErrorStreamCaptureIsolation"}},
      {kCapturedEvent, {"operation not permitted on an event last recorded in a capturing stream", "cudaErrorCapturedEvent"}},
      {kWrongThread, {"attempt to terminate a thread-local capture sequence from another thread", "cudaErrorStreamCaptureWrongThread"}}};
  auto& [sentence, name] = all.at(error);
  TORCH_CHECK(false, "CUDA error: ", sentence, " (", name, ", ", error, ")");
}

void Captures::refuse(Graph& graph, int error) {
  if (graph.open && !graph.failed) graph.failed = error;
  raise(error);
}

void Captures::refuse_query() const {
  if (open_ == 0) return;
  for (auto& [stream, graph] : captured_)
    if (graph->mode == Graph::kGlobal || (graph->mode == Graph::kThreadLocal && graph->thread == std::this_thread::get_id()))
      refuse(*graph, kUnsupported);
}

void Captures::refuse_synchronize(int64_t stream) const {
  if (open_ == 0) return;
  if (stream < 0) refuse(*captured_.begin()->second, kUnsupported);
  if (Graph* graph = of(stream)) refuse(*graph, kUnsupported);
}

static void check_valid(const Graph& graph) {
  if (graph.failed) Captures::raise(kInvalidated);
}

// -- capture --------------------------------------------------------------------------------------

int64_t Captures::begin(int64_t stream, int64_t pool, Graph::Mode mode) {
  if (of(stream)) raise(401);
  recorder().refuse("a CUDA graph repeats work that is recorded once");
  follow_blocks();
  auto graph = std::make_shared<Graph>();
  graph->mode = mode;
  graph->number = ++made_;
  graph->origin = stream;
  graph->pool = pool;
  graph->tails[stream];
  graph->registered.insert(static_cast<Generator*>(default_generator().unsafeGetGeneratorImpl())->shared_state());
  captured_[stream] = graphs_[graph->number] = graph;
  ++open_;
  use_pool(pool, 1);
  return graph->number;
}

void Captures::leave(Graph& graph) {
  graph.open = false;
  --open_;
  for (auto place = captured_.begin(); place != captured_.end();)
    place = place->second.get() == &graph ? captured_.erase(place) : std::next(place);
  draws_.clear();
  end_captured();
}

int64_t Captures::end(int64_t number) {
  Graph& graph = at(number);
  if (graph.mode != Graph::kRelaxed && graph.thread != std::this_thread::get_id()) refuse(graph, kWrongThread);
  leave(graph);
  std::vector<bool> reached(graph.nodes.size());
  auto open = graph.tails.at(graph.origin);
  while (!open.empty()) {
    size_t node = open.back();
    open.pop_back();
    if (reached[node]) continue;
    reached[node] = true;
    auto& after = graph.nodes[node].after;
    open.insert(open.end(), after.begin(), after.end());
  }
  bool joined = true;
  for (size_t i = 0; i < graph.nodes.size(); ++i) joined &= graph.nodes[i].kind != Node::kLaunch || reached[i];
  if (graph.failed || !joined) {
    int error = graph.failed ? int{kInvalidated} : int{kUnjoined};
    drop(number);
    raise(error);
  }
  for (auto& [stream, tail] : graph.tails)
    if (stream != graph.origin) graph.hidden[stream] = device().hidden_stream();
  for (auto& node : graph.nodes) {
    if (node.kind != Node::kLaunch) continue;
    std::set<int64_t> parts;
    for (auto* places : {&node.reads, &node.writes})
      for (auto& place : *places) {
        users_.emplace(place.access.block, number);
        if (place.part >= 0 && parts.insert(place.part).second) trace().note(WordKind::kGraphPart, {number, graph.launches, place.part});
      }
    ++graph.launches;
  }
  return graph.launches;
}

void Captures::drop(int64_t number) {
  auto found = graphs_.find(number);
  if (found == graphs_.end()) return;
  Graph& graph = *found->second;
  if (graph.open) leave(graph);
  use_pool(graph.pool, -1);
  for (auto place = users_.begin(); place != users_.end();) place = place->second == number ? users_.erase(place) : std::next(place);
  graph.nodes.clear();  // events may keep the graph itself
  graphs_.erase(found);
}

void Captures::freed(int64_t block) {
  auto [from, to] = users_.equal_range(block);
  for (auto place = from; place != to; ++place) at(place->second).freed.insert(block);
  users_.erase(from, to);
  for (auto& [stream, graph] : captured_) graph->freed.insert(block);
}

void Captures::launch(Graph& graph, Node node, const Accesses& accesses) {
  check_valid(graph);
  device().host_launches();
  auto places = [](const std::vector<Access>& from, std::vector<Place>& to) {
    for (auto& access : from) {
      auto [data, part] = whereabouts(access);
      to.push_back({access, data, part});
    }
  };
  node.late = accesses.late;
  places(accesses.reads, node.reads);
  places(accesses.writes, node.writes);
  node.draws = std::exchange(draws_, {});
  auto& tail = graph.tails[node.stream];
  node.after = std::exchange(tail, {graph.nodes.size()});
  graph.nodes.push_back(std::move(node));
}

Marker Captures::record(Graph& graph, int64_t stream) {
  check_valid(graph);
  graph.markers.push_back(graph.tails[stream]);
  Node node{Node::kRecord, stream};
  node.marker = graph.markers.size() - 1;
  graph.nodes.push_back(std::move(node));
  return {static_cast<int64_t>(graph.markers.size()) - 1, {}, graph.shared_from_this()};
}

void Captures::wait(int64_t stream, const Marker& marker, int64_t site) {
  Graph* graph = of(stream);
  if (!marker.graph) refuse(*graph, kIsolation);
  Graph& other = *marker.graph;
  if (!other.open) graph ? refuse(*graph, kIsolation) : raise(kCapturedEvent);
  if (graph && graph != &other) {
    other.failed = kInvalidated;
    refuse(*graph, kMerge);
  }
  check_valid(other);
  captured_[stream] = other.shared_from_this();
  auto& awaited = other.markers[static_cast<size_t>(marker.number)];
  auto& tail = other.tails[stream];
  tail.insert(tail.end(), awaited.begin(), awaited.end());
  Node node{Node::kWait, stream};
  node.marker = static_cast<size_t>(marker.number);
  node.site = site;
  other.nodes.push_back(std::move(node));
}

at::Generator Captures::draw(Graph& graph, const std::shared_ptr<GeneratorState>& state, int64_t count) {
  TORCH_CHECK(graph.registered.count(state), "Attempt to increase offset for a CUDA generator not in capture mode.");
  auto numbers = at::detail::createCPUGenerator(state->seed);
  auto& offset = graph.drawn[state];
  draws_.push_back({state, offset, numbers});
  offset += offset_of(count);
  return numbers;
}

// -- replay ---------------------------------------------------------------------------------------

// Returns accesses to whoever has the memory now; adds what belongs to others, or to nobody, to the trace.
std::vector<Access> Captures::present(const Graph& graph, const Node& node, bool writes, int64_t site) const {
  auto& places = writes ? node.writes : node.reads;
  std::vector<Access> made;
  for (auto& place : places) made.push_back(place.access);
  if (graph.freed.empty()) return made;
  for (size_t i = 0; i < places.size(); ++i) {
    auto& [access, data, part] = places[i];
    if (!graph.freed.count(access.block) || !data) continue;
    auto owners = owners_of(data, access.hi - access.lo);
    int64_t owner = owners && !owners->empty() ? owners->front().block : -1;
    trace().note(WordKind::kDangling, {trace().ops + 1, node.kernel, site, access.block, access.lo, access.hi, owner, writes});
    TORCH_CHECK(owners, "CUDA error: an illegal memory access was encountered (a CUDA graph replays ", name_of(node.kernel),
                " on memory that was freed after the capture and given back)");
    if (owners->empty()) continue;
    bool whole = owners->size() == 1 && owners->front().hi - owners->front().lo == access.hi - access.lo;
    if (whole) owners->front().layout = access.layout;
    made[i] = owners->front();
    made.insert(made.end(), owners->begin() + 1, owners->end());
  }
  return made;
}

static Effect with_draws(Effect effect, int64_t op, std::vector<std::pair<at::Generator, at::Generator>> numbers) {
  return [effect = std::move(effect), op, numbers = std::move(numbers)]() mutable {
    for (auto& [used, fresh] : numbers) used.set_state(fresh.get_state());
    auto before = std::exchange(replayed_operation, op);
    effect();
    replayed_operation = before;
  };
}

int64_t Captures::replay(int64_t number, int64_t from, int64_t collective, int64_t site) {
  Graph& graph = at(number);
  OnDevice on(device().place_of(graph.origin).first);
  int64_t current = Device::current();
  TORCH_CHECK(!of(current), "streamrace: a CUDA graph within the capture of another one (a child graph) cannot be simulated: "
                            "capture its operators themselves");
  auto stream_of = [&](int64_t captured) { return captured == graph.origin ? current : graph.hidden.at(captured); };
  if (from < 0) {
    device().host_launches();
    if (!device().bound()) device().bind(device().chosen());
    if (graph.replayed_on >= 0 && graph.replayed_on != current)  // a graph does not overlap itself
      device().wait(current, graph.end, site);
    graph.met.assign(graph.markers.size(), {});
    trace().note(WordKind::kReplay, {number, trace().ops + 1, graph.launches, site});
  }
  for (size_t i = static_cast<size_t>(std::max(from, int64_t{0})); i < graph.nodes.size(); ++i) {
    auto& node = graph.nodes[i];
    int64_t stream = stream_of(node.stream), here = replayed_site(node.site, site);
    if (node.kind == Node::kRecord) {
      graph.met[node.marker] = device().record(stream);
    } else if (node.kind == Node::kWait) {
      if (auto& marker = graph.met[node.marker]; marker.number) device().wait(stream, marker, here);
    } else if (node.rendezvous && static_cast<int64_t>(i) != from) {
      return static_cast<int64_t>(i);
    } else {
      Accesses accesses{present(graph, node, false, here), present(graph, node, true, here), node.late};
      if (node.rendezvous) {
        Rendezvous met = *node.rendezvous;
        if (met.issuer >= 0 && (met.issuer == graph.origin || graph.hidden.count(met.issuer))) met.issuer = stream_of(met.issuer);
        device().enqueue(stream, node.kernel, accesses, met, collective, here);
        continue;
      }
      std::vector<std::pair<at::Generator, at::Generator>> numbers;
      for (auto& draw : node.draws) numbers.emplace_back(draw.numbers, numbers_at({draw.state->seed, draw.state->offset + draw.offset}));
      Effect effect = node.effect ? with_draws(node.effect, trace().ops + 1, std::move(numbers)) : nullptr;
      device().enqueue(stream, node.kernel, accesses, node.nominal, std::move(effect), here);
    }
  }
  for (auto& [state, offset] : graph.drawn) state->offset += offset;
  graph.end = device().record(current);
  graph.replayed_on = current;
  return static_cast<int64_t>(graph.nodes.size());
}

std::vector<std::pair<int64_t, int64_t>> Captures::streams(int64_t graph) const {
  return {at(graph).hidden.begin(), at(graph).hidden.end()};
}

}  // namespace simgpu
