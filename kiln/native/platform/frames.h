// The Python functions that native code enters while it is watched. For CPython 3.11 to 3.14.
//
// On CPython 3.11 a profile function is told of them. From 3.12 on, setting one instruments all code, which takes too long.
// There, a function of Kiln's evaluates frames (PEP 523) for as long as a watched call runs. It looks at the frames that
// the call enters itself, not at what runs inside of them, and passes all on to what evaluates frames otherwise.
#pragma once

#include "native.h"

#include <cstdint>

namespace kiln::platform {

#if PY_VERSION_HEX >= 0x030C0000

// CPython's struct _PyInterpreterFrame, of builds with the GIL and without assertions.
struct EnteredFrame {
  void *code, *previous, *function;
  PyObject *globals, *builtins, *locals;
  void *frame_object, *instruction;
#if PY_VERSION_HEX >= 0x030E0000
  void* stack;
  uint16_t return_offset;
  char owner;
  uint8_t visited;
#else
  int stack;
  uint16_t return_offset;
  char owner;
#endif
  uintptr_t values[1];  // locals, arguments first; from 3.14 on the low bits say how a reference is held

  PyObject* value(Py_ssize_t index) const {
    return reinterpret_cast<PyObject*>(values[index] & ~static_cast<uintptr_t>(3));
  }
};

class FrameWatch {
 public:
  // The watcher is called with the code, the globals and the positional arguments of a function before it runs; an error
  // that it raises is raised in place of running the function.
  explicit FrameWatch(PyObject* watcher) : watcher_(watcher), outer_(current_) {
    current_ = this;
    auto* interpreter = PyInterpreterState_Get();
    if (users_++ == 0) {
      before_ = _PyInterpreterState_GetEvalFrameFunc(interpreter);
      _PyInterpreterState_SetEvalFrameFunc(interpreter, evaluate);
    }
  }

  ~FrameWatch() {
    current_ = outer_;
    auto* interpreter = PyInterpreterState_Get();
    if (--users_ == 0 && _PyInterpreterState_GetEvalFrameFunc(interpreter) == evaluate) {
      _PyInterpreterState_SetEvalFrameFunc(interpreter, before_);
    }
  }

  FrameWatch(const FrameWatch&) = delete;
  FrameWatch& operator=(const FrameWatch&) = delete;

  // What evaluates frames apart from watches.
  static _PyFrameEvalFunction evaluator() {
    auto* found = _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get());
    return found == evaluate ? before_ : found;
  }

 private:
  static PyObject* evaluate(PyThreadState* state, struct _PyInterpreterFrame* frame, int is_thrown) {
    FrameWatch* watch = current_;
    if (!watch || watch->is_inside_) return before_(state, frame, is_thrown);
    watch->is_inside_ = true;  // the watcher, and what the function itself enters, are not watched
    if (!is_thrown && !PyErr_Occurred() && !watch->allows(frame)) is_thrown = 1;
    PyObject* result = before_(state, frame, is_thrown);
    watch->is_inside_ = false;
    return result;
  }

  bool allows(struct _PyInterpreterFrame* frame) const {
    auto* entered = reinterpret_cast<const EnteredFrame*>(frame);
    Owned code(PyUnstable_InterpreterFrame_GetCode(frame));
    if (!code) return false;
    Py_ssize_t count = reinterpret_cast<PyCodeObject*>(code.get())->co_argcount;
    Owned given(PyTuple_New(count));
    if (!given) return false;
    for (Py_ssize_t i = 0; i < count; ++i) {
      PyObject* value = entered->value(i);  // a generator that goes on may have let go of it
      PyTuple_SET_ITEM(given.get(), i, Py_NewRef(value ? value : Py_None));
    }
    PyObject* arguments[] = {code.get(), entered->globals, given.get()};
    Owned result(PyObject_Vectorcall(watcher_, arguments, 3, nullptr));
    return result != nullptr;
  }

  PyObject* watcher_;
  FrameWatch* outer_;
  bool is_inside_ = false;

  inline static thread_local FrameWatch* current_ = nullptr;  // of the innermost watched call of this thread
  inline static int users_ = 0;
  inline static _PyFrameEvalFunction before_ = _PyEval_EvalFrameDefault;
};

#endif

// Whether a function other than CPython's own, and Kiln's for watched calls, runs the frames of Python functions (PEP 523),
// in any thread.
inline bool frames_are_hooked() {
#if PY_VERSION_HEX >= 0x030C0000
  return FrameWatch::evaluator() != _PyEval_EvalFrameDefault;
#else
  return _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get()) != _PyEval_EvalFrameDefault;
#endif
}

}  // namespace kiln::platform
