// CPython's frame evaluator (PEP 523) is replaced, rather than a profile function set: the latter belongs to the program,
// is set for each thread, and is called twice for each function. torch.compile's evaluator calls the one before it.
#include "python_calls.h"

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fallback.h"
#include "lock.h"

extern "C" {
using Evaluator = void* (*)(void* thread, void* frame, int throwing);
void* PyInterpreterState_Get(void);
Evaluator _PyInterpreterState_GetEvalFrameFunc(void*);
void _PyInterpreterState_SetEvalFrameFunc(void*, Evaluator);
void* PyUnstable_InterpreterFrame_GetCode(void*) __attribute__((weak));  // since Python 3.12
void* PyObject_GetAttrString(void*, const char*);
const char* PyUnicode_AsUTF8(void*);
void PyErr_Clear(void);
}

namespace simgpu {
namespace {

constexpr size_t kMostCodes = 1 << 20;  // a program that makes code for ever is counted without being remembered
constexpr int kCodeIn311 = 4;           // the pointer to the code in Python 3.11's _PyInterpreterFrame

std::vector<std::pair<std::string, Counted>> prefixes_;
std::unordered_map<void*, Counted> kinds_;  // by code, which is never released, so that addresses stay unique
Evaluator before_ = nullptr;
bool begun_ = false;  // the program has asked for its calls: those before its first work are its start, and not counted
thread_local int64_t calls_ = 0;
thread_local bool nothing_ = false;  // within a function of the device

std::string text_of(void* code, const char* attribute) {
  void* held = PyObject_GetAttrString(code, attribute);
  const char* text = held ? PyUnicode_AsUTF8(held) : nullptr;
  std::string copy = text ? text : "";
  if (!text) PyErr_Clear();
  if (held) Py_DecRef(held);
  return copy;
}

Counted kind_of_code(void* code) {
  Counted kind = Counted::kYes;
  std::string path = text_of(code, "co_filename");
  for (auto& [prefix, its] : prefixes_) {
    if (!path.starts_with(prefix)) continue;
    kind = its;
    break;
  }
  if (kind != Counted::kYes) return kind;
  // Not calls on each Python: 3.12 runs comprehensions in the function around them, 3.13 runs __init__ without a frame
  // of its own once a class was called a few times.
  std::string name = text_of(code, "co_name");
  bool inlined = name == "__init__" || name == "<listcomp>" || name == "<setcomp>" || name == "<dictcomp>";
  return inlined ? Counted::kPasses : kind;
}

Counted kind_of_frame(void* frame) {
  bool owned = PyUnstable_InterpreterFrame_GetCode != nullptr;
  void* code = owned ? PyUnstable_InterpreterFrame_GetCode(frame) : static_cast<void**>(frame)[kCodeIn311];
  auto known = kinds_.find(code);
  Counted kind = known != kinds_.end() ? known->second : kind_of_code(code);
  if (known == kinds_.end() && kinds_.size() < kMostCodes) {
    Py_IncRef(code);
    kinds_.emplace(code, kind);
  }
  if (owned) Py_DecRef(code);
  return kind;
}

void* evaluate(void* thread, void* frame, int throwing) {
  // A generator into which an exception is thrown comes with that exception pending, and Python must not be asked then.
  if (throwing) return before_(thread, frame, throwing);
  Counted kind = kind_of_frame(frame);
  if (kind == Counted::kYes || kind == Counted::kPasses) {
    calls_ += kind == Counted::kYes && !nothing_ && !executing;  // some meta kernels are Python's
    return before_(thread, frame, throwing);
  }
  bool outer = std::exchange(nothing_, kind == Counted::kNothing);
  void* result = before_(thread, frame, throwing);
  nothing_ = outer;
  return result;
}

}  // namespace

void count_calls(const char* const* prefixes, const int* kinds, int count) {
  int state = PyGILState_Ensure();
  prefixes_.clear();
  kinds_.clear();  // their codes stay referenced
  for (int i = 0; i < count; ++i) prefixes_.emplace_back(prefixes[i], static_cast<Counted>(kinds[i]));
  begun_ = false;
  if (!before_) {
    void* interpreter = PyInterpreterState_Get();
    before_ = _PyInterpreterState_GetEvalFrameFunc(interpreter);
    _PyInterpreterState_SetEvalFrameFunc(interpreter, evaluate);
  }
  PyGILState_Release(state);
}

int64_t taken_calls() {
  int64_t calls = std::exchange(calls_, 0);
  return std::exchange(begun_, true) ? calls : 0;
}

}  // namespace simgpu
