// Dispatcher: what kiln.compile(f) returns. A call finds the first entry whose check holds and runs it.
#include "platform/python.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include <structmember.h>

namespace kiln {
namespace {

// While set, every dispatcher of this thread calls its original function.
thread_local bool disabled = false;

// The call of a dispatcher that begins now is one that hooks on frames do not see.
thread_local bool begins_unseen = false;

struct Dispatcher {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject* function;
  PyObject* miss;
  PyObject* changed;
  PyObject* entries;
  // The Python function behind `function`, where there is one; borrowed, `function` keeps it alive.
  PyFunctionObject* definition;
  // What made up `definition` when the entries were compiled. Owned: a freed object's address could come back.
  PyObject* code;
  PyObject* defaults;
  PyObject* keyword_defaults;
  PyObject* attributes;
  PyObject* weak_references;
  // How often an entry was moved: a walk during which this changed may have stepped over one.
  size_t moves;
  char enabled;
};

PyTypeObject DispatcherType = {PyVarObject_HEAD_INIT(nullptr, 0)};

Dispatcher* cast(PyObject* object) { return reinterpret_cast<Dispatcher*>(object); }

// ---- redefinition of the function --------------------------------------------------------------------------------

PyFunctionObject* find_definition(PyObject* function) {
  if (PyMethod_Check(function)) function = PyMethod_GET_FUNCTION(function);
  return PyFunction_Check(function) ? reinterpret_cast<PyFunctionObject*>(function) : nullptr;
}

bool is_current(const Dispatcher* self) {
  PyFunctionObject* now = self->definition;
  return !now || (platform::function_code(now) == self->code && platform::function_defaults(now) == self->defaults &&
                  platform::function_keyword_defaults(now) == self->keyword_defaults);
}

void remember_definition(Dispatcher* self) {
  PyFunctionObject* now = self->definition;
  if (!now) return;
  Py_XSETREF(self->code, Py_XNewRef(platform::function_code(now)));
  Py_XSETREF(self->defaults, Py_XNewRef(platform::function_defaults(now)));
  Py_XSETREF(self->keyword_defaults, Py_XNewRef(platform::function_keyword_defaults(now)));
}

// Drops what was compiled from a definition that is gone; -1 with an error set on failure.
int forget_entries(Dispatcher* self) {
  remember_definition(self);
  Owned entries = share(self->entries);
  if (PyList_SetSlice(entries.get(), 0, PyList_GET_SIZE(entries.get()), nullptr) < 0) return -1;
  if (self->changed == Py_None) return 0;
  Owned hook = share(self->changed);
  Owned result(PyObject_CallOneArg(hook.get(), reinterpret_cast<PyObject*>(self)));
  return result ? 0 : -1;
}

// ---- calling -----------------------------------------------------------------------------------------------------

// 1: the entry applies, 0: it does not, -1: an error to propagate. A check that raises says no; one that answers with a
// tuple says yes, and the tuple is what it has read for the run function.
int applies(PyObject* check, PyObject* const* arguments, size_t count, PyObject* names, Owned& found) {
  if (check == Py_None) return 1;
  Owned answer(PyObject_Vectorcall(check, arguments, count, names));
  if (answer.get() == Py_True) return 1;
  if (answer.get() == Py_False) return 0;
  if (answer && PyTuple_CheckExact(answer.get())) {
    found = std::move(answer);
    return 1;
  }
  int truth = answer ? PyObject_IsTrue(answer.get()) : -1;
  if (truth < 0 && error_is_ordinary()) {
    PyErr_Clear();
    return 0;
  }
  return truth;
}

// Calls a run function: with what its check has read in front of the arguments, if it has read anything.
PyObject* call_run(PyObject* run, PyObject* found, PyObject* const* arguments, size_t count, PyObject* names) {
  if (!found) return PyObject_Vectorcall(run, arguments, count, names);
  constexpr size_t usual = 8;
  Py_ssize_t positional = PyVectorcall_NARGS(count);
  size_t all = static_cast<size_t>(positional) + (names ? PyTuple_GET_SIZE(names) : 0);
  PyObject* few[usual + 1];
  std::vector<PyObject*> many(all > usual ? all + 1 : 0);
  PyObject** shifted = all > usual ? many.data() : few;
  shifted[0] = found;
  std::copy(arguments, arguments + all, shifted + 1);
  return PyObject_Vectorcall(run, shifted, static_cast<size_t>(positional) + 1, names);
}

// Puts the entry that just hit in front, if the list is still as it was when the entry was read.
void move_to_front(Dispatcher* self, PyObject* entries, Py_ssize_t position, PyObject* entry) {
  if (position >= PyList_GET_SIZE(entries) || PyList_GET_ITEM(entries, position) != entry) return;
  for (Py_ssize_t i = position; i > 0; --i) {
    PyList_SET_ITEM(entries, i, PyList_GET_ITEM(entries, i - 1));
  }
  PyList_SET_ITEM(entries, 0, entry);
  ++self->moves;
}

PyObject* call_miss(Dispatcher* self, PyObject* const* arguments, size_t count, PyObject* names) {
  Py_ssize_t positional = PyVectorcall_NARGS(count);
  Owned args(PyTuple_New(positional));
  Owned kwargs(PyDict_New());
  if (!args || !kwargs) return nullptr;
  for (Py_ssize_t i = 0; i < positional; ++i) {
    PyTuple_SET_ITEM(args.get(), i, Py_NewRef(arguments[i]));
  }
  Py_ssize_t named = names ? PyTuple_GET_SIZE(names) : 0;
  for (Py_ssize_t i = 0; i < named; ++i) {
    if (PyDict_SetItem(kwargs.get(), PyTuple_GET_ITEM(names, i), arguments[positional + i]) < 0) return nullptr;
  }
  Owned miss = share(self->miss);
  return PyObject_CallFunctionObjArgs(miss.get(), self, args.get(), kwargs.get(), nullptr);
}

bool is_entry(PyObject* entry) {
  if (PyTuple_Check(entry) && PyTuple_GET_SIZE(entry) >= 2) return true;
  PyErr_Format(PyExc_TypeError, "an entry of a Dispatcher is a tuple (check, run), not %.200s",
               Py_TYPE(entry)->tp_name);
  return false;
}

// The entry that applies, moved to the front; null without an error set when there is none. Checks are Python and may do
// anything, so whatever is in use is held on to.
Owned find_entry(Dispatcher* self, PyObject* const* arguments, size_t count, PyObject* names, Owned& found) {
  Owned entries = share(self->entries);
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(entries.get()); ++i) {
    Owned entry = share(PyList_GET_ITEM(entries.get(), i));
    if (!is_entry(entry.get())) return nullptr;
    PyObject* check = PyTuple_GET_ITEM(entry.get(), 0);
    int answer = applies(check, arguments, count, names, found);
    if (answer < 0) return nullptr;
    if (answer == 0) continue;
    // An entry without a check takes everything: in front it would hide the others.
    if (i > 0 && check != Py_None) move_to_front(self, entries.get(), i, entry.get());
    return entry;
  }
  return nullptr;
}

// The same call once more, where a hook on frames does not see checks and what was compiled.
PyObject* call_again_unseen(PyObject* object, PyObject* const* arguments, size_t count, PyObject* names) {
  begins_unseen = true;
  PyObject* result = call_unseen(object, arguments, count, names);
  begins_unseen = false;  // it did not begin if the way there raised
  return result;
}

PyObject* call(PyObject* object, PyObject* const* arguments, size_t count, PyObject* names) {
  Dispatcher* self = cast(object);
  if (!self->function) {  // the garbage collector has taken it apart
    PyErr_SetString(PyExc_ReferenceError, "this Dispatcher has been cleared");
    return nullptr;
  }
  bool unseen = std::exchange(begins_unseen, false);
  if (disabled || !self->enabled) return PyObject_Vectorcall(self->function, arguments, count, names);
  if (is_hooked() && !unseen) return call_again_unseen(object, arguments, count, names);
  if (!is_current(self) && forget_entries(self) < 0) return nullptr;
  // A miss is expensive, so look again if another thread moved entries meanwhile; not for ever, in case a check does.
  for (int tries = 0; tries < 8; ++tries) {
    size_t moves = self->moves;
    Owned found;
    Owned entry = find_entry(self, arguments, count, names, found);
    if (entry) return call_run(PyTuple_GET_ITEM(entry.get(), 1), found.get(), arguments, count, names);
    if (PyErr_Occurred()) return nullptr;
    if (moves == self->moves) break;
  }
  return call_miss(self, arguments, count, names);
}

// ---- being a function --------------------------------------------------------------------------------------------

// A class attribute binds to an instance if the original would: functions do, bound methods and plain callable objects do
// not, other descriptors are asked. What one of these makes that is no method of the original is given as it is.
PyObject* bind(PyObject* self, PyObject* instance, PyObject* kind) {
  PyObject* function = cast(self)->function;
  if (!instance || instance == Py_None || !function) return Py_NewRef(self);
  while (Py_IS_TYPE(function, &DispatcherType) && cast(function)->function) function = cast(function)->function;
  if (PyFunction_Check(function)) return PyMethod_New(self, instance);
  descrgetfunc getter = Py_TYPE(function)->tp_descr_get;
  if (!getter || PyMethod_Check(function) || Py_IS_TYPE(function, &PyStaticMethod_Type)) return Py_NewRef(self);
  Owned made(getter(function, instance, kind));
  if (made.get() == function) return Py_NewRef(self);
  bool method = made && PyMethod_Check(made.get()) && PyMethod_GET_FUNCTION(made.get()) == function;
  if (method && PyMethod_GET_SELF(made.get()) == instance) return PyMethod_New(self, instance);
  return made.release();
}

PyObject* from_function(PyObject* self, PyObject* name) {
  PyObject* function = cast(self)->function;
  if (!function) {
    PyErr_SetObject(PyExc_AttributeError, name);
    return nullptr;
  }
  return PyObject_GetAttr(function, name);
}

PyObject* get_attribute(PyObject* self, PyObject* name) {
  // The type has its own __doc__, which would hide the function's.
  bool is_doc = PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, "__doc__") == 0;
  if (is_doc) {
    PyObject* attributes = cast(self)->attributes;
    PyObject* found = attributes ? PyDict_GetItemWithError(attributes, name) : nullptr;
    if (found) return Py_NewRef(found);
    return PyErr_Occurred() ? nullptr : from_function(self, name);
  }
  PyObject* found = PyObject_GenericGetAttr(self, name);
  if (found || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
  PyErr_Clear();
  return from_function(self, name);
}

PyObject* represent(PyObject* self) {
  return PyUnicode_FromFormat("<kiln.compile of %R>", cast(self)->function ? cast(self)->function : Py_None);
}

// ---- construction, copies, attributes ----------------------------------------------------------------------------

PyObject* create(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"function", "miss", nullptr};
  PyObject *function, *miss;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:Dispatcher", const_cast<char**>(names), &function, &miss)) {
    return nullptr;
  }
  if (!PyCallable_Check(function) || !PyCallable_Check(miss)) {
    PyErr_SetString(PyExc_TypeError, "Dispatcher(function, miss) needs two callables");
    return nullptr;
  }
  Owned object(type->tp_alloc(type, 0));
  if (!object) return nullptr;
  Dispatcher* self = cast(object.get());
  self->vectorcall = call;
  self->function = Py_NewRef(function);
  self->miss = Py_NewRef(miss);
  self->changed = Py_NewRef(Py_None);
  self->entries = PyList_New(0);
  self->enabled = 1;
  self->definition = find_definition(function);
  if (!self->entries) return nullptr;
  remember_definition(self);
  return object.release();
}

PyObject* sync(PyObject* self, PyObject*) {
  remember_definition(cast(self));
  Py_RETURN_NONE;
}

// Functions are pickled by name, and so is this: the name must lead back to this object.
PyObject* reduce(PyObject* self, PyObject*) { return PyObject_GetAttrString(self, "__qualname__"); }

// A plain function is shared by copies; a method of a copied object must become a method of the copy, not yet compiled.
PyObject* deep_copy(PyObject* object, PyObject* memo) {
  Dispatcher* self = cast(object);
  Owned module(PyImport_ImportModule("copy"));
  if (!module) return nullptr;
  Owned function(PyObject_CallMethod(module.get(), "deepcopy", "OO", self->function, memo));
  if (!function) return nullptr;
  if (function.get() == self->function) return Py_NewRef(object);
  Owned made(PyObject_CallFunctionObjArgs(reinterpret_cast<PyObject*>(&DispatcherType), function.get(), self->miss,
                                          nullptr));
  if (!made) return nullptr;
  Dispatcher* copy = cast(made.get());
  copy->enabled = self->enabled;
  Py_XSETREF(copy->changed, Py_NewRef(self->changed));
  if (self->attributes) {
    copy->attributes = PyDict_Copy(self->attributes);
    if (!copy->attributes) return nullptr;
  }
  return made.release();
}

PyObject* get_entries(PyObject* self, void*) {
  return Py_NewRef(cast(self)->entries ? cast(self)->entries : Py_None);
}

int set_entries(PyObject* self, PyObject* value, void*) {
  if (!value || !PyList_Check(value)) {
    PyErr_SetString(PyExc_TypeError, "entries must be a list of tuples (check, run)");
    return -1;
  }
  Py_XSETREF(cast(self)->entries, Py_NewRef(value));
  return 0;
}

// `miss` and `changed` are called, so neither may be deleted; the closure says which of the two is meant.
template <PyObject* Dispatcher::*field>
PyObject* get_field(PyObject* self, void*) {
  return Py_NewRef(cast(self)->*field ? cast(self)->*field : Py_None);
}

template <PyObject* Dispatcher::*field>
int set_callable(PyObject* self, PyObject* value, void* may_be_none) {
  if (!value || !(PyCallable_Check(value) || (may_be_none && value == Py_None))) {
    PyErr_SetString(PyExc_TypeError, "a callable is needed");
    return -1;
  }
  Py_XSETREF(cast(self)->*field, Py_NewRef(value));
  return 0;
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  Dispatcher* self = cast(object);
  Py_VISIT(self->function);
  Py_VISIT(self->miss);
  Py_VISIT(self->changed);
  Py_VISIT(self->entries);
  Py_VISIT(self->code);
  Py_VISIT(self->defaults);
  Py_VISIT(self->keyword_defaults);
  Py_VISIT(self->attributes);
  return 0;
}

int clear(PyObject* object) {
  Dispatcher* self = cast(object);
  self->definition = nullptr;
  Py_CLEAR(self->function);
  Py_CLEAR(self->miss);
  Py_CLEAR(self->changed);
  Py_CLEAR(self->entries);
  Py_CLEAR(self->code);
  Py_CLEAR(self->defaults);
  Py_CLEAR(self->keyword_defaults);
  Py_CLEAR(self->attributes);
  return 0;
}

void deallocate(PyObject* object) {
  PyObject_GC_UnTrack(object);
  if (cast(object)->weak_references) PyObject_ClearWeakRefs(object);
  clear(object);
  Py_TYPE(object)->tp_free(object);
}

PyMethodDef methods[] = {
    {"sync", sync, METH_NOARGS, "Take the function as it is now for the one the entries were made from."},
    {"__reduce__", reduce, METH_NOARGS, nullptr},
    {"__deepcopy__", deep_copy, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyMemberDef members[] = {
    {"function", T_OBJECT, offsetof(Dispatcher, function), READONLY, "the original callable"},
    {"__wrapped__", T_OBJECT, offsetof(Dispatcher, function), READONLY, "the original callable"},
    {"enabled", T_BOOL, offsetof(Dispatcher, enabled), 0, "when False, calls go to the original"},
    {nullptr, 0, 0, 0, nullptr}};

char yes[] = "yes";
PyGetSetDef properties[] = {
    {"entries", get_entries, set_entries, "list of (check, run)", nullptr},
    {"miss", get_field<&Dispatcher::miss>, set_callable<&Dispatcher::miss>, "called when no entry applies", nullptr},
    {"changed", get_field<&Dispatcher::changed>, set_callable<&Dispatcher::changed>,
     "called with the dispatcher when the function was redefined, or None", yes},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

// ---- switching compiled code off in one thread -------------------------------------------------------------------

PyObject* set_disabled(PyObject*, PyObject* value) {
  int wanted = PyObject_IsTrue(value);
  if (wanted < 0) return nullptr;
  bool before = disabled;
  disabled = wanted;
  return PyBool_FromLong(before);
}

PyObject* is_disabled(PyObject*, PyObject*) { return PyBool_FromLong(disabled); }

PyMethodDef functions[] = {
    {"set_disabled", set_disabled, METH_O, "set_disabled(flag) -> bool: switch this thread; returns what it was."},
    {"is_disabled", is_disabled, METH_NOARGS, "is_disabled() -> bool: does this thread run the original functions?"},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_dispatcher(PyObject* module) {
  PyTypeObject& type = DispatcherType;
  type.tp_name = "kiln._native.Dispatcher";
  type.tp_doc = "Dispatcher(function, miss): a callable that runs the first entry whose check holds.";
  type.tp_basicsize = sizeof(Dispatcher);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  type.tp_vectorcall_offset = offsetof(Dispatcher, vectorcall);
  type.tp_dictoffset = offsetof(Dispatcher, attributes);
  type.tp_weaklistoffset = offsetof(Dispatcher, weak_references);
  type.tp_new = create;
  type.tp_dealloc = deallocate;
  type.tp_traverse = traverse;
  type.tp_clear = clear;
  type.tp_call = PyVectorcall_Call;
  type.tp_repr = represent;
  type.tp_getattro = get_attribute;
  type.tp_setattro = PyObject_GenericSetAttr;
  type.tp_descr_get = bind;
  type.tp_methods = methods;
  type.tp_members = members;
  type.tp_getset = properties;
  if (PyModule_AddFunctions(module, functions) < 0) return -1;
  return PyModule_AddType(module, &type);
}

}  // namespace kiln
