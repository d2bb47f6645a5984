// Calls that a hook on Python's frames does not see. torch's compiler has one while something that it compiled runs: left
// alone, it would compile Kiln's own Python, function by function.
#include "platform/python.h"

namespace kiln {
namespace {

// A name of the Python module behind this; looked up once. Null with an error set where there is none.
PyObject* name_in_platform(const char* name, PyObject*& place) {
  if (place) return place;
  Owned module(PyImport_ImportModule("kiln.platform.torch_compiler"));
  PyObject* found = module ? PyObject_GetAttrString(module.get(), name) : nullptr;
  if (place) {  // another thread was faster
    Py_XDECREF(found);
  } else {
    place = found;
  }
  return place;
}

// Whether torch's compiler is loaded, and not what `kiln.install` puts in its place, a module of another class.
bool has_torch_compiler() {
  static PyObject* place = nullptr;
  PyObject* name = name_in_platform("COMPILER", place);
  Owned module(name ? PyImport_GetModule(name) : nullptr);
  bool found = module && PyModule_CheckExact(module.get());
  PyErr_Clear();
  return found;
}

}  // namespace

bool is_hooked() { return platform::frames_are_hooked() && has_torch_compiler(); }

PyObject* call_unseen(PyObject* callable, PyObject* const* arguments, size_t count, PyObject* names) {
  static PyObject* place = nullptr;
  PyObject* caller = name_in_platform("call_unseen", place);
  if (!caller) return nullptr;
  Py_ssize_t positional = PyVectorcall_NARGS(count);
  Owned given(PyTuple_New(positional + 1)), named(names ? PyDict_New() : nullptr);
  if (!given || (names && !named)) return nullptr;
  PyTuple_SET_ITEM(given.get(), 0, Py_NewRef(callable));
  for (Py_ssize_t i = 0; i < positional; ++i) PyTuple_SET_ITEM(given.get(), i + 1, Py_NewRef(arguments[i]));
  for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); ++i) {
    if (PyDict_SetItem(named.get(), PyTuple_GET_ITEM(names, i), arguments[positional + i]) < 0) return nullptr;
  }
  return PyObject_Call(caller, given.get(), named.get());
}

}  // namespace kiln
