#include "rank.h"

#include <algorithm>

namespace order {
namespace {

// The virtual time at which an access touches memory.
int64_t effect_of(const Entry& entry, int64_t access) {
  const Operation& operation = *entry.operation;
  return operation.collective && access == kRead ? operation.moment.start : operation.moment.end;
}

std::vector<int64_t> integers(Reader& from) {
  std::vector<int64_t> numbers;
  for (size_t left = from.array(); left > 0; --left) numbers.push_back(from.integer());
  return numbers;
}

// `bytes`: those of an access's layout.
int64_t layout_of(std::string_view bytes, Layouts& layouts) {
  if (bytes == "\xc0") return kDense;
  Reader from(bytes);
  Reader::has(from.array(), 3, 3);
  const int64_t itemsize = from.integer();
  const std::vector<int64_t> sizes = integers(from), strides = integers(from);
  if (sizes.size() != strides.size()) throw Damaged("a layout has as many sizes as strides");
  bool negative = itemsize < 0;
  for (const auto* numbers : {&sizes, &strides})
    for (const int64_t number : *numbers) negative = negative || number < 0;
  if (negative) throw Damaged("a layout has a negative size or stride");
  return layouts.number(itemsize, sizes, strides);
}

}  // namespace

Rank::Rank(int64_t rank, Shared& shared)
    : number(rank),
      shared_(shared),
      rule_(shared.layouts),
      phase_{0, 0, shared.texts.of("init")},
      no_frames_(shared.texts.of("\x90")) {}

bool Rank::follow(Reader& from, Arrival& arrival) {
  size_t count = from.array();
  Reader::has(count, 1, SIZE_MAX);
  const int64_t code = from.integer();
  --count;
  switch (code) {
    case schema::kLaunch: launch(schema::Launch::read(from, count)); break;
    case schema::kRecord: record(schema::Record::read(from, count)); break;
    case schema::kWait: wait(schema::Wait::read(from, count)); break;
    case schema::kLabel: label(schema::Label::read(from, count)); break;
    case schema::kAlloc: alloc(schema::Alloc::read(from, count)); break;
    case schema::kFree: free(schema::Free::read(from, count)); break;
    case schema::kReuse: reuse(schema::Reuse::read(from, count)); break;
    case schema::kHostWait: host_wait(schema::HostWait::read(from, count)); break;
    case schema::kRecordStream: record_stream(schema::RecordStream::read(from, count)); break;
    case schema::kStack: stack(schema::Stack::read(from, count)); break;
    case schema::kGroup: group(schema::Group::read(from, count)); break;
    case schema::kBegin: begin(schema::Begin::read(from, count)); break;
    case schema::kPhase: {
      const auto phase = schema::Phase::read(from, count);
      phase_ = {phase.step, phase.micro_batch, shared_.texts.of(phase.name)};
      break;
    }
    case schema::kStreamName: {
      const auto named = schema::StreamName::read(from, count);
      names_[named.stream] = shared_.texts.of(named.name);
      break;
    }
    case schema::kCollective: arrival = begin_collective(schema::Collective::read(from, count)); return false;
    case schema::kOnward: throw Damaged("a part ends in the middle");
    default:  // orders nothing
      if (code < 0 || code >= schema::kCodes) throw Damaged("a record is of no known kind");
      for (; count > 0; --count) from.raw();
  }
  return true;
}

void Rank::begin(const schema::Begin::Values& record) {
  if (record.rank != number)
    throw Inconsistent("the trace given for rank " + std::to_string(number) + " is that of rank " +
                       std::to_string(record.rank));
  Reader from(record.info);
  bool mirrored = false;
  std::vector<int64_t> running;
  for (size_t left = from.map(); left > 0; --left) {
    const std::string_view name = from.raw(), value = from.raw();
    if (name == "\xa8mirrored") mirrored = value != "\xc0" && Reader(value).truth();
    if (name == "\xa7running") {
      Reader ranks(value);
      running = integers(ranks);
    }
  }
  if (mirrored) shared_.collectives.mirror(number, running);
}

void Rank::group(const schema::Group::Values& record) {
  Reader from(record.ranks);
  shared_.collectives.declare(record.group, integers(from));
}

void Rank::stack(const schema::Stack::Values& record) {
  Reader from(record.frames);
  for (size_t left = from.array(); left > 0; --left) {
    Reader::has(from.array(), 3, 3);
    from.text(), from.integer(), from.text();  // streamrace.trace.records.Frame
  }
  stacks_[record.id] = shared_.texts.of(record.frames);
}

int64_t Rank::live_state() const {
  return static_cast<int64_t>(blocks_.size() + freed_.size() + markers_.size()) + raced_;
}

// -- order ----------------------------------------------------------------------------------------

StreamClock& Rank::on(int64_t stream) {
  std::unique_ptr<StreamClock>& place = streams_[stream];
  if (!place) place = std::make_unique<StreamClock>(shared_.threads++);
  place->enqueue(host_);
  return *place;
}

void Rank::record(const schema::Record::Values& record) {
  const int64_t marker = record.marker;
  StreamClock& stream = on(record.stream);
  highest_marker_ = std::max(highest_marker_, marker);
  if ((*host_.known)[stream.thread] < stream.epoch) {  // else waiting for it never orders anything
    markers_.insert_or_assign(marker, Marker{stream.position(), stream.done});
    stream.unforgotten.emplace_back(stream.epoch, marker);
  }
}

// Null where all later work comes after the marker anyway.
const Rank::Marker* Rank::marker(int64_t marker) const {
  const auto found = markers_.find(marker);
  if (found != markers_.end()) return &found->second;
  if (marker > highest_marker_)
    throw Inconsistent("rank " + std::to_string(number) + " waits for marker " + std::to_string(marker) +
                       ", which no record has made");
  return nullptr;
}

void Rank::wait(const schema::Wait::Values& record) {
  const Marker* passed = marker(record.marker);
  if (passed == nullptr) return;
  StreamClock& stream = on(record.stream);
  stream.wait(passed->position);
  stream.done = std::max(stream.done, passed->done);
}

void Rank::host_wait(const schema::HostWait::Values& record) {
  const Marker* passed = marker(record.marker);
  if (passed == nullptr) return;
  host_.wait(passed->position);
  // What the host has waited for comes before all work that is still to be launched, also on streams that do not
  // exist yet: such markers can be forgotten. This bounds the memory for markers.
  for (const auto& [id, stream] : streams_) {
    auto& unforgotten = stream->unforgotten;
    const int64_t epoch = (*host_.known)[stream->thread];
    while (!unforgotten.empty() && unforgotten.front().first <= epoch) {
      markers_.erase(unforgotten.front().second);
      unforgotten.pop_front();
    }
  }
}

// -- work -----------------------------------------------------------------------------------------

template <typename Record>
Ref<Operation> Rank::operation(const Record& record) const {
  Ref<Operation> result = make<Operation>();
  result->moment = {record.op, phase_.step, phase_.micro_batch, phase_.name, record.start, record.end};
  result->kernel = shared_.texts.of(record.kernel);
  result->stream = record.stream;
  result->stack = record.stack;
  result->collective = std::is_same_v<Record, schema::Collective::Values>;
  if constexpr (std::is_same_v<Record, schema::Collective::Values>) result->issuer = record.issuer;
  return result;
}

void Rank::launch(const schema::Launch::Values& record) {
  StreamClock& stream = on(record.stream);
  ++stream.epoch;
  stream.done = record.end;
  if (record.kernel.starts_with(shared_.probes))
    return;  // a probe of the watch: if it races, so does the program's own use of what it reads
  const Ref<Operation> launched = operation(record);
  accesses(record.reads, stream, launched, false);
  accesses(record.writes, stream, launched, true);
}

// Read the inputs, in an epoch that the other members will learn of.
Arrival Rank::begin_collective(const schema::Collective::Values& record) {
  const Ref<Operation> work = operation(record);
  StreamClock& stream = on(work->stream);
  ++stream.epoch;
  accesses(record.reads, stream, work, false);
  return {work, shared_.texts[work->kernel], record.writes, record.group, record.number, record.root, stream.position()};
}

// Write the outputs, knowing what the members brought, in an epoch that they do not learn of.
void Rank::end_collective(const Arrival& arrival, const Known& known) {
  StreamClock& stream = *streams_.at(arrival.operation->stream);
  stream.learn(known);
  stream.done = arrival.operation->moment.end;
  accesses(arrival.writes, stream, arrival.operation, true);
}

void Rank::accesses(std::string_view bytes, StreamClock& stream, const Ref<Operation>& operation, bool write) {
  Reader from(bytes);
  for (size_t left = from.array(); left > 0; --left) {
    const size_t count = from.array();
    Reader::has(count, schema::Access::fields, schema::Access::fields);
    const auto touched = schema::Access::read(from, count);
    if (touched.lo >= touched.hi) continue;
    const int64_t layout = layout_of(touched.layout, shared_.layouts);
    access(touched.block, {{touched.lo, touched.hi, layout}, stream.thread, stream.epoch, operation}, stream, write);
  }
}

void Rank::access(int64_t number, Entry entry, const StreamClock& stream, bool write) {
  Block& touched = block(number);
  if (touched.inherited) check_former(number, touched, entry, stream, write);
  reads_.clear(), writes_.clear();
  if (write)
    rule_.write(touched, entry, stream, reads_, writes_);
  else
    rule_.read(touched, entry, stream, writes_);
  if (!reads_.empty() || !writes_.empty()) {
    const int64_t after = write ? kWrite : kRead;
    compare(number, touched, reads_, kRead, entry, after);
    compare(number, touched, writes_, kWrite, entry, after);
  }
}

// The new owner of memory that was freed touches it: is it ordered after what the former owners did?
void Rank::check_former(int64_t number, Block& block, const Entry& entry, const StreamClock& stream, bool write) {
  Entries reads, writes;
  rule_.met(*block.inherited, entry, stream, write, reads, writes);
  if (!reads.empty() || !writes.empty()) {
    const int64_t allocated = frames(block.inherited->stack);
    const int64_t after = write ? kWrite : kRead;
    compare(number, block, reads, kRead, entry, after, allocated);
    compare(number, block, writes, kWrite, entry, after, allocated);
  }
  if (block.inherited->empty()) block.inherited.reset();
}

// -- memory ---------------------------------------------------------------------------------------

Block& Rank::block(int64_t block) {
  std::unique_ptr<Block>& place = blocks_[block];
  if (!place) place = std::make_unique<Block>();
  return *place;
}

void Rank::alloc(const schema::Alloc::Values& record) {
  Block& allocated = block(record.block);
  allocated.owner = record.stream;
  allocated.owned = true;
}

void Rank::record_stream(const schema::RecordStream::Values& record) {
  std::vector<int64_t>& recorded = block(record.block).recorded;
  const int64_t stream = record.stream;
  if (std::find(recorded.begin(), recorded.end(), stream) == recorded.end()) recorded.push_back(stream);
}

void Rank::label(const schema::Label::Values& record) {
  Block& labelled = block(record.block);
  if (!labelled.labels) labelled.labels = std::make_unique<Labels>();
  labelled.labels->add({record.lo, record.hi, shared_.texts.of(record.kind), shared_.texts.of(record.name)});
}

void Rank::free(const schema::Free::Values& record) {
  const int64_t number = record.block;
  const auto found = blocks_.find(number);
  if (found == blocks_.end()) return;
  const std::unique_ptr<Block> block = std::move(found->second);
  blocks_.erase(found);
  if (record.quiet) {  // a later record names who gets the memory
    std::vector<Snapshot> awaited;
    for (const int64_t stream : block->recorded) awaited.push_back(on(stream).position());
    freed_.add(number, *block, awaited);
  } else if (block->owned && !(block->reads.empty() && block->writes.empty())) {
    check_free(number, *block, record.time);
  }
  if (!block->raced.empty()) {
    --raced_;
    settle(*block);
  }
}

// The next owner may do anything, so this counts as a write of all of it, in the order of the owner's stream and after
// the recorded ones.
void Rank::check_free(int64_t number, Block& block, int64_t time) {
  std::vector<StreamClock*> allowed{&on(block.owner)};
  for (const int64_t stream : block.recorded) allowed.push_back(&on(stream));
  int64_t effect = time;
  for (const StreamClock* stream : allowed) effect = std::max(effect, stream->done);
  const int64_t nothing = shared_.texts.of(""), text = shared_.texts.of("free");
  const Side free{text, kFree, name(block.owner), nothing, no_frames_};
  const Moment moment{-1, phase_.step, phase_.micro_batch, phase_.name, time, time};
  const auto check = [&](const AccessHistory& history, int64_t access) {
    Entries unordered;
    history.everything([&](const Entry& old, const Place&) {
      const auto waits = [&](const StreamClock* stream) { return ordered(old, *stream); };
      if (std::none_of(allowed.begin(), allowed.end(), waits)) unordered.push_back(old);
    });
    for (const Entry& old : unordered) count(number, block, old, access, free, moment, effect, old.lo, old.hi, -1);
  };
  check(block.reads, kRead);
  check(block.writes, kWrite);
}

void Rank::reuse(const schema::Reuse::Values& record) {
  const Handed handed{record.former, record.lo, record.hi, record.start, record.stack, record.last};
  const auto found = blocks_.find(record.block);
  if (found == blocks_.end()) return freed_.drop_last(handed);
  found->second->inherited = freed_.hand_out(handed, std::move(found->second->inherited), host_,
                                            shared_.layouts);
}

void Rank::settle() {
  for (const auto& [id, block] : blocks_) settle(*block);
}

void Rank::settle(Block& block) {
  if (!block.labels) return;
  for (const auto& [pair, lo, hi] : block.raced)
    block.labels->of(lo, hi, [&, pair = pair](int64_t kind, int64_t text) {
      shared_.reports.named.insert(shared_.reports.named.end(), {pair, kind, text});
    });
}

// -- reports --------------------------------------------------------------------------------------

int64_t Rank::name(int64_t stream) const {
  const auto found = names_.find(stream);
  return found != names_.end() ? found->second : shared_.texts.of("stream " + std::to_string(stream));
}

int64_t Rank::frames(int64_t stack) const {
  const auto found = stacks_.find(stack);
  return found != stacks_.end() ? found->second : no_frames_;
}

Side Rank::side(const Entry& entry, int64_t access) const {
  const Operation& operation = *entry.operation;
  const int64_t issuer = operation.collective && operation.issuer >= 0 ? name(operation.issuer) : shared_.texts.of("");
  return {operation.kernel, access, name(operation.stream), issuer, frames(operation.stack)};
}

// `allocated`: where the block was allocated, if `olds` are of former owners of its memory.
void Rank::compare(int64_t number, Block& block, const Entries& olds, int64_t before, const Entry& entry, int64_t after,
                   int64_t allocated) {
  if (olds.empty()) return;
  const Side second = side(entry, after);
  for (const Entry& old : olds)
    count(number, block, old, before, second, entry.operation->moment, effect_of(entry, after),
          std::max(old.lo, entry.lo), std::min(old.hi, entry.hi), allocated);
}

void Rank::count(int64_t number, Block& block, const Entry& old, int64_t access, const Side& second,
                 const Moment& moment, int64_t effect, int64_t lo, int64_t hi, int64_t allocated) {
  const int64_t pair = shared_.reports.number(side(old, access), second, allocated);
  shared_.reports.add(pair, this->number, number, lo, hi, effect - effect_of(old, access), old.operation->moment, moment);
  if (block.raced.empty()) ++raced_;
  block.raced.emplace(pair, lo, hi);
}

}  // namespace order
