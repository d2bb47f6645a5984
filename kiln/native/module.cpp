// The module kiln._native: its initialisation and the small functions that need no file of their own.
#include "native.h"

#include <unordered_set>

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
  std::unordered_set<PyObject*> seen;
  seen.reserve(static_cast<size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!seen.insert(objects[i]).second) Py_RETURN_FALSE;
  }
  Py_RETURN_TRUE;
}

unsigned int valid_version(PyTypeObject* type) {
#if PY_VERSION_HEX < 0x030D0000
  // Up to 3.12 a stale number may stay behind; the flag says whether it holds.
  if (!PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG)) return 0;
#endif
  return type->tp_version_tag;
}

// Whether a class's metaclass has a method of its own.
bool has_own(PyObject* kind, PyObject* name) {
  return _PyType_Lookup(Py_TYPE(kind), name) != _PyType_Lookup(&PyType_Type, name);
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
  return PyLong_FromUnsignedLong(class_version(reinterpret_cast<PyTypeObject*>(argument)));
}

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

PyMethodDef functions[] = {
    {"call_watched", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(call_watched)), METH_FASTCALL,
     "call_watched(watcher, function, args, kwargs): call with a watcher that gets the frame of each Python function."},
    {"watch_entered", watch_entered, METH_O,
     "watch_entered(watcher): give a watcher the frame of each Python function that this thread enters."},
    {"distinct", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(distinct)), METH_FASTCALL,
     "distinct(*objects) -> bool: no object is given twice."},
    {"is_instance", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(is_instance)), METH_FASTCALL,
     "is_instance(value, kinds) -> bool: isinstance by type alone, without asking the value for its __class__."},
    {"type_version", type_version, METH_O,
     "type_version(cls) -> int: changes with every change to the class or its bases; 0 when there is no number."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "kiln._native", "The small native part of Kiln.", -1, functions, nullptr, nullptr, nullptr,
    nullptr};

}  // namespace

unsigned int class_version(PyTypeObject* type) {
  if (unsigned int version = valid_version(type)) return version;
#if PY_VERSION_HEX >= 0x030C0000
  PyUnstable_Type_AssignVersionTag(type);
#else
  // The method cache numbers a type when something is looked up in it. This lookup runs no user code.
  static PyObject* name = PyUnicode_InternFromString("__init__");
  if (!name) {
    PyErr_Clear();
    return 0;
  }
  _PyType_Lookup(type, name);
#endif
  return valid_version(type);
}

}  // namespace kiln

PyMODINIT_FUNC PyInit__native() {
  kiln::Owned module(PyModule_Create(&kiln::definition));
  if (!module || kiln::add_dispatcher(module.get()) < 0 || kiln::add_tensor_check(module.get()) < 0 ||
      kiln::add_global_state(module.get()) < 0 || kiln::add_object_checks(module.get()) < 0 ||
      kiln::add_guard_program(module.get()) < 0 || kiln::add_grad_node(module.get()) < 0 ||
      kiln::add_tape(module.get()) < 0 || kiln::add_operator_program(module.get()) < 0 ||
      kiln::add_function_facts(module.get()) < 0 || kiln::add_saved_values(module.get()) < 0 ||
      kiln::add_walk(module.get()) < 0 || kiln::add_engine_call(module.get()) < 0) {
    return nullptr;
  }
  return module.release();
}
