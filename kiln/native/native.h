// What all files of kiln._native share: an owning reference and the list of types and functions.
#pragma once

#include <Python.h>

#include <memory>

namespace kiln {

struct Release {
  void operator()(PyObject* object) const { Py_XDECREF(object); }
};

// An owned reference, released when it goes out of scope.
using Owned = std::unique_ptr<PyObject, Release>;

inline Owned share(PyObject* object) { return Owned(Py_XNewRef(object)); }

// A function that takes its arguments otherwise than PyCFunction says (METH_FASTCALL), for a PyMethodDef.
template <class Function>
PyCFunction method(Function function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

// True when the error now set is an ordinary Exception, which callers may swallow; KeyboardInterrupt and its like are
// the user's and must go through.
inline bool error_is_ordinary() { return PyErr_ExceptionMatches(PyExc_Exception); }

// Whether each of these objects is like the tensor that a TensorCheck describes at its place: 1 or 0, or -1 with an error
// set that is not an ordinary one. The caller vouches for the count.
int tensors_match(PyObject* tensor_check, PyObject* const* objects, size_t count);

// The gradient of a tensor, or None: a new reference. Null without an error for what is no tensor.
PyObject* stored_gradient(PyObject* object);

// Whether a hook runs the frames of Python functions that may be the one of torch's compiler; and a call that it does not
// see.
bool is_hooked();
PyObject* call_unseen(PyObject* callable, PyObject* const* arguments, size_t count, PyObject* names);

// Each adds its names to the module; -1 with an error set on failure.
int add_dispatcher(PyObject* module);
int add_tensor_check(PyObject* module);
int add_global_state(PyObject* module);
int add_object_checks(PyObject* module);
int add_guard_program(PyObject* module);
int add_grad_node(PyObject* module);
int add_tape(PyObject* module);
int add_operator_program(PyObject* module);
int add_recorded_call(PyObject* module);
int add_contents(PyObject* module);
int add_function_facts(PyObject* module);
int add_walk(PyObject* module);
int add_engine_call(PyObject* module);
int add_saved_values(PyObject* module);

}  // namespace kiln
