// CPython's internals: what is read by layout or through functions that are not part of its API. For 3.11 to 3.14.
//
// check_python() runs when the module is imported: it tries the layouts out on objects of its own.
#pragma once

#include "dictionaries.h"
#include "frames.h"
#include "native.h"

#include <cstdint>

namespace kiln::platform {

// ---- dictionaries ---------------------------------------------------------------------------------------------------

// The dictionary of the object's attributes, or null; made where the object keeps them in another form. Borrowed.
inline PyObject* attribute_dictionary(PyObject* object) {
  PyObject** place = _PyObject_GetDictPtr(object);
  return place ? *place : nullptr;
}

// The value under a key with this hash, borrowed. Null with an error set where comparing keys raised.
inline PyObject* find_by_hash(PyObject* dictionary, PyObject* key, Py_hash_t hash) {
  return _PyDict_GetItem_KnownHash(dictionary, key, hash);
}

// The beginning of CPython's struct _dictkeysobject. Kind 0 is a table of any keys, the others have keys that are exactly
// str.
struct DictionaryKeys {
  Py_ssize_t references;
  uint8_t log2_size;
  uint8_t log2_index_bytes;
  uint8_t kind;
};

// Whether all keys of the dictionary are exactly str, so that looking one of them up runs no Python. Only where
// knows_dictionary_keys(): otherwise it must be taken for false.
inline bool has_str_keys_only(PyObject* dictionary) {
  auto* keys = reinterpret_cast<PyDictObject*>(dictionary)->ma_keys;
  return reinterpret_cast<const DictionaryKeys*>(keys)->kind != 0;
}

// Whether the layout of DictionaryKeys is right, found out once on two dictionaries. Python may set it to false.
inline bool& knows_dictionary_keys() {
  static bool known = [] {
    Owned of_str(Py_BuildValue("{s:i}", "a", 1)), of_int(Py_BuildValue("{i:i}", 1, 1));
    bool found = of_str && of_int && has_str_keys_only(of_str.get()) && !has_str_keys_only(of_int.get());
    PyErr_Clear();
    return found;
  }();
  return known;
}

// ---- classes --------------------------------------------------------------------------------------------------------

// The attribute of a class or its bases, borrowed; runs no Python and sets no error.
inline PyObject* class_attribute(PyTypeObject* type, PyObject* name) { return _PyType_Lookup(type, name); }

// The number that the class has now, or 0.
inline unsigned int valid_class_version(PyTypeObject* type) {
#if PY_VERSION_HEX < 0x030D0000
  // Up to 3.12 a stale number may stay behind; the flag says whether it holds.
  if (!PyType_HasFeature(type, Py_TPFLAGS_VALID_VERSION_TAG)) return 0;
#endif
  return type->tp_version_tag;
}

// A number that changes with every change to the class or its bases, given to it now if it has none; 0 when it can have
// none. Runs no user code and sets no error.
inline unsigned int class_version(PyTypeObject* type) {
  if (unsigned int version = valid_class_version(type)) return version;
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
  return valid_class_version(type);
}

// ---- functions, code and integers -----------------------------------------------------------------------------------

// Borrowed, null where there is none.
inline PyObject* function_defaults(PyFunctionObject* function) { return function->func_defaults; }
inline PyObject* function_keyword_defaults(PyFunctionObject* function) { return function->func_kwdefaults; }
inline PyObject* function_code(PyFunctionObject* function) { return function->func_code; }

// The tuples of a code object, borrowed.
inline PyObject* code_constants(PyObject* code) { return reinterpret_cast<PyCodeObject*>(code)->co_consts; }
inline PyObject* code_names(PyObject* code) { return reinterpret_cast<PyCodeObject*>(code)->co_names; }

// A new int of little-endian bytes, without a sign.
inline PyObject* int_from_bytes(const unsigned char* bytes, size_t count) {
  return _PyLong_FromByteArray(bytes, count, /*little_endian=*/1, /*is_signed=*/0);
}

// ---- the check ------------------------------------------------------------------------------------------------------

// What of the above is not as expected, or null. Knowing the keys of dictionaries is not needed: see has_str_keys_only.
inline const char* wrong_python_layout() {
  Owned dictionary(PyDict_New());
  if (!dictionary) return "no dictionary can be made";
  if (!state_ends_with(dictionary.get(), [&] { return PyDict_SetItemString(dictionary.get(), "key", Py_None); })) {
    return "the state of a dictionary stays the same when it changes";
  }
  Owned kind(PyObject_CallFunction(reinterpret_cast<PyObject*>(&PyType_Type), "s(){}", "Probe"));
  if (!kind) return "no class can be made";
  auto* type = reinterpret_cast<PyTypeObject*>(kind.get());
  unsigned int version = class_version(type);
  if (version == 0 || class_version(type) != version) return "a class has no version";
  if (PyObject_SetAttrString(kind.get(), "name", Py_None) < 0 || class_version(type) == version) {
    return "the version of a class stays the same when it changes";
  }
  Owned object(PyObject_CallNoArgs(kind.get()));
  if (!object || PyObject_SetAttrString(object.get(), "name", Py_True) < 0) return "no object can be made";
  PyObject* attributes = attribute_dictionary(object.get());
  Owned name(PyUnicode_InternFromString("name"));
  if (!attributes || !PyDict_Check(attributes) || !name) return "the attributes of an object are not found";
  if (find_by_hash(attributes, name.get(), PyObject_Hash(name.get())) != Py_True) {
    return "an attribute of an object is not found";
  }
  if (!state_ends_with(attributes, [&] { return PyObject_SetAttrString(object.get(), "name", Py_False); })) {
    return "the state of an object's dictionary stays the same when an attribute is set";
  }
  return nullptr;
}

// 0, or -1 with an ImportError set.
inline int check_python() {
  const char* wrong = wrong_python_layout();
  if (!wrong) return 0;
  PyErr_Clear();
  PyErr_Format(PyExc_ImportError,
               "kiln._native does not know this Python (%s): %s. It knows CPython 3.11 to 3.14; build it again with "
               "`make setup`",
               Py_GetVersion(), wrong);
  return -1;
}

}  // namespace kiln::platform
