// What Python calls, through ctypes.PyDLL: with the interpreter's lock held, and a set exception is raised there.
#include <new>

#include "happens_before.h"

namespace {

// Runs `body`; whatever went wrong stands as a Python exception afterwards.
template <typename Body>
void guarded(Body body) {
  try {
    body();
  } catch (const order::Raised&) {
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_Format(PyExc_RuntimeError, "%s", error.what());
  }
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void* order_new(PyObject* parts) {
  order::HappensBefore* made = nullptr;
  guarded([&] { made = new order::HappensBefore(parts); });
  return made;
}

EXPORT void order_delete(void* it) { delete static_cast<order::HappensBefore*>(it); }

EXPORT void order_feed(void* it, long long rank, PyObject* records, PyObject* found) {
  guarded([&] { static_cast<order::HappensBefore*>(it)->feed(rank, records, found); });
}

EXPORT void order_finish(void* it, PyObject* found) {
  guarded([&] { static_cast<order::HappensBefore*>(it)->finish(found); });
}

EXPORT int order_waits(void* it, long long rank) { return static_cast<order::HappensBefore*>(it)->waits(rank); }

EXPORT void order_settle(void* it) {
  guarded([&] { static_cast<order::HappensBefore*>(it)->settle(); });
}

EXPORT long long order_live_state(void* it) { return static_cast<order::HappensBefore*>(it)->live_state(); }

EXPORT long long order_work(void* it) { return static_cast<order::HappensBefore*>(it)->work(); }
