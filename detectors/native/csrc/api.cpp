// What Python calls, through ctypes.PyDLL: with the interpreter's lock held, and nothing here calls Python.
#include "happens_before.h"

namespace {

enum Status { kDone, kMore, kInconsistent, kDamaged, kFailed };  // in the order of detectors/native/engine.py

struct Engine {
  order::HappensBefore order;
  std::string problem;
  std::vector<int64_t> words;  // handed to Python, until the next call

  // Runs `body`, which returns whether all is done; there is more if races are to be taken. Whatever went wrong is
  // `problem` afterwards.
  template <typename Body>
  int guarded(Body body) {
    try {
      return body() && order.reports().empty() ? kDone : kMore;
    } catch (const order::Inconsistent& error) {
      problem = error.what();
      return kInconsistent;
    } catch (const order::Damaged& error) {
      problem = error.what();
      return kDamaged;
    } catch (const std::exception& error) {
      problem = error.what();
      return kFailed;
    }
  }
  const int64_t* hand_on(std::vector<int64_t>& made, long long* count) {
    words.clear();
    words.swap(made);
    *count = static_cast<long long>(words.size());
    return words.data();
  }
};

Engine& engine(void* it) { return *static_cast<Engine*>(it); }

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void* order_new(const char* probes) { return new Engine{order::HappensBefore(probes), {}, {}}; }
EXPORT void order_delete(void* it) { delete static_cast<Engine*>(it); }

EXPORT int order_feed(void* it, long long rank, const char* bytes, long long size) {
  return engine(it).guarded([&] {
    engine(it).order.feed(rank, {bytes, static_cast<size_t>(size)});
    return engine(it).order.go_on();
  });
}
EXPORT int order_finish(void* it) {
  return engine(it).guarded([&] {
    engine(it).order.finish();
    return engine(it).order.go_on();
  });
}
EXPORT int order_go_on(void* it) {
  return engine(it).guarded([&] { return engine(it).order.go_on(); });
}
EXPORT void order_settle(void* it) { engine(it).order.settle(); }
EXPORT int order_waits(void* it, long long rank) { return engine(it).order.waits(rank); }
EXPORT long long order_live_state(void* it) { return engine(it).order.live_state(); }
EXPORT long long order_work(void* it) { return engine(it).order.work(); }

EXPORT const char* order_problem(void* it) { return engine(it).problem.c_str(); }
// The races and the names since the last call, as order::Reports describes them.
EXPORT const int64_t* order_found(void* it, long long* count) {
  return engine(it).hand_on(engine(it).order.reports().found, count);
}
EXPORT const int64_t* order_named(void* it, long long* count) {
  return engine(it).hand_on(engine(it).order.reports().named, count);
}
EXPORT const int64_t* order_pair(void* it, long long number) { return engine(it).order.reports().pair(number).data(); }
EXPORT const char* order_text(void* it, long long number, long long* size) {
  const std::string& text = engine(it).order.text(number);
  *size = static_cast<long long>(text.size());
  return text.data();
}
