// What is used of CPython's C interface. Prototypes stand here instead of Python.h: they are few, stable (all are in
// the limited interface, the first two fields of an object too), and a machine that only runs Python has no headers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

using Py_ssize_t = std::ptrdiff_t;

extern "C" {
struct PyObject {
  Py_ssize_t references;
  PyObject* type;
};
extern PyObject *PyExc_ValueError, *PyExc_TypeError, *PyExc_RuntimeError;
void Py_IncRef(PyObject*);
void Py_DecRef(PyObject*);
PyObject* Py_BuildValue(const char*, ...);
int PyErr_CheckSignals(void);
PyObject* PyErr_Occurred(void);
PyObject* PyErr_NoMemory(void);
PyObject* PyErr_Format(PyObject*, const char*, ...);
PyObject* PyIter_Next(PyObject*);
PyObject* PyObject_GetIter(PyObject*);
PyObject* PyObject_GetAttrString(PyObject*, const char*);
PyObject* PyObject_CallFunctionObjArgs(PyObject*, ...);
PyObject* PyObject_CallObject(PyObject*, PyObject*);
int PyObject_RichCompareBool(PyObject*, PyObject*, int);
int PyObject_IsTrue(PyObject*);
int PySequence_Contains(PyObject*, PyObject*);
PyObject* PySequence_List(PyObject*);
Py_ssize_t PyTuple_Size(PyObject*);
PyObject* PyTuple_GetItem(PyObject*, Py_ssize_t);
long long PyLong_AsLongLong(PyObject*);
PyObject* PyLong_FromLongLong(long long);
PyObject* PyUnicode_FromFormat(const char*, ...);
PyObject* PyUnicode_FromString(const char*);
Py_ssize_t PyUnicode_Tailmatch(PyObject*, PyObject*, Py_ssize_t, Py_ssize_t, int);
PyObject* PyDict_New(void);
PyObject* PyDict_GetItemWithError(PyObject*, PyObject*);
int PyDict_SetItem(PyObject*, PyObject*, PyObject*);
int PySet_Add(PyObject*, PyObject*);
}

namespace order {

// A Python exception is set: leave everything up to the call that came from Python.
struct Raised {};

[[noreturn]] inline void complain(PyObject* kind, const char* sentence) {
  PyErr_Format(kind, "%s", sentence);
  throw Raised();
}

// One reference of ours to a Python object.
class Object {
 public:
  Object() = default;
  static Object own(PyObject* made) {  // a new reference, as calls return it: null where they raised
    if (made == nullptr) throw Raised();
    Object object;
    object.it_ = made;
    return object;
  }
  static Object share(PyObject* borrowed) {
    Py_IncRef(borrowed);
    return own(borrowed);
  }
  Object(const Object& other) : it_(other.it_) {
    if (it_ != nullptr) Py_IncRef(it_);
  }
  Object(Object&& other) noexcept : it_(std::exchange(other.it_, nullptr)) {}
  Object& operator=(Object other) noexcept {
    std::swap(it_, other.it_);
    return *this;
  }
  ~Object() {
    if (it_ != nullptr) Py_DecRef(it_);
  }
  PyObject* get() const { return it_; }
  explicit operator bool() const { return it_ != nullptr; }

 private:
  PyObject* it_ = nullptr;
};

inline int64_t integer(PyObject* object) {
  const long long value = PyLong_AsLongLong(object);
  if (value == -1 && PyErr_Occurred() != nullptr) {
    // An OverflowError says nothing of what is wrong with the record.
    complain(PyExc_ValueError, "a field is no integer of 64 bits");
  }
  return value;
}

inline PyObject* item(PyObject* tuple, Py_ssize_t at) {
  PyObject* found = PyTuple_GetItem(tuple, at);  // borrowed
  if (found == nullptr) complain(PyExc_TypeError, "a record has another shape");
  return found;
}

inline int64_t field(PyObject* record, Py_ssize_t at) { return integer(item(record, at)); }

inline Py_ssize_t length(PyObject* tuple) {
  const Py_ssize_t size = PyTuple_Size(tuple);
  if (size < 0) complain(PyExc_TypeError, "a record has another shape");
  return size;
}

inline bool truth(int answer) {
  if (answer < 0) throw Raised();
  return answer != 0;
}

// Numbers for things that compare equal (names), so that a copy of each is kept once.
class Numbers {
 public:
  int64_t of(PyObject* name) {
    PyObject* known = PyDict_GetItemWithError(numbers_.get(), name);
    if (known != nullptr) return integer(known);
    if (PyErr_Occurred() != nullptr) throw Raised();
    const int64_t number = static_cast<int64_t>(names_.size());
    names_.push_back(Object::share(name));
    const Object made = Object::own(PyLong_FromLongLong(number));
    if (PyDict_SetItem(numbers_.get(), name, made.get()) < 0) throw Raised();
    return number;
  }
  PyObject* name(int64_t number) const { return names_[static_cast<size_t>(number)].get(); }

 private:
  Object numbers_ = Object::own(PyDict_New());
  std::vector<Object> names_;
};

}  // namespace order
