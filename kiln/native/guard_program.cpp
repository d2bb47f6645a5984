// GuardProgram: are the objects that a compiled entry relies on still as they were? A list of steps over registers, which
// also gives the objects that the entry's graph takes as inputs.
//
// Registers hold borrowed references: first the call's roots (arguments, closure cells), then constants of the entry,
// then what steps read. A step defends itself: it asks for nothing that an earlier step must have checked. Nearly all
// steps run no Python. Before one that may (a key with its own __eq__, a constant that is compared in Python), everything
// that was read so far is held until the run is over: Python code can drop any of it.
//
// Most of what is read are entries of dictionaries: attributes of modules, their parameters. All that is known of one
// dictionary is one table. A table that was looked at before is known to hold as long as its dictionary is in the same
// state (platform/dictionaries.h), and the registers it filled are still right.
#include "distinct.h"
#include "platform/python.h"

#include <cstring>
#include <new>
#include <string>
#include <unordered_map>
#include <vector>

namespace kiln {
namespace {

enum class Op {
  // about one entry of a dictionary
  read, absent, present, is, is_not, equals,
  // about its entries in their order
  keys, key_at, value_at,
  // about one register
  table, type, empty, full, length, element, cell, gradient, code, same, not_same,
};

const std::unordered_map<std::string, Op> op_names = {
    {"read", Op::read},         {"absent", Op::absent}, {"present", Op::present}, {"is", Op::is},
    {"is_not", Op::is_not},     {"equals", Op::equals}, {"keys", Op::keys},       {"table", Op::table},
    {"type", Op::type},         {"empty", Op::empty},   {"full", Op::full},       {"length", Op::length},
    {"element", Op::element},   {"cell", Op::cell},     {"code", Op::code},       {"same", Op::same},
    {"not_same", Op::not_same}, {"key_at", Op::key_at}, {"value_at", Op::value_at}, {"gradient", Op::gradient},
};

// What is known of one entry of a dictionary; `target` is the register that a read fills, `place` the entry's in the
// dictionary's order.
struct Fact {
  Op op;
  int target = -1;
  Py_ssize_t place = -1;
  Owned key;
  Py_hash_t hash = 0;
  Owned expected;
};

// What is known of one dictionary: the one in the register, or the attributes of the object in it.
struct Table {
  bool of_attributes = false;
  std::vector<Fact> facts;
};

bool fills_register(const Fact& fact) { return fact.target >= 0; }

struct Step {
  Op op;
  int base = 0;
  int target = -1;        // a register, or the number of a table
  Py_ssize_t number = 0;  // a length or an index
  Owned object;
};

// How far the entries of a dictionary were counted: `position` is where PyDict_Next finds entry number `place`.
struct Cursor {
  Py_ssize_t position = 0, place = 0;
};

// What a run of the program leaves behind for the next one.
struct State {
  std::vector<PyObject*> registers;
  std::vector<platform::DictionaryState> seen;  // by table: the state of the dictionary for which it last held
  std::vector<int> changed;  // registers that hold another object than the last time
  bool all_distinct = false;  // the registers that must differ did so at the last run
  // How far this run has come, noted before a step that may run Python: the registers that earlier steps and facts fill
  // are this run's.
  size_t step = 0;
  size_t fact = 0;
  Cursor cursor;  // in the dictionary at hand
  // What is held, and how far that goes.
  std::vector<Owned> held;
  size_t held_steps = 0;
  size_t held_facts = 0;  // of the step at hand
};

struct GuardProgram {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  int roots;
  std::vector<Step> steps;
  std::vector<Table> tables;
  std::vector<Owned> constants;  // in the registers after the roots
  std::vector<int> inputs;
  std::vector<int> tensors;
  std::vector<int> distinct;
  std::vector<char> must_differ;  // by register: whether it is one of `distinct`
  Owned tensor_check;             // or null
  Owned same_constant;            // compares constants that are no str, int or float
  State* state;
  bool running;
};

PyTypeObject GuardProgramType = {PyVarObject_HEAD_INIT(nullptr, 0)};

GuardProgram* cast(PyObject* object) { return reinterpret_cast<GuardProgram*>(object); }

// ---- dictionaries ------------------------------------------------------------------------------------------------

PyObject* find(PyObject* dictionary, const Fact& fact) {
  return platform::find_by_hash(dictionary, fact.key.get(), fact.hash);
}

// ---- holding -----------------------------------------------------------------------------------------------------

// Whether looking a key up may run Python: comparing two keys of str does not.
bool may_run_python(PyObject* dictionary, PyObject* key) {
  return !PyUnicode_CheckExact(key) || !platform::knows_dictionary_keys() || !platform::has_str_keys_only(dictionary);
}

void hold_register(State& state, int index) { state.held.push_back(share(state.registers[index])); }

void hold_facts(State& state, const Table& table, size_t first, size_t end) {
  for (size_t i = first; i < end; ++i) {
    if (fills_register(table.facts[i])) hold_register(state, table.facts[i].target);
  }
}

// Holds what this run has read so far. Roots are held by the caller, constants by the program.
void hold_all(const GuardProgram* self, State& state) {
  for (; state.held_steps < state.step; ++state.held_steps) {
    const Step& step = self->steps[state.held_steps];
    if (step.op == Op::element || step.op == Op::cell) hold_register(state, step.target);
    if (step.op == Op::table) {
      const Table& table = self->tables[step.target];
      hold_facts(state, table, state.held_facts, table.facts.size());
    }
    state.held_facts = 0;
  }
  const Step& now = self->steps[state.step];
  if (now.op != Op::table) return;
  hold_facts(state, self->tables[now.target], state.held_facts, state.fact);
  state.held_facts = state.fact;
}

void note_step(const GuardProgram* self, State& state, const Step& step) {
  state.step = static_cast<size_t>(&step - self->steps.data());
}

bool same_float(PyObject* a, PyObject* b) {
  double x = PyFloat_AS_DOUBLE(a), y = PyFloat_AS_DOUBLE(b);
  return std::memcmp(&x, &y, sizeof x) == 0 || (x != x && y != y);
}

// 1: no program could tell them apart, 0: one could, -1: an error is set.
int same_constant(const GuardProgram* self, State& state, PyObject* seen, PyObject* expected) {
  if (seen == expected) return 1;
  if (Py_TYPE(seen) != Py_TYPE(expected)) return 0;
  if (PyFloat_CheckExact(seen)) return same_float(seen, expected);
  if (PyLong_CheckExact(seen) || PyUnicode_CheckExact(seen)) return PyObject_RichCompareBool(seen, expected, Py_EQ);
  hold_all(self, state);
  Owned held = share(seen);
  Owned answer(PyObject_CallFunctionObjArgs(self->same_constant.get(), seen, expected, nullptr));
  return answer ? PyObject_IsTrue(answer.get()) : -1;
}

// Whether PyDict_Next gives the entries in the dictionary's order.
bool has_plain_order(PyObject* dictionary) { return PyDict_Check(dictionary) && !PyODict_Check(dictionary); }

// An Ellipsis among the keys stands for any key.
int same_keys(const GuardProgram* self, State& state, PyObject* dictionary, PyObject* keys) {
  if (!has_plain_order(dictionary) || PyDict_GET_SIZE(dictionary) != PyTuple_GET_SIZE(keys)) return 0;
  Owned held = share(dictionary);
  Py_ssize_t position = 0, index = 0;
  PyObject *key, *value;
  while (PyDict_Next(dictionary, &position, &key, &value)) {
    if (index == PyTuple_GET_SIZE(keys)) return 0;  // comparing has added a key
    PyObject* expected = PyTuple_GET_ITEM(keys, index++);
    int answer = expected == Py_Ellipsis ? 1 : same_constant(self, state, key, expected);
    if (answer <= 0) return answer;
  }
  return index == PyTuple_GET_SIZE(keys);
}

void put(State& state, int target, PyObject* object) {
  if (state.registers[target] == object) return;
  state.registers[target] = object;
  state.changed.push_back(target);
}

// Reads the key or the value of an entry by its place in the order.
int read_place(State& state, const Fact& fact, PyObject* dictionary) {
  if (!dictionary || !has_plain_order(dictionary)) return 0;
  Cursor& cursor = state.cursor;
  if (cursor.place > fact.place) cursor = {};
  PyObject *key, *value;
  Py_ssize_t next = cursor.position;
  while (PyDict_Next(dictionary, &next, &key, &value)) {
    if (cursor.place == fact.place) {
      put(state, fact.target, fact.op == Op::key_at ? key : value);
      return 1;
    }
    cursor = {next, cursor.place + 1};
  }
  return 0;
}

// Without an error set, a null `found` means that there is no such entry.
int fact_holds(const GuardProgram* self, State& state, const Fact& fact, PyObject* dictionary) {
  if (fact.op == Op::keys) return dictionary ? same_keys(self, state, dictionary, fact.expected.get()) : 0;
  if (fact.place >= 0) return read_place(state, fact, dictionary);
  if (dictionary && may_run_python(dictionary, fact.key.get())) {
    hold_all(self, state);
    state.held.push_back(share(dictionary));
  }
  PyObject* found = dictionary ? find(dictionary, fact) : nullptr;
  if (!found && PyErr_Occurred()) return -1;
  switch (fact.op) {
    case Op::read:
      if (!found) return 0;
      put(state, fact.target, found);
      return 1;
    case Op::absent: return !found;
    case Op::present: return found != nullptr;
    case Op::is: return found == fact.expected.get();
    case Op::is_not: return found && found != fact.expected.get();
    case Op::equals: return found ? same_constant(self, state, found, fact.expected.get()) : 0;
    default: return 0;
  }
}

int table_holds(const GuardProgram* self, State& state, const Step& step) {
  const Table& table = self->tables[step.target];
  platform::DictionaryState& seen = state.seen[step.target];
  PyObject* base = state.registers[step.base];
  PyObject* dictionary = table.of_attributes ? platform::attribute_dictionary(base) : base;
  if (!table.of_attributes && !PyDict_Check(base)) return 0;
  if (seen.is_state_of(dictionary)) return 1;
  seen = {};
  // Taken before the facts are looked at: Python code that runs meanwhile may change the dictionary.
  auto now = dictionary ? platform::DictionaryState::of(dictionary) : platform::DictionaryState();
  note_step(self, state, step);
  state.cursor = {};
  for (state.fact = 0; state.fact < table.facts.size(); ++state.fact) {
    int answer = fact_holds(self, state, table.facts[state.fact], dictionary);
    if (answer <= 0) return answer;
  }
  seen = std::move(now);
  return 1;
}

// ---- steps -------------------------------------------------------------------------------------------------------

Py_ssize_t length_of(PyObject* object) {
  if (PyDict_Check(object)) return PyDict_GET_SIZE(object);
  if (PyList_Check(object) || PyTuple_Check(object)) return Py_SIZE(object);
  return -1;
}

int read_element(State& state, const Step& step) {
  PyObject* base = state.registers[step.base];
  if (!(PyList_Check(base) || PyTuple_Check(base)) || step.number >= Py_SIZE(base)) return 0;
  put(state, step.target, PyList_Check(base) ? PyList_GET_ITEM(base, step.number) : PyTuple_GET_ITEM(base, step.number));
  return 1;
}

int read_cell(State& state, const Step& step) {
  PyObject* base = state.registers[step.base];
  if (!PyCell_Check(base) || !PyCell_GET(base)) return 0;
  put(state, step.target, PyCell_GET(base));
  return 1;
}

// Making the gradient's object may collect garbage, which runs Python.
int read_gradient(const GuardProgram* self, State& state, const Step& step) {
  note_step(self, state, step);
  hold_all(self, state);
  Owned gradient(stored_gradient(state.registers[step.base]));
  if (!gradient) return PyErr_Occurred() ? -1 : 0;
  put(state, step.target, gradient.get());
  state.held.push_back(std::move(gradient));
  return 1;
}

int step_holds(const GuardProgram* self, State& state, const Step& step) {
  PyObject* base = state.registers[step.base];
  PyObject* expected = step.object.get();
  switch (step.op) {
    case Op::table: return table_holds(self, state, step);
    case Op::type: return reinterpret_cast<PyObject*>(Py_TYPE(base)) == expected;
    case Op::empty: return length_of(base) == 0;
    case Op::full: return length_of(base) > 0;
    case Op::length: return length_of(base) == step.number;
    case Op::element: return read_element(state, step);
    case Op::cell: return read_cell(state, step);
    case Op::gradient: return read_gradient(self, state, step);
    case Op::is: return base == expected;
    case Op::is_not: return base != expected;
    case Op::equals: note_step(self, state, step); return same_constant(self, state, base, expected);
    case Op::code: return PyFunction_Check(base) && PyFunction_GET_CODE(base) == expected;
    case Op::same: return base == state.registers[step.target];
    case Op::not_same: return base != state.registers[step.target];
    default: return 0;
  }
}

// ---- what must differ --------------------------------------------------------------------------------------------

bool differs_from_others(const GuardProgram* self, const State& state, int changed) {
  PyObject* object = state.registers[changed];
  size_t found = 0;
  for (int other : self->distinct) found += state.registers[other] == object;
  return found == 1;
}

// Objects that are the same ones as the last time still differ: only the others are looked at.
bool all_differ(const GuardProgram* self, State& state) {
  constexpr size_t few = 8;
  std::vector<int> changed;
  for (int index : state.changed) {
    if (self->must_differ[index]) changed.push_back(index);
  }
  if (state.all_distinct && changed.size() <= few) {
    for (int index : changed) {
      if (!differs_from_others(self, state, index)) return false;
    }
    return true;
  }
  Distinct seen(self->distinct.size());
  for (int index : self->distinct) {
    if (!seen.add(state.registers[index])) return false;
  }
  return true;
}

// ---- running -----------------------------------------------------------------------------------------------------

Owned take_inputs(const GuardProgram* self, const State& state) {
  Owned inputs(PyTuple_New(static_cast<Py_ssize_t>(self->inputs.size())));
  if (!inputs) return nullptr;
  Py_ssize_t position = 0;
  for (int index : self->inputs) PyTuple_SET_ITEM(inputs.get(), position++, Py_NewRef(state.registers[index]));
  return inputs;
}

// 1: all like the tensors described, 0: not, -1: an error is set.
int tensors_fit(const GuardProgram* self, const State& state) {
  if (!self->tensor_check) return 1;
  // Held: a tensor subclass answers in Python, which may do anything.
  std::vector<Owned> held;
  std::vector<PyObject*> objects;
  held.reserve(self->tensors.size());
  objects.reserve(self->tensors.size());
  for (int index : self->tensors) {
    held.push_back(share(state.registers[index]));
    objects.push_back(state.registers[index]);
  }
  return tensors_match(self->tensor_check.get(), objects.data(), objects.size());
}

// 1: everything holds, 0: something does not, -1: an error is set.
int holds(const GuardProgram* self, State& state, PyObject* const* roots, Owned& inputs) {
  state.changed.clear();
  state.held_steps = state.held_facts = 0;
  for (int i = 0; i < self->roots; ++i) put(state, i, roots[i]);
  for (const Step& step : self->steps) {
    int answer = step_holds(self, state, step);
    if (answer <= 0) return answer;
  }
  if (!self->distinct.empty() && !all_differ(self, state)) return 0;
  inputs = take_inputs(self, state);
  if (!inputs) return -1;
  return tensors_fit(self, state);
}

void prepare(const GuardProgram* self, State& state) {
  state.registers.assign(self->must_differ.size(), nullptr);
  state.seen.assign(self->tables.size(), {});
  for (size_t i = 0; i < self->constants.size(); ++i) state.registers[self->roots + i] = self->constants[i].get();
}

PyObject* call(PyObject* object, PyObject* const* arguments, size_t count, PyObject* names) {
  GuardProgram* self = cast(object);
  if (PyVectorcall_NARGS(count) != self->roots || (names && PyTuple_GET_SIZE(names))) {
    return PyErr_Format(PyExc_TypeError, "this GuardProgram takes %d positional arguments", self->roots);
  }
  // Comparing may run Python, and that this very program: then it works on a state of its own.
  State own;
  bool nested = self->running;
  if (nested) prepare(self, own);
  State& state = nested ? own : *self->state;
  self->running = true;
  Owned kept = share(object);
  Owned inputs;
  int answer = holds(self, state, arguments, inputs);
  // What was put into registers without its table having been seen to the end must not count as known.
  state.all_distinct = answer == 1;
  // Taken out first: what dies here may run Python, and that this very program.
  std::vector<Owned> held;
  if (!state.held.empty()) held = std::move(state.held);
  state.held.clear();
  if (!nested) self->running = false;
  if (answer < 0) {
    if (!error_is_ordinary()) return nullptr;
    PyErr_Clear();
  }
  if (answer <= 0) Py_RETURN_FALSE;
  return inputs.release();
}

// ---- making ------------------------------------------------------------------------------------------------------

bool read_op(PyObject* word, Op& op) {
  const char* name = PyUnicode_Check(word) ? PyUnicode_AsUTF8(word) : nullptr;
  auto found = name ? op_names.find(name) : op_names.end();
  if (found == op_names.end()) {
    if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "a GuardProgram has no step %R", word);
    return false;
  }
  op = found->second;
  return true;
}

bool valid_register(const GuardProgram* self, Py_ssize_t index) {
  if (index >= 0 && index < static_cast<Py_ssize_t>(self->must_differ.size())) return true;
  PyErr_Format(PyExc_IndexError, "a GuardProgram has no register %zd", index);
  return false;
}

bool reads_place(Op op) { return op == Op::key_at || op == Op::value_at; }

// A fact is (op, key, what): `what` is the register to fill, the object expected, or None. Where it is about a place in
// the dictionary's order, that is the key.
bool add_fact(GuardProgram* self, Table& table, PyObject* tuple) {
  PyObject *word, *key, *what;
  Fact fact;
  if (!PyArg_ParseTuple(tuple, "OOO:GuardProgram", &word, &key, &what) || !read_op(word, fact.op)) return false;
  fact.key = share(key);
  fact.hash = PyObject_Hash(key);
  if (fact.hash == -1) return false;
  if (fact.op == Op::keys && !PyTuple_Check(what)) {
    PyErr_SetString(PyExc_TypeError, "the keys of a dictionary are a tuple");
    return false;
  }
  if (reads_place(fact.op)) {
    fact.place = PyLong_AsSsize_t(key);
    if (PyErr_Occurred()) return false;
    if (fact.place < 0) {
      PyErr_SetString(PyExc_ValueError, "a place in a dictionary is not negative");
      return false;
    }
  }
  if (fact.op == Op::read || reads_place(fact.op)) {
    Py_ssize_t target = PyLong_AsSsize_t(what);
    if (PyErr_Occurred() || !valid_register(self, target)) return false;
    fact.target = static_cast<int>(target);
  } else {
    fact.expected = share(what);
  }
  table.facts.push_back(std::move(fact));
  return true;
}

bool add_table(GuardProgram* self, Step& step, PyObject* description) {
  int of_attributes;
  PyObject* facts;
  if (!PyArg_ParseTuple(description, "pO!:GuardProgram", &of_attributes, &PyList_Type, &facts)) return false;
  Table table;
  table.of_attributes = of_attributes;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(facts); ++i) {
    if (!add_fact(self, table, PyList_GET_ITEM(facts, i))) return false;
  }
  step.target = static_cast<int>(self->tables.size());
  self->tables.push_back(std::move(table));
  return true;
}

// A step is (op, base register, number, object): `number` a length, an index or a second register, -1 where there is
// none; for an element, a cell or a gradient the object is the register to fill, for a table (of attributes?, [facts]).
bool add_step(GuardProgram* self, PyObject* tuple) {
  PyObject *word, *object;
  Py_ssize_t base, number;
  Step step;
  if (!PyArg_ParseTuple(tuple, "OnnO:GuardProgram", &word, &base, &number, &object) || !read_op(word, step.op) ||
      !valid_register(self, base)) {
    return false;
  }
  step.base = static_cast<int>(base);
  step.number = number;
  if (step.op == Op::table) {
    if (!add_table(self, step, object)) return false;
  } else if (step.op == Op::element || step.op == Op::cell || step.op == Op::gradient) {
    Py_ssize_t target = PyLong_AsSsize_t(object);
    if (PyErr_Occurred() || !valid_register(self, target)) return false;
    step.target = static_cast<int>(target);
  } else if (step.op == Op::same || step.op == Op::not_same) {
    if (!valid_register(self, number)) return false;
    step.target = static_cast<int>(number);
  } else {
    step.object = share(object);
  }
  self->steps.push_back(std::move(step));
  return true;
}

bool read_registers(const GuardProgram* self, PyObject* list, std::vector<int>& registers) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    Py_ssize_t index = PyLong_AsSsize_t(PyList_GET_ITEM(list, i));
    if (PyErr_Occurred() || !valid_register(self, index)) return false;
    registers.push_back(static_cast<int>(index));
  }
  return true;
}

bool fill(GuardProgram* self, PyObject* constants, PyObject* steps, PyObject* inputs, PyObject* distinct,
          PyObject* tensors) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(constants); ++i) {
    self->constants.push_back(share(PyList_GET_ITEM(constants, i)));
  }
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(steps); ++i) {
    if (!add_step(self, PyList_GET_ITEM(steps, i))) return false;
  }
  if (!read_registers(self, inputs, self->inputs) || !read_registers(self, distinct, self->distinct) ||
      !read_registers(self, tensors, self->tensors)) {
    return false;
  }
  for (int index : self->distinct) self->must_differ[index] = 1;
  prepare(self, *self->state);
  return true;
}

PyObject* create(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  static const char* names[] = {"registers", "roots",        "constants",     "steps", "inputs", "distinct",
                                "tensors",   "tensor_check", "same_constant", nullptr};
  int registers, roots;
  PyObject *constants, *steps, *inputs, *distinct, *tensors, *tensor_check, *compare;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iiO!O!O!O!O!OO:GuardProgram", const_cast<char**>(names), &registers,
                                   &roots, &PyList_Type, &constants, &PyList_Type, &steps, &PyList_Type, &inputs,
                                   &PyList_Type, &distinct, &PyList_Type, &tensors, &tensor_check, &compare)) {
    return nullptr;
  }
  if (roots < 0 || roots + PyList_GET_SIZE(constants) > registers) {
    PyErr_SetString(PyExc_ValueError, "a GuardProgram needs a register for each root and constant");
    return nullptr;
  }
  Py_ssize_t checked = tensor_check == Py_None ? 0 : PyObject_Length(tensor_check);
  if (checked < 0) return nullptr;
  if (checked != PyList_GET_SIZE(tensors)) {
    return PyErr_Format(PyExc_ValueError, "%zd tensors are described, %zd registers given", checked,
                        PyList_GET_SIZE(tensors));
  }
  Owned object(type->tp_alloc(type, 0));
  if (!object) return nullptr;
  GuardProgram* self = cast(object.get());
  self->vectorcall = call;
  new (&self->steps) std::vector<Step>();
  new (&self->tables) std::vector<Table>();
  new (&self->constants) std::vector<Owned>();
  new (&self->inputs) std::vector<int>();
  new (&self->tensors) std::vector<int>();
  new (&self->distinct) std::vector<int>();
  new (&self->must_differ) std::vector<char>(static_cast<size_t>(registers), 0);
  new (&self->tensor_check) Owned(tensor_check == Py_None ? nullptr : Py_NewRef(tensor_check));
  new (&self->same_constant) Owned(Py_NewRef(compare));
  self->state = new State();
  self->roots = roots;
  return fill(self, constants, steps, inputs, distinct, tensors) ? object.release() : nullptr;
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  GuardProgram* self = cast(object);
  for (const Step& step : self->steps) Py_VISIT(step.object.get());
  for (const Table& table : self->tables) {
    for (const Fact& fact : table.facts) {
      Py_VISIT(fact.key.get());
      Py_VISIT(fact.expected.get());
    }
  }
  for (const Owned& constant : self->constants) Py_VISIT(constant.get());
  Py_VISIT(self->tensor_check.get());
  Py_VISIT(self->same_constant.get());
  return 0;
}

// What a program that the garbage collector has emptied answers: nothing can be vouched for any more.
PyObject* call_cleared(PyObject*, PyObject* const*, size_t, PyObject*) { Py_RETURN_FALSE; }

int clear(PyObject* object) {
  GuardProgram* self = cast(object);
  self->vectorcall = call_cleared;
  // Moved out first: releasing an object may run code that calls this program again.
  std::vector<Step> steps = std::move(self->steps);
  std::vector<Table> tables = std::move(self->tables);
  std::vector<Owned> constants = std::move(self->constants);
  Owned tensor_check = std::move(self->tensor_check);
  Owned same_constant = std::move(self->same_constant);
  return 0;
}

void deallocate(PyObject* object) {
  PyObject_GC_UnTrack(object);
  GuardProgram* self = cast(object);
  clear(object);
  delete self->state;
  using Numbers = std::vector<int>;
  using Flags = std::vector<char>;
  using Steps = std::vector<Step>;
  using Tables = std::vector<Table>;
  using Objects = std::vector<Owned>;
  self->steps.~Steps();
  self->tables.~Tables();
  self->constants.~Objects();
  self->inputs.~Numbers();
  self->tensors.~Numbers();
  self->distinct.~Numbers();
  self->must_differ.~Flags();
  self->tensor_check.~Owned();
  self->same_constant.~Owned();
  Py_TYPE(object)->tp_free(object);
}

}  // namespace

int add_guard_program(PyObject* module) {
  PyTypeObject& type = GuardProgramType;
  type.tp_name = "kiln._native.GuardProgram";
  type.tp_doc = "GuardProgram(...): program(*roots) gives the tuple of inputs, or False if an assumption does not hold.";
  type.tp_basicsize = sizeof(GuardProgram);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  type.tp_vectorcall_offset = offsetof(GuardProgram, vectorcall);
  type.tp_new = create;
  type.tp_dealloc = deallocate;
  type.tp_traverse = traverse;
  type.tp_clear = clear;
  type.tp_call = PyVectorcall_Call;
  return PyModule_AddType(module, &type);
}

}  // namespace kiln
