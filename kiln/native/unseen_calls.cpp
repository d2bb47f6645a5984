// Calls that a hook on Python's frames does not see. torch's compiler has one while something that it compiled runs: left
// alone, it would compile Kiln's own Python, function by function.
#include "platform/python.h"

namespace kiln {
namespace {

// A name of the Python module behind this; null with an error set where there is none.
Owned name_in_platform(const char* name) {
  static PyObject* module = nullptr;
  if (!module) {
    PyObject* found = PyImport_ImportModule("kiln.platform.torch_compiler");
    if (module) {  // another thread was faster
      Py_XDECREF(found);
    } else {
      module = found;
    }
  }
  return Owned(module ? PyObject_GetAttrString(module, name) : nullptr);
}

// Whether torch's compiler is loaded, and not replaced by what `kiln.install` puts there.
bool has_torch_compiler() {
  Owned name = name_in_platform("hooking_module");
  Owned module(name ? PyImport_GetModule(name.get()) : nullptr);
  PyErr_Clear();
  return module != nullptr;
}

}  // namespace

bool is_hooked() { return platform::frames_are_hooked() && has_torch_compiler(); }

PyObject* call_unseen(PyObject* callable, PyObject* const* arguments, size_t count, PyObject* names) {
  Owned caller = name_in_platform("call_unseen");
  if (!caller) return nullptr;
  Py_ssize_t positional = PyVectorcall_NARGS(count);
  Owned given(PyTuple_New(positional + 1)), named(names ? PyDict_New() : nullptr);
  if (!given || (names && !named)) return nullptr;
  PyTuple_SET_ITEM(given.get(), 0, Py_NewRef(callable));
  for (Py_ssize_t i = 0; i < positional; ++i) PyTuple_SET_ITEM(given.get(), i + 1, Py_NewRef(arguments[i]));
  for (Py_ssize_t i = 0; names && i < PyTuple_GET_SIZE(names); ++i) {
    if (PyDict_SetItem(named.get(), PyTuple_GET_ITEM(names, i), arguments[positional + i]) < 0) return nullptr;
  }
  return PyObject_Call(caller.get(), given.get(), named.get());
}

}  // namespace kiln
