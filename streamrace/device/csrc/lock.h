// The device's lock, and the few functions of CPython that we need.
//
// Two locks meet here: the device's, and Python's global one. This rule avoids deadlocks: a thread that holds the
// device may wait for Python (an effect may be a Python function), so no thread that holds Python may wait for the
// device. Storages are freed with Python's lock held, so Lock releases it while it waits.
//
// CPython's prototypes are repeated here in place of Python.h: they are few, stable, and a machine that only runs
// Python often has no headers of it. The symbols come from the running interpreter.
#pragma once

#include <atomic>
#include <mutex>

extern "C" {
int PyGILState_Ensure(void);
void PyGILState_Release(int);
int PyGILState_Check(void);
void* PyGILState_GetThisThreadState(void);
void* PyEval_SaveThread(void);
void PyEval_RestoreThread(void*);
void* PyThreadState_Get(void);
void* PyThreadState_GetFrame(void*);
void* PyFrame_GetBack(void*);
void* PyFrame_GetCode(void*);
int PyFrame_GetLasti(void*);
void PyErr_Fetch(void**, void**, void**);
void PyErr_Restore(void*, void*, void*);
void Py_IncRef(void*);
void Py_DecRef(void*);
}

namespace simgpu {

inline std::recursive_mutex& device_mutex() {
  static auto* mutex = new std::recursive_mutex;  // never destroyed: storages are freed later than static objects
  return *mutex;
}

extern bool python_alive;  // false once the interpreter ends

// The number of threads that wait for the device: what they will give it is not known yet.
inline std::atomic<int>& waiting_threads() {
  static std::atomic<int> count{0};
  return count;
}

class Lock {
 public:
  Lock() {
    if (device_mutex().try_lock()) return;
    ++waiting_threads();
    wait();
    --waiting_threads();
  }
  ~Lock() { device_mutex().unlock(); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  static void wait() {
    while (!device_mutex().try_lock()) {
      if (!python_alive || !PyGILState_Check()) {
        device_mutex().lock();
        return;
      }
      // The device is not locked while waiting for Python, which may end meanwhile, and this thread with it.
      void* thread = PyEval_SaveThread();
      device_mutex().lock();
      device_mutex().unlock();
      PyEval_RestoreThread(thread);
    }
  }
};

}  // namespace simgpu
