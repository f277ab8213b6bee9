#include "device.h"

#include <c10/util/Exception.h>

#include <cmath>

#include "capture.h"
#include "deviations.h"
#include "gpu_trace.h"
#include "probes.h"
#include "python_calls.h"
#include "unwritten.h"

namespace simgpu {

Device& device() {
  static auto* one = new Device;
  return *one;
}

static thread_local std::vector<int64_t> current_streams(1);  // by GPU; -1: its default stream

int64_t& Device::current() {
  return device().several() ? device().current(device().chosen()) : current_streams[0];
}

int64_t& Device::current(int of) {
  if (!several()) return current_streams[0];
  auto place = static_cast<size_t>(gpu(of));
  if (current_streams.size() <= place) current_streams.resize(place + 1, -1);
  if (current_streams[place] < 0) current_streams[place] = default_stream(of);
  return current_streams[place];
}

static thread_local int chosen_device = -1;  // a new thread has the process's device; if there are several, the first

int Device::chosen() const { return chosen_device >= 0 ? chosen_device : several() ? 0 : index; }

void Device::choose(int wanted) {
  chosen_device = wanted;
  if (!bound_) index = wanted;
}

void Device::bind(int wanted) {
  TORCH_CHECK(!foreign(wanted), "streamrace: this process uses cuda:", index, ", and a process has ", several() ? "as many simulated GPUs as --gpus says" : "one simulated GPU",
              ": cuda:", wanted, " belongs to another rank. Run one process for each GPU, and choose its own with torch.cuda.set_device before anything else; "
              "or let a process have several (--gpus).");
  if (!bound_ && index != wanted) current_streams[0] = 0;  // it was a stream of another device
  if (!bound_) index = wanted;
  bound_ = true;
  if (several()) gpus_[static_cast<size_t>(gpu(wanted))].used = true;
}

int64_t Device::gpu(int wanted) {
  for (size_t place = 0; place < gpus_.size(); ++place)
    if (gpus_[place].index == wanted) return static_cast<int64_t>(place);
  gpus_.push_back({wanted});
  return static_cast<int64_t>(gpus_.size()) - 1;
}

int64_t Device::number(int64_t gpu, int64_t place) {
  places_.emplace_back(gpu, place);
  return kHost + static_cast<int64_t>(places_.size());
}

int64_t Device::hidden_stream() { return number(several() ? gpu(chosen()) : 0, -1); }

int64_t Device::default_stream(int of) {
  if (!several()) return 0;
  int64_t here = gpu(of);
  auto& known = gpus_[static_cast<size_t>(here)].numbers[0];
  if (here > 0 && known == 0) known = number(here, 0);
  return known;
}

std::pair<int, int64_t> Device::place_of(int64_t stream) const {
  auto [gpu, place] = stream <= kHost ? std::pair{int64_t{0}, stream} : places_.at(static_cast<size_t>(stream - kHost - 1));
  return {several() && !gpus_.empty() ? gpus_[static_cast<size_t>(gpu)].index : index, place};
}

OnDevice::OnDevice(int index) {
  if (index < 0 || !device().several() || index == device().chosen()) return;
  before_ = std::exchange(chosen_device, index);
}

OnDevice::~OnDevice() {
  if (before_ != -2) chosen_device = before_;
}

void Device::see(int count_, int index_) {
  count = count_;
  index = index_;
  bound_ = used_;
  chosen_device = -1;
}

int64_t Device::next_stream(int of, bool high_priority) {
  int64_t here = several() ? gpu(of) : 0;
  if (gpus_.empty()) gpus_.push_back({index});
  auto& one = gpus_[static_cast<size_t>(here)];
  if (here == 0 && one.taken[0] + one.taken[1] == 0)  // torch creates all of them on the first request
    for (int64_t stream = 1; stream < kHost; ++stream) tell(&Told::trace_gpu_stream_creation, stream);
  int64_t place = 1 + (high_priority ? kPool : 0) + one.taken[high_priority]++ % kPool;
  if (here == 0) return place;
  auto& known = one.numbers[static_cast<size_t>(place)];
  if (known == 0) known = number(here, place);
  return known;
}

void Device::name(int64_t stream) {
  used_ = true;
  if (!trace().on) return;
  if (stream >= static_cast<int64_t>(named_.size())) named_.resize(stream + 1);
  if (named_[stream]) return;
  named_[stream] = true;
  trace().note(WordKind::kStreamName, {stream});
}

Marker Device::record(int64_t stream) {
  if (Graph* graph = captures().of(stream)) return captures().record(*graph, stream);
  name(stream);
  Marker marker{++trace().markers, timeline().position(stream), nullptr};
  trace().note(WordKind::kRecord, {marker.number, stream});
  return marker;
}

void Device::wait(int64_t stream, const Marker& marker, int64_t site) {
  if (marker.graph || captures().of(stream)) return captures().wait(stream, marker, site);
  name(stream);
  timeline().wait(stream, marker.instant);
  trace().note(WordKind::kWait, {stream, marker.number, site});
}

void Device::host_called() {
  if (costs.call_ns == 0) return;
  int64_t calls = taken_calls();
  if (calls == 0) return;
  timeline().now += calls * costs.call_ns;
  trace().note(WordKind::kHostStep, {static_cast<int64_t>(How::kCalled), timeline().now, -1, -1, calls});
}

void Device::host_wait(const Marker& marker, How how, int64_t site) {
  captures().refuse_wait(marker);
  host_called();
  timeline().now += costs.synchronize_ns;
  int64_t before = timeline().now;
  timeline().synchronize(marker.instant);
  blocked += timeline().now - before;
  trace().note(WordKind::kHostWait, {marker.number, static_cast<int64_t>(how), site, timeline().now, before});
  raise();
}

bool Device::query(const Marker& marker, int64_t site) {
  captures().refuse_wait(marker);
  captures().refuse_query();
  host_called();
  timeline().now += costs.query_ns;
  bool passed = answers && timeline().passed(marker.instant);
  int64_t now = timeline().now;
  if (passed) {
    timeline().catch_up();
    trace().note(WordKind::kHostWait, {marker.number, static_cast<int64_t>(How::kQuery), site, now, now});
    raise();
  } else {
    trace().note(WordKind::kHostStep, {static_cast<int64_t>(How::kAsked), now, -1, marker.number, 0});
  }
  return passed;
}

void Device::synchronize(int64_t stream, How how, int64_t site) {
  captures().refuse_synchronize(stream);
  tell(&Told::trace_gpu_stream_synchronization, stream);
  host_wait(record(stream), how, site);
}

void Device::synchronize(int64_t site, int of) {
  captures().refuse_synchronize();
  tell(&Told::trace_gpu_device_synchronization);
  for (int64_t stream = 0; stream < std::max(timeline().streams(), int64_t{1}); ++stream) {
    if (several() && of >= 0 && place_of(stream).first != of) continue;
    if (stream == 0 || timeline().stream(stream).known > 0 || !timeline().stream(stream).open.empty())
      host_wait(record(stream), How::kSynchronize, site);
  }
}

WorkPtr Device::launch(int64_t stream, int64_t kernel, const Accesses& accesses, int64_t nominal, Effect effect,
                       int64_t site) {
  if (!bound_) bind(chosen());
  if (Graph* graph = captures().of(stream)) {
    Node node{Node::kLaunch, stream, kernel, nominal, site};
    node.effect = std::move(effect);
    captures().launch(*graph, std::move(node), accesses);
    return nullptr;
  }
  host_called();
  return enqueue(stream, kernel, accesses, nominal, std::move(effect), site, costs.launch_ns);
}

WorkPtr Device::enqueue(int64_t stream, int64_t kernel, const Accesses& accesses, int64_t nominal, Effect effect,
                        int64_t site, int64_t host_ns) {
  name(stream);
  auto& time = timeline();
  double factor = 1;
  if (costs.factor) {
    auto known = factors_.find({kernel, stream});
    if (known == factors_.end()) known = factors_.emplace(std::pair{kernel, stream}, costs.factor(name_of(kernel), stream)).first;
    factor = known->second;
  }
  if (factor > 0) time.now += host_ns;  // 0: costs nothing, so that only its order remains
  int64_t issued = time.now, start, end;
  auto duration = factor == 1 ? nominal : std::llround(static_cast<double>(nominal) * factor);
  duration += deviations().next(stream, kernel, trace().ops + 1, duration).longer;
  if (accesses.late) effect = trace().reporting(std::move(effect));
  WorkPtr work = time.launch(stream, duration, unwritten().behind(accesses, std::move(effect)), start, end);
  trace().launch(stream, kernel, accesses, site, issued, start, end, nominal, work);
  if (deferred) time.catch_up_if_free();
  else meet(stream), raise();
  return work;
}

void Device::launch(int64_t stream, int64_t kernel, const Accesses& accesses, const Rendezvous& rendezvous, int64_t number,
                    int64_t site) {
  if (Graph* graph = captures().of(stream)) {
    Node node{Node::kLaunch, stream, kernel, rendezvous.nominal, site};
    node.rendezvous = std::make_shared<Rendezvous>(rendezvous);
    return captures().launch(*graph, std::move(node), accesses);
  }
  host_called();
  enqueue(stream, kernel, accesses, rendezvous, number, site, costs.launch_ns);
}

void Device::enqueue(int64_t stream, int64_t kernel, const Accesses& accesses, const Rendezvous& rendezvous, int64_t number,
                     int64_t site, int64_t host_ns) {
  auto& time = timeline();
  time.now += host_ns;
  auto work = std::make_shared<Work>();
  auto change = deviations().next(stream, kernel, trace().ops + 1, rendezvous.duration);
  work->duration = rendezvous.duration + change.longer;
  work->read = unwritten().behind_reads(accesses, rendezvous.read);
  work->effect = rendezvous.write;
  work->group = rendezvous.group;
  work->number = number;
  work->late = rendezvous.late + change.late;
  work->alone = rendezvous.alone;
  work->link = rendezvous.link;
  work->call = rendezvous.call;
  work->members = rendezvous.members;
  int64_t issued = time.now;
  time.collective(stream, work);
  trace().launch(stream, kernel, accesses, site, issued, work->start, work->end, rendezvous.nominal, work, rendezvous.root,
                 rendezvous.issuer);
  time.catch_up_if_free();
}

void Device::host_access(int64_t kernel, const Accesses& accesses, int64_t site) {
  name(kHost);
  // Not an operation of the device, so that neither jitter nor a delay by number applies to it.
  timeline().now += deviations().next(kHost, kernel, -1, 0).longer;
  int64_t now = timeline().now;
  timeline().catch_up();
  trace().launch(kHost, kernel, accesses, site, now, now, now, 0, nullptr);
  for (auto& access : accesses.reads) probes().read(trace().ops, access);
  int64_t marker = ++trace().markers;
  trace().note(WordKind::kRecord, {marker, kHost});
  trace().note(WordKind::kHostWait, {marker, static_cast<int64_t>(How::kRead), site, now, now});
}

void Device::meet(int64_t stream) {
  if (stream < 0) timeline().drain();
  else timeline().synchronize(timeline().position(stream));
  trace().note(WordKind::kHostStep, {static_cast<int64_t>(How::kMet), timeline().now, stream, -1, 0});
}

Effect Device::guarded(int64_t kernel, Effect effect) {
  return [this, kernel, effect = std::move(effect)] {
    try {
      effect();
    } catch (const std::exception& failure) {
      fail(std::string(name_of(kernel)) + ": " + failure.what());
    }
  };
}

void Device::fail(const std::string& error) {
  if (error_.empty()) error_ = error;  // the others may follow from the first
}

void Device::raise() {
  if (error_.empty()) return;
  std::string message = std::move(error_);
  error_.clear();
  TORCH_CHECK(message.rfind("streamrace: ", 0) != 0, message);  // a sentence of ours that could not be raised earlier
  TORCH_CHECK(false, "CUDA error: a kernel that ran asynchronously failed (reported at the first wait after it): ", message);
}

}  // namespace simgpu
