// ItemsCheck, ClassCheck and CodeCheck: do these dictionaries still hold these very objects, are these classes still
// unchanged, have these functions still their code?
#include "platform/python.h"

#include <climits>
#include <cstddef>
#include <new>
#include <utility>
#include <vector>

namespace kiln {
namespace {

// What is expected under one key of a dictionary; `expected` is null when the key must be absent.
struct DictionaryItem {
  Owned dictionary;
  Owned key;
  Owned expected;
};

struct ClassItem {
  Owned type;
  unsigned int version = 0;
};

struct CodeItem {
  Owned function;
  Owned code;
};

template <class Item>
struct Check {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  std::vector<Item> items;
};

PyTypeObject MissingType = {PyVarObject_HEAD_INIT(nullptr, 0)};
PyTypeObject ItemsCheckType = {PyVarObject_HEAD_INIT(nullptr, 0)};
PyTypeObject ClassCheckType = {PyVarObject_HEAD_INIT(nullptr, 0)};
PyTypeObject CodeCheckType = {PyVarObject_HEAD_INIT(nullptr, 0)};

// The module's MISSING, kept for good.
PyObject* missing = nullptr;

template <class Item>
Check<Item>* cast(PyObject* object) {
  return reinterpret_cast<Check<Item>*>(object);
}

// ---- checking ----------------------------------------------------------------------------------------------------

// 1: as expected, 0: not, -1: an error to propagate. Keys compare in Python and may raise; an ordinary error says no.
int holds(const DictionaryItem& item) {
  PyObject* seen = PyDict_GetItemWithError(item.dictionary.get(), item.key.get());
  if (!seen && PyErr_Occurred()) {
    if (!error_is_ordinary()) return -1;
    PyErr_Clear();
    return 0;
  }
  return seen == item.expected.get();
}

int holds(const ClassItem& item) {
  return item.version != 0 && platform::class_version(reinterpret_cast<PyTypeObject*>(item.type.get())) == item.version;
}

int holds(const CodeItem& item) { return PyFunction_GET_CODE(item.function.get()) == item.code.get(); }

bool without_arguments(PyObject* object, size_t count, PyObject* names) {
  if (PyVectorcall_NARGS(count) == 0 && (!names || PyTuple_GET_SIZE(names) == 0)) return true;
  PyErr_Format(PyExc_TypeError, "%.200s() takes no arguments", Py_TYPE(object)->tp_name);
  return false;
}

template <class Item>
PyObject* call(PyObject* object, PyObject* const*, size_t count, PyObject* names) {
  if (!without_arguments(object, count, names)) return nullptr;
  Owned kept = share(object);  // a key's __eq__ may drop the last entry that has this check
  for (const Item& item : cast<Item>(object)->items) {
    int answer = holds(item);
    if (answer < 0) return nullptr;
    if (answer == 0) Py_RETURN_FALSE;
  }
  Py_RETURN_TRUE;
}

// What a check that the garbage collector has emptied answers: nothing can be vouched for any more.
PyObject* call_cleared(PyObject*, PyObject* const*, size_t, PyObject*) { Py_RETURN_FALSE; }

// ---- explaining --------------------------------------------------------------------------------------------------

// The repr, or where it raises, the class; null with an error set when that error is not an ordinary one.
Owned say(PyObject* object) {
  Owned words(PyObject_Repr(object));
  if (words || !error_is_ordinary()) return words;
  PyErr_Clear();
  return Owned(PyUnicode_FromFormat("<%.200s object>", Py_TYPE(object)->tp_name));
}

// "G", or the name of the module whose dictionary it is.
Owned dictionary_name(PyObject* dictionary) {
  Owned key(PyUnicode_InternFromString("__name__"));
  if (!key) return nullptr;
  Owned name = share(PyDict_GetItemWithError(dictionary, key.get()));
  if (name && PyUnicode_Check(name.get())) return name;
  if (PyErr_Occurred()) {
    if (!error_is_ordinary()) return nullptr;
    PyErr_Clear();
  }
  return Owned(PyUnicode_FromString("G"));
}

PyObject* explain(const DictionaryItem& item, PyObject* seen, bool found_out) {
  Owned name = dictionary_name(item.dictionary.get());
  Owned key = name ? say(item.key.get()) : nullptr;
  if (!key) return nullptr;
  if (!found_out) return PyUnicode_FromFormat("%U[%U] cannot be looked up", name.get(), key.get());
  Owned wanted = item.expected ? say(item.expected.get()) : Owned(PyUnicode_FromString("absent"));
  if (!wanted) return nullptr;
  if (!seen) return PyUnicode_FromFormat("%U[%U] is %U; nothing seen", name.get(), key.get(), wanted.get());
  Owned words = say(seen);
  if (!words) return nullptr;
  // Equal words for two objects would read as if nothing were wrong.
  const char* another = item.expected && PyUnicode_Compare(wanted.get(), words.get()) == 0 ? "another " : "";
  return PyUnicode_FromFormat("%U[%U] is %U; %s%U seen", name.get(), key.get(), wanted.get(), another, words.get());
}

PyObject* reason(PyObject* object, PyObject*) {
  for (const DictionaryItem& item : cast<DictionaryItem>(object)->items) {
    Owned seen = share(PyDict_GetItemWithError(item.dictionary.get(), item.key.get()));
    bool failed = !seen && PyErr_Occurred();
    if (failed) {
      if (!error_is_ordinary()) return nullptr;
      PyErr_Clear();
    }
    if (failed || seen != item.expected) return explain(item, seen.get(), !failed);
  }
  Py_RETURN_NONE;
}

// ---- making ------------------------------------------------------------------------------------------------------

// Each fills an item from its tuple; false with an error set when that is not one.
bool read(PyObject* tuple, DictionaryItem& item) {
  PyObject *dictionary, *key, *expected;
  if (!PyTuple_Check(tuple)) {
    PyErr_SetString(PyExc_TypeError, "an item of an ItemsCheck is a tuple (dictionary, key, expected)");
    return false;
  }
  if (!PyArg_ParseTuple(tuple, "O!OO:ItemsCheck", &PyDict_Type, &dictionary, &key, &expected)) return false;
  // Says now that a key is of no use; a str keeps its hash.
  if (PyObject_Hash(key) == -1) return false;
  item.dictionary = share(dictionary);
  item.key = share(key);
  item.expected = share(expected == missing ? nullptr : expected);
  return true;
}

bool read(PyObject* tuple, ClassItem& item) {
  PyObject *type, *version;
  if (!PyTuple_Check(tuple)) {
    PyErr_SetString(PyExc_TypeError, "an item of a ClassCheck is a tuple (cls, version)");
    return false;
  }
  if (!PyArg_ParseTuple(tuple, "O!O!:ClassCheck", &PyType_Type, &type, &PyLong_Type, &version)) return false;
  unsigned long number = PyLong_AsUnsignedLong(version);
  if (PyErr_Occurred()) return false;
  if (number > UINT_MAX) {
    PyErr_SetString(PyExc_OverflowError, "a version of a class is not that large");
    return false;
  }
  item.type = share(type);
  item.version = static_cast<unsigned int>(number);
  return true;
}

bool read(PyObject* tuple, CodeItem& item) {
  PyObject *function, *code;
  if (!PyTuple_Check(tuple)) {
    PyErr_SetString(PyExc_TypeError, "an item of a CodeCheck is a tuple (function, code)");
    return false;
  }
  if (!PyArg_ParseTuple(tuple, "O!O!:CodeCheck", &PyFunction_Type, &function, &PyCode_Type, &code)) return false;
  item.function = share(function);
  item.code = share(code);
  return true;
}

const char* format_of(const DictionaryItem*) { return "O:ItemsCheck"; }
const char* format_of(const ClassItem*) { return "O:ClassCheck"; }
const char* format_of(const CodeItem*) { return "O:CodeCheck"; }
const char* argument_of(const DictionaryItem*) { return "items"; }
const char* argument_of(const ClassItem*) { return "classes"; }
const char* argument_of(const CodeItem*) { return "functions"; }

template <class Item>
PyObject* create(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  const Item* kind = nullptr;
  const char* names[] = {argument_of(kind), nullptr};
  PyObject* given;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, format_of(kind), const_cast<char**>(names), &given)) return nullptr;
  // A copy, since hashing a key may run Python that changes the list.
  Owned tuples(PySequence_Tuple(given));
  if (!tuples) return nullptr;
  Owned object(type->tp_alloc(type, 0));
  if (!object) return nullptr;
  Check<Item>* self = cast<Item>(object.get());
  self->vectorcall = call<Item>;
  new (&self->items) std::vector<Item>();
  try {
    self->items.reserve(static_cast<size_t>(PyTuple_GET_SIZE(tuples.get())));
  } catch (const std::exception&) {
    return PyErr_NoMemory();
  }
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuples.get()); ++i) {
    Item item;
    if (!read(PyTuple_GET_ITEM(tuples.get(), i), item)) return nullptr;
    self->items.push_back(std::move(item));
  }
  return object.release();
}

int visit_item(const DictionaryItem& item, visitproc visit, void* arg) {
  Py_VISIT(item.dictionary.get());
  Py_VISIT(item.key.get());
  Py_VISIT(item.expected.get());
  return 0;
}

int visit_item(const ClassItem& item, visitproc visit, void* arg) {
  Py_VISIT(item.type.get());
  return 0;
}

int visit_item(const CodeItem& item, visitproc visit, void* arg) {
  Py_VISIT(item.function.get());
  Py_VISIT(item.code.get());
  return 0;
}

template <class Item>
int traverse(PyObject* object, visitproc visit, void* arg) {
  for (const Item& item : cast<Item>(object)->items) {
    if (int result = visit_item(item, visit, arg)) return result;
  }
  return 0;
}

template <class Item>
int clear(PyObject* object) {
  // Moved out first: releasing an object may run code that calls this check again.
  cast<Item>(object)->vectorcall = call_cleared;
  std::vector<Item> released = std::move(cast<Item>(object)->items);
  return 0;
}

template <class Item>
void deallocate(PyObject* object) {
  PyObject_GC_UnTrack(object);
  using Items = std::vector<Item>;
  cast<Item>(object)->items.~Items();
  Py_TYPE(object)->tp_free(object);
}

Py_ssize_t length(PyObject* object) { return static_cast<Py_ssize_t>(cast<DictionaryItem>(object)->items.size()); }

PyObject* missing_repr(PyObject*) { return PyUnicode_FromString("MISSING"); }

PyMethodDef items_methods[] = {
    {"reason", reason, METH_NOARGS, "reason() -> str | None: the first difference, in words."},
    {nullptr, nullptr, 0, nullptr}};

PySequenceMethods items_sequence = {};

template <class Item>
int add_check(PyObject* module, PyTypeObject& type) {
  type.tp_basicsize = sizeof(Check<Item>);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  type.tp_vectorcall_offset = offsetof(Check<Item>, vectorcall);
  type.tp_new = create<Item>;
  type.tp_dealloc = deallocate<Item>;
  type.tp_traverse = traverse<Item>;
  type.tp_clear = clear<Item>;
  type.tp_call = PyVectorcall_Call;
  return PyModule_AddType(module, &type);
}

int add_missing(PyObject* module) {
  PyTypeObject& type = MissingType;
  type.tp_name = "kiln._native.Missing";
  type.tp_doc = "The type of MISSING, which stands for the absence of a key.";
  type.tp_basicsize = sizeof(PyObject);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION;
  type.tp_repr = missing_repr;
  if (PyType_Ready(&type) < 0) return -1;
  if (!missing) missing = type.tp_alloc(&type, 0);
  return missing ? PyModule_AddObjectRef(module, "MISSING", missing) : -1;
}

}  // namespace

int add_object_checks(PyObject* module) {
  items_sequence.sq_length = length;
  ItemsCheckType.tp_name = "kiln._native.ItemsCheck";
  ItemsCheckType.tp_doc = "ItemsCheck(items): check() tells whether dictionaries hold the very objects expected.";
  ItemsCheckType.tp_as_sequence = &items_sequence;
  ItemsCheckType.tp_methods = items_methods;
  ClassCheckType.tp_name = "kiln._native.ClassCheck";
  ClassCheckType.tp_doc = "ClassCheck(classes): check() tells whether every class still has its version.";
  if (add_missing(module) < 0 || add_check<DictionaryItem>(module, ItemsCheckType) < 0) return -1;
  CodeCheckType.tp_name = "kiln._native.CodeCheck";
  CodeCheckType.tp_doc = "CodeCheck(functions): check() tells whether every function still has its code object.";
  if (add_check<ClassItem>(module, ClassCheckType) < 0) return -1;
  return add_check<CodeItem>(module, CodeCheckType);
}

}  // namespace kiln
