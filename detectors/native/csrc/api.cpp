// What Python calls, through ctypes.PyDLL: with the interpreter's lock held, and no code in this file calls Python.
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
  const int64_t* hand_on(std::vector<int64_t>& reported, long long* count) {
    words.clear();
    words.swap(reported);
    *count = static_cast<long long>(words.size());
    return words.data();
  }
};

Engine& engine(void* self) { return *static_cast<Engine*>(self); }

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void* order_new(const char* probes) { return new Engine{order::HappensBefore(probes), {}, {}}; }
EXPORT void order_delete(void* self) { delete static_cast<Engine*>(self); }

EXPORT int order_feed(void* self, long long rank, const char* bytes, long long size) {
  return engine(self).guarded([&] {
    engine(self).order.feed(rank, {bytes, static_cast<size_t>(size)});
    return engine(self).order.go_on();
  });
}
EXPORT int order_finish(void* self) {
  return engine(self).guarded([&] {
    engine(self).order.finish();
    return engine(self).order.go_on();
  });
}
EXPORT int order_go_on(void* self) {
  return engine(self).guarded([&] { return engine(self).order.go_on(); });
}
EXPORT void order_settle(void* self) { engine(self).order.settle(); }
EXPORT int order_waits(void* self, long long rank) { return engine(self).order.waits(rank); }
EXPORT long long order_live_state(void* self) { return engine(self).order.live_state(); }
EXPORT long long order_work(void* self) { return engine(self).order.work(); }

EXPORT const char* order_problem(void* self) { return engine(self).problem.c_str(); }
// The races and the names since the last call, as order::Reports describes them.
EXPORT const int64_t* order_found(void* self, long long* count) {
  return engine(self).hand_on(engine(self).order.reports().found, count);
}
EXPORT const int64_t* order_named(void* self, long long* count) {
  return engine(self).hand_on(engine(self).order.reports().named, count);
}
EXPORT const int64_t* order_pair(void* self, long long number) {
  return engine(self).order.reports().pair(number).data();
}
EXPORT const char* order_text(void* self, long long number, long long* size) {
  const std::string& text = engine(self).order.text(number);
  *size = static_cast<long long>(text.size());
  return text.data();
}
