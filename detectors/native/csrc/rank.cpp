#include "rank.h"

#include <algorithm>

namespace order {
namespace {

// The virtual time at which an access touches memory.
int64_t effect_of(const Entry& entry, const char* access) {
  const Operation& operation = *entry.operation;
  return operation.collective && access[0] == 'r' ? operation.start : operation.end;
}

int64_t layout_of(PyObject* layout, Layouts& layouts) {
  PyObject *sizes = item(layout, 1), *strides = item(layout, 2);
  const Py_ssize_t dims = length(sizes);
  if (length(strides) != dims) complain(PyExc_ValueError, "a layout has as many sizes as strides");
  std::vector<int64_t> size, stride;
  const int64_t itemsize = field(layout, 0);
  bool negative = itemsize < 0;
  for (Py_ssize_t at = 0; at < dims; ++at) {
    size.push_back(field(sizes, at)), stride.push_back(field(strides, at));
    negative = negative || size.back() < 0 || stride.back() < 0;
  }
  if (negative) complain(PyExc_ValueError, "a layout has a negative size or stride");
  return layouts.number(itemsize, size, stride);
}

}  // namespace

Rank::Rank(int64_t rank, Shared& shared)
    : number(rank),
      shared_(shared),
      rule_(shared.layouts),
      phase_(make<PhaseOf>(shared.parts[kFirstPhase])),
      no_frames_(Object::own(Py_BuildValue("()"))) {}

bool Rank::follow(PyObject* record, Arrival& arrival) {
  const PyObject* type = record->type;
  const auto is = [&](schema::Code code) { return type == shared_.part(code); };
  if (is(schema::kLaunch)) launch(record);
  else if (is(schema::kRecord)) this->record(record);
  else if (is(schema::kWait)) wait(record);
  else if (is(schema::kLabel)) label(record);
  else if (is(schema::kAlloc)) alloc(record);
  else if (is(schema::kFree)) free(record);
  else if (is(schema::kReuse)) reuse(record);
  else if (is(schema::kHostWait)) host_wait(record);
  else if (is(schema::kRecordStream)) record_stream(record);
  else if (is(schema::kPhase)) phase_ = make<PhaseOf>(Object::share(record));
  else if (is(schema::kStack)) stacks_[field(record, schema::Stack::id)] = Object::share(item(record, schema::Stack::frames));
  else if (is(schema::kStreamName)) names_[field(record, schema::StreamName::stream)] = Object::share(item(record, schema::StreamName::name));
  else if (is(schema::kGroup)) {
    shared_.collectives.declare(field(record, schema::Group::group), item(record, schema::Group::ranks),
                                shared_.part(kTraceError));
  }
  else if (is(schema::kBegin)) begin(record);
  else if (is(schema::kCollective)) {
    arrival = begin_collective(record);
    return false;
  }
  return true;  // the rest orders nothing
}

void Rank::begin(PyObject* record) {
  const int64_t rank = field(record, schema::Begin::rank);
  if (rank != number) {
    PyErr_Format(shared_.part(kTraceError), "the trace given for rank %lld is that of rank %lld",
                 static_cast<long long>(number), static_cast<long long>(rank));
    throw Raised();
  }
  const Object get = Object::own(PyObject_GetAttrString(item(record, schema::Begin::info), "get"));
  const Object key = Object::own(PyUnicode_FromString("mirrored"));
  const Object mirrored = Object::own(PyObject_CallFunctionObjArgs(get.get(), key.get(), nullptr));
  if (truth(PyObject_IsTrue(mirrored.get()))) shared_.collectives.mirror(number);
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

void Rank::record(PyObject* record) {
  const int64_t marker = field(record, schema::Record::marker);
  StreamClock& stream = on(field(record, schema::Record::stream));
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
  if (marker > highest_marker_) {
    PyErr_Format(shared_.part(kTraceError), "rank %lld waits for marker %lld, which no record has made",
                 static_cast<long long>(number), static_cast<long long>(marker));
    throw Raised();
  }
  return nullptr;
}

void Rank::wait(PyObject* record) {
  const Marker* passed = marker(field(record, schema::Wait::marker));
  if (passed == nullptr) return;
  StreamClock& stream = on(field(record, schema::Wait::stream));
  stream.wait(passed->position);
  stream.done = std::max(stream.done, passed->done);
}

void Rank::host_wait(PyObject* record) {
  const Marker* passed = marker(field(record, schema::HostWait::marker));
  if (passed == nullptr) return;
  host_.wait(passed->position);
  // What the host has waited for comes before all work that is still to be launched, also on streams that do not
  // exist yet: such markers can be forgotten. This bounds the memory for markers.
  for (const auto& [each, stream] : streams_) {
    auto& unforgotten = stream->unforgotten;
    const int64_t epoch = (*host_.known)[stream->thread];
    while (!unforgotten.empty() && unforgotten.front().first <= epoch) {
      markers_.erase(unforgotten.front().second);
      unforgotten.pop_front();
    }
  }
}

// -- work -----------------------------------------------------------------------------------------

Ref<Operation> Rank::operation(PyObject* record, bool collective) const {
  // A collective begins with the same fields.
  static_assert(int{schema::Launch::end} == schema::Collective::end);
  Ref<Operation> made = make<Operation>();
  made->op = field(record, schema::Launch::op);
  made->stream = field(record, schema::Launch::stream);
  made->kernel = Object::share(item(record, schema::Launch::kernel));
  made->stack = field(record, schema::Launch::stack);
  made->start = field(record, schema::Launch::start);
  made->end = field(record, schema::Launch::end);
  made->issuer = collective ? field(record, schema::Collective::issuer) : -1;
  made->collective = collective;
  made->phase = phase_;
  return made;
}

void Rank::launch(PyObject* record) {
  const Ref<Operation> made = operation(record, false);
  StreamClock& stream = on(made->stream);
  ++stream.epoch;
  stream.done = made->end;
  constexpr Py_ssize_t kWhole = INT64_MAX;
  if (truth(static_cast<int>(PyUnicode_Tailmatch(made->kernel.get(), shared_.part(kProbes), 0, kWhole, -1))))
    return;  // a probe of the watch: if it races, so does the program's own use of what it reads
  accesses(item(record, schema::Launch::reads), stream, made, false);
  accesses(item(record, schema::Launch::writes), stream, made, true);
}

// Read the inputs, in an epoch that the other members will learn of.
Arrival Rank::begin_collective(PyObject* record) {
  const Ref<Operation> made = operation(record, true);
  StreamClock& stream = on(made->stream);
  ++stream.epoch;
  accesses(item(record, schema::Collective::reads), stream, made, false);
  return {made, Object::share(item(record, schema::Collective::writes)), field(record, schema::Collective::group), field(record, schema::Collective::number), field(record, schema::Collective::root),
          stream.position()};
}

// Write the outputs, knowing what the members brought, in an epoch that they do not learn of.
void Rank::end_collective(const Arrival& arrival, const Known& known) {
  StreamClock& stream = *streams_.at(arrival.operation->stream);
  stream.learn(known);
  stream.done = arrival.operation->end;
  accesses(arrival.writes.get(), stream, arrival.operation, true);
}

void Rank::accesses(PyObject* accesses, StreamClock& stream, const Ref<Operation>& operation, bool write) {
  const Py_ssize_t count = length(accesses);
  for (Py_ssize_t at = 0; at < count; ++at) {
    PyObject* one = item(accesses, at);
    const int64_t lo = field(one, schema::Access::lo), hi = field(one, schema::Access::hi);
    if (lo >= hi) continue;
    PyObject* layout = item(one, schema::Access::layout);
    const int64_t number = layout == shared_.none() ? kDense : layout_of(layout, shared_.layouts);
    access(field(one, schema::Access::block), {{lo, hi, number}, stream.thread, stream.epoch, operation}, stream, write);
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
    const char* after = write ? "write" : "read";
    compare(number, touched, reads_, "read", entry, after);
    compare(number, touched, writes_, "write", entry, after);
  }
}

// The new owner of memory that was freed touches it: is it ordered after what the former owners did?
void Rank::check_former(int64_t number, Block& block, const Entry& entry, const StreamClock& stream, bool write) {
  Entries reads, writes;
  rule_.met(*block.inherited, entry, stream, write, reads, writes);
  if (!reads.empty() || !writes.empty()) {
    const Object got = frames(block.inherited->stack);
    const char* after = write ? "write" : "read";
    compare(number, block, reads, "read", entry, after, &got);
    compare(number, block, writes, "write", entry, after, &got);
  }
  if (block.inherited->empty()) block.inherited.reset();
}

// -- memory ---------------------------------------------------------------------------------------

Block& Rank::block(int64_t block) {
  std::unique_ptr<Block>& place = blocks_[block];
  if (!place) place = std::make_unique<Block>();
  return *place;
}

void Rank::alloc(PyObject* record) {
  Block& made = block(field(record, schema::Alloc::block));
  made.owner = field(record, schema::Alloc::stream);
  made.owned = true;
}

void Rank::record_stream(PyObject* record) {
  std::vector<int64_t>& recorded = block(field(record, schema::RecordStream::block)).recorded;
  const int64_t stream = field(record, schema::RecordStream::stream);
  if (std::find(recorded.begin(), recorded.end(), stream) == recorded.end()) recorded.push_back(stream);
}

void Rank::label(PyObject* record) {
  Block& labelled = block(field(record, schema::Label::block));
  if (!labelled.labels) labelled.labels = std::make_unique<Labels>();
  labelled.labels->add({field(record, schema::Label::lo), field(record, schema::Label::hi), shared_.texts.of(item(record, schema::Label::kind)),
                        shared_.texts.of(item(record, schema::Label::name))});
}

void Rank::free(PyObject* record) {
  const int64_t number = field(record, schema::Free::block);
  const auto found = blocks_.find(number);
  if (found == blocks_.end()) return;
  const std::unique_ptr<Block> block = std::move(found->second);
  blocks_.erase(found);
  const int64_t time = field(record, schema::Free::time);
  if (truth(PyObject_IsTrue(item(record, schema::Free::quiet)))) {  // quiet: a later record names who gets the memory
    std::vector<Snapshot> awaited;
    for (const int64_t stream : block->recorded) awaited.push_back(on(stream).position());
    freed_.add(number, *block, awaited);
  } else if (block->owned && !(block->reads.empty() && block->writes.empty())) {
    check_free(number, *block, time);
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
  const auto check = [&](const AccessHistory& history, const char* access) {
    Entries unordered;
    history.everything([&](const Entry& old, const Place&) {
      const auto waits = [&](const StreamClock* stream) { return ordered(old, *stream); };
      if (std::none_of(allowed.begin(), allowed.end(), waits)) unordered.push_back(old);
    });
    for (const Entry& old : unordered) {
      const Object second = Object::own(Py_BuildValue("(ssOsOOOLL)", "free", "free", name(block.owner).get(), "",
                                                      no_frames_.get(), shared_.none(), phase_->record.get(),
                                                      static_cast<long long>(time), static_cast<long long>(time)));
      count(number, block, old, access, second, effect, old.lo, old.hi, nullptr);
    }
  };
  check(block.reads, "read");
  check(block.writes, "write");
}

void Rank::reuse(PyObject* record) {
  const Handed handed{field(record, schema::Reuse::former), field(record, schema::Reuse::lo), field(record, schema::Reuse::hi), field(record, schema::Reuse::start), field(record, schema::Reuse::stack),
                      truth(PyObject_IsTrue(item(record, schema::Reuse::last)))};
  const auto found = blocks_.find(field(record, schema::Reuse::block));
  if (found == blocks_.end()) return freed_.drop_last(handed);
  found->second->inherited = freed_.hand_out(handed, std::move(found->second->inherited), host_,
                                            shared_.layouts);
}

void Rank::settle() {
  for (const auto& [each, block] : blocks_) settle(*block);
}

void Rank::settle(Block& block) {
  if (!block.labels) return;
  for (const auto& [race, lo, hi] : block.raced) {
    const Object names = Object::own(PyObject_GetAttrString(race, "names"));
    block.labels->of(lo, hi, [&](int64_t kind, int64_t text) {
      const Object made = Object::own(PyObject_CallFunctionObjArgs(
          shared_.part(kName), shared_.texts.name(kind), shared_.texts.name(text), nullptr));
      if (PySet_Add(names.get(), made.get()) < 0) throw Raised();
    });
  }
}

// -- reports --------------------------------------------------------------------------------------

Object Rank::name(int64_t stream) const {
  const auto found = names_.find(stream);
  if (found != names_.end()) return found->second;
  return Object::own(PyUnicode_FromFormat("stream %lld", static_cast<long long>(stream)));
}

Object Rank::frames(int64_t stack) const {
  const auto found = stacks_.find(stack);
  return found != stacks_.end() ? found->second : no_frames_;
}

Object Rank::side(const Entry& entry, const char* access) const {
  const Operation& operation = *entry.operation;
  const Object issuer = operation.collective && operation.issuer >= 0 ? name(operation.issuer)
                                                                       : Object::own(PyUnicode_FromString(""));
  return Object::own(Py_BuildValue("(OsOOOLOLL)", operation.kernel.get(), access, name(operation.stream).get(),
                                   issuer.get(), frames(operation.stack).get(),
                                   static_cast<long long>(operation.op), operation.phase->record.get(),
                                   static_cast<long long>(operation.start), static_cast<long long>(operation.end)));
}

// `got`: where the block was allocated, if `olds` are of former owners of its memory.
void Rank::compare(int64_t number, Block& block, const Entries& olds, const char* before, const Entry& entry,
                   const char* after, const Object* got) {
  if (olds.empty()) return;
  const Object second = side(entry, after);
  for (const Entry& old : olds)
    count(number, block, old, before, second, effect_of(entry, after), std::max(old.lo, entry.lo),
          std::min(old.hi, entry.hi), got);
}

void Rank::count(int64_t number, Block& block, const Entry& old, const char* access, const Object& second,
                 int64_t effect, int64_t lo, int64_t hi, const Object* got) {
  const int64_t slack = effect - effect_of(old, access);
  const Object told = Object::own(
      Py_BuildValue("(LLLLLOOO)", static_cast<long long>(this->number), static_cast<long long>(number),
                    static_cast<long long>(lo), static_cast<long long>(hi), static_cast<long long>(slack),
                    side(old, access).get(), second.get(), got == nullptr ? shared_.none() : got->get()));
  Object race = Object::own(PyObject_CallObject(shared_.found, told.get()));
  if (block.raced.empty()) ++raced_;
  if (block.raced.emplace(race.get(), lo, hi).second) block.races.push_back(std::move(race));
}

}  // namespace order
