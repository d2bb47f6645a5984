// The module kiln._native: its initialisation and the small functions that need no file of their own.
#include "distinct.h"
#include "platform/openmp.h"
#include "platform/python.h"

namespace kiln {
namespace {

// Up to here comparing all pairs beats building a hash set.
constexpr Py_ssize_t all_pairs_limit = 16;

PyObject* distinct(PyObject*, PyObject* const* objects, Py_ssize_t count) {
  if (count <= all_pairs_limit) {
    for (Py_ssize_t i = 1; i < count; ++i) {
      for (Py_ssize_t j = 0; j < i; ++j) {
        if (objects[i] == objects[j]) Py_RETURN_FALSE;
      }
    }
    Py_RETURN_TRUE;
  }
  Distinct seen(static_cast<size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!seen.add(objects[i])) Py_RETURN_FALSE;
  }
  Py_RETURN_TRUE;
}

// Runs no Python.
PyObject* has_keys(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2 || !PyTuple_Check(arguments[1])) {
    PyErr_SetString(PyExc_TypeError, "has_keys(mapping, keys): an object and a tuple expected");
    return nullptr;
  }
  PyObject *mapping = arguments[0], *keys = arguments[1], *key, *value;
  if (!PyDict_CheckExact(mapping) || PyDict_GET_SIZE(mapping) != PyTuple_GET_SIZE(keys)) Py_RETURN_FALSE;
  for (Py_ssize_t position = 0, index = 0; PyDict_Next(mapping, &position, &key, &value); ++index) {
    if (key != PyTuple_GET_ITEM(keys, index)) Py_RETURN_FALSE;
  }
  Py_RETURN_TRUE;
}

// Whether a class's metaclass has a method of its own.
bool has_own(PyObject* kind, PyObject* name) {
  return platform::class_attribute(Py_TYPE(kind), name) != platform::class_attribute(&PyType_Type, name);
}

// A class that decides itself: abstract ones about classes, nn.Parameter about instances.
int decided_by(PyObject* kind, PyObject* value) {
  static PyObject* of_classes = PyUnicode_InternFromString("__subclasscheck__");
  static PyObject* of_instances = PyUnicode_InternFromString("__instancecheck__");
  if (has_own(kind, of_classes)) return PyObject_IsSubclass(reinterpret_cast<PyObject*>(Py_TYPE(value)), kind);
  return has_own(kind, of_instances) ? PyObject_IsInstance(value, kind) : 0;
}

int is_any(PyObject* value, PyObject* kinds);

int is_in_union(PyObject* value, PyObject* kinds) {
  Owned parts(PyObject_GetAttrString(kinds, "__args__"));
  return parts ? is_any(value, parts.get()) : -1;
}

int is_any(PyObject* value, PyObject* kinds) {
  if (PyType_Check(kinds)) {
    if (PyType_IsSubtype(Py_TYPE(value), reinterpret_cast<PyTypeObject*>(kinds))) return 1;
    return PyType_CheckExact(kinds) ? 0 : decided_by(kinds, value);
  }
  if (!PyTuple_Check(kinds)) return is_in_union(value, kinds);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(kinds); ++i) {
    if (int found = is_any(value, PyTuple_GET_ITEM(kinds, i))) return found;
  }
  return 0;
}

PyObject* is_instance(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2) return PyErr_Format(PyExc_TypeError, "is_instance() takes 2 arguments, not %zd", count);
  int found = is_any(arguments[0], arguments[1]);
  return found < 0 ? nullptr : PyBool_FromLong(found);
}

PyObject* type_version(PyObject*, PyObject* argument) {
  if (!PyType_Check(argument)) {
    return PyErr_Format(PyExc_TypeError, "type_version() needs a class, not %.200s", Py_TYPE(argument)->tp_name);
  }
  return PyLong_FromUnsignedLong(platform::class_version(reinterpret_cast<PyTypeObject*>(argument)));
}

PyObject* type_name(PyObject*, PyObject* argument) {
  if (!PyType_Check(argument)) {
    return PyErr_Format(PyExc_TypeError, "type_name() needs a class, not %.200s", Py_TYPE(argument)->tp_name);
  }
  return PyUnicode_FromString(reinterpret_cast<PyTypeObject*>(argument)->tp_name);
}

#if PY_VERSION_HEX >= 0x030C0000

PyObject* call_watched(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 4) return PyErr_Format(PyExc_TypeError, "call_watched() takes 4 arguments, not %zd", count);
  platform::FrameWatch watch(arguments[0]);
  return PyObject_Call(arguments[1], arguments[2], arguments[3]);
}

#else

// Runs the watcher where a Python function is entered; calls of C functions and returns cost next to nothing.
int profile_entered(PyObject* watcher, PyFrameObject* frame, int event, PyObject*) {
  if (event != PyTrace_CALL) return 0;
  Owned result(PyObject_CallOneArg(watcher, reinterpret_cast<PyObject*>(frame)));
  if (result) return 0;
  PyEval_SetProfile(nullptr, nullptr);
  return -1;
}

PyObject* watch_entered(PyObject*, PyObject* watcher) {
  PyEval_SetProfile(profile_entered, watcher);
  Py_RETURN_NONE;
}

PyObject* call_watched(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 4) return PyErr_Format(PyExc_TypeError, "call_watched() takes 4 arguments, not %zd", count);
  PyEval_SetProfile(profile_entered, arguments[0]);
  PyObject* result = PyObject_Call(arguments[1], arguments[2], arguments[3]);
  PyObject *kind, *value, *traceback;
  PyErr_Fetch(&kind, &value, &traceback);
  PyEval_SetProfile(nullptr, nullptr);
  PyErr_Restore(kind, value, traceback);
  return result;
}

#endif

PyObject* knows_dictionary_keys(PyObject*, PyObject*) { return PyBool_FromLong(platform::knows_dictionary_keys()); }

PyObject* distrust_dictionary_keys(PyObject*, PyObject*) {
  platform::knows_dictionary_keys() = false;
  Py_RETURN_NONE;
}

PyObject* has_openmp(PyObject*, PyObject*) { return PyBool_FromLong(platform::has_openmp()); }

PyMethodDef functions[] = {
    {"knows_dictionary_keys", knows_dictionary_keys, METH_NOARGS,
     "knows_dictionary_keys() -> bool: it is known whether looking a key up may run Python."},
    {"distrust_dictionary_keys", distrust_dictionary_keys, METH_NOARGS,
     "distrust_dictionary_keys(): from now on each lookup counts as one that may run Python."},
    {"has_openmp", has_openmp, METH_NOARGS,
     "has_openmp() -> bool: torch's OpenMP library was found, so that kernels run on its threads."},
    {"call_watched", method(call_watched), METH_FASTCALL,
     "call_watched(watcher, function, args, kwargs): call with a watcher of the Python functions that the call enters. It "
     "gets the frame (CPython 3.11), or the code, the globals and the positional arguments."},
#if PY_VERSION_HEX < 0x030C0000
    {"watch_entered", watch_entered, METH_O,
     "watch_entered(watcher): give a watcher the frame of each Python function that this thread enters. Only on 3.11."},
#endif
    {"distinct", method(distinct), METH_FASTCALL,
     "distinct(*objects) -> bool: no object is given twice."},
    {"has_keys", method(has_keys), METH_FASTCALL,
     "has_keys(mapping, keys) -> bool: it is a dict whose keys are just these very objects, in this order."},
    {"is_instance", method(is_instance), METH_FASTCALL,
     "is_instance(value, kinds) -> bool: isinstance by type alone, without asking the value for its __class__."},
    {"type_name", type_name, METH_O,
     "type_name(cls) -> str: the name of a class in CPython's messages; classes written in C may have one with a dot."},
    {"type_version", type_version, METH_O,
     "type_version(cls) -> int: changes with every change to the class or its bases; 0 when there is no number."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "kiln._native", "The small native part of Kiln.", -1, functions, nullptr, nullptr, nullptr,
    nullptr};

}  // namespace

}  // namespace kiln

PyMODINIT_FUNC PyInit__native() {
  if (kiln::platform::check_python() < 0) return nullptr;
  kiln::Owned module(PyModule_Create(&kiln::definition));
  if (!module) return nullptr;
  for (auto add : {kiln::add_tensor_check, kiln::add_dispatcher, kiln::add_global_state, kiln::add_object_checks,
                   kiln::add_guard_program, kiln::add_grad_node, kiln::add_tape, kiln::add_operator_program,
                   kiln::add_recorded_call, kiln::add_contents, kiln::add_function_facts, kiln::add_saved_values,
                   kiln::add_walk, kiln::add_engine_call}) {
    if (add(module.get()) < 0) return nullptr;
  }
  return module.release();
}
