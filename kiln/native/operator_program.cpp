// OperatorProgram: a graph of operators, run without Python between them.
//
// Values are in numbered registers: the inputs first, then what steps give. A value is let go at its last use.
// A step calls an operator through torch's dispatcher, or a Python callable, or takes an item of a list.
#include "grad_node.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <new>
#include <optional>

// The header that declares these brings in parts of torch that Kiln does without.
namespace torch::jit {
c10::IValue toIValue(py::handle object, const c10::TypePtr& type, std::optional<int32_t> count);
py::object toPyObject(c10::IValue value);
}  // namespace torch::jit

namespace kiln {
namespace {

using c10::IValue;

// How often a long run looks whether the user pressed Ctrl-C.
constexpr size_t steps_between_signals = 64;

enum class Elements : uint8_t { none, integers, tensors, optional_tensors };

// Where an argument comes from: a register, or parts of a sequence, or else it is constant.
struct Argument {
  int place = -1;
  bool last = false;  // the register is not read again
  bool is_sequence = false;
  Elements elements = Elements::none;
  bool wants_double = false;
  bool wants_tensor = false;
  IValue constant;
  std::vector<Argument> parts;
};

struct Step {
  std::optional<c10::OperatorHandle> op;
  Owned callable;
  int64_t item = 0;  // where there is neither of those
  std::vector<Argument> arguments;
  std::vector<int> results;  // -1 for one that nobody reads
};

struct Program {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  size_t input_count;
  size_t register_count;
  std::vector<bool> reads_input;
  std::vector<Step> steps;
  std::vector<Argument> outputs;
  Owned otherwise;
};

using Registers = std::vector<IValue>;

PyTypeObject ProgramType = {PyVarObject_HEAD_INIT(nullptr, 0)};

Program* cast(PyObject* object) { return reinterpret_cast<Program*>(object); }

// ---- values --------------------------------------------------------------------------------------------------------

// A number where an operator takes a tensor, as torch's own bindings pass it.
IValue number_as_tensor(const IValue& number) {
  at::Tensor tensor = c10::scalar_to_tensor(number.toScalar());
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

bool is_number(const IValue& value) { return value.isScalar(); }

IValue fitted(const Argument& argument, IValue value) {
  if (argument.wants_double && value.isInt()) return static_cast<double>(value.toInt());
  if (argument.wants_tensor && is_number(value)) return number_as_tensor(value);
  return value;
}

IValue from_python(PyObject* object) {
  if (is_tensor(object)) return THPVariable_Unpack(object);
  if (object == Py_None) return {};
  if (PyBool_Check(object)) return object == Py_True;
  if (PyLong_CheckExact(object)) return static_cast<int64_t>(PyLong_AsLongLong(object));
  if (PyFloat_CheckExact(object)) return PyFloat_AS_DOUBLE(object);
  return torch::jit::toIValue(object, c10::PyObjectType::get(), std::nullopt);
}

Owned to_python(const IValue& value) {
  if (value.isTensor()) return Owned(THPVariable_Wrap(value.toTensor()));
  return Owned(torch::jit::toPyObject(value).release().ptr());
}

IValue read(const Argument& argument, Registers& registers) {
  if (argument.place < 0) return argument.constant;
  IValue& value = registers[argument.place];
  return fitted(argument, argument.last ? std::move(value) : value);
}

template <class Element, class Convert>
IValue list_of(const Argument& argument, Registers& registers, Convert convert) {
  c10::List<Element> list;
  list.reserve(argument.parts.size());
  for (const Argument& part : argument.parts) list.push_back(convert(read(part, registers)));
  return list;
}

IValue sequence(const Argument& argument, Registers& registers) {
  if (argument.elements == Elements::integers) {
    return list_of<int64_t>(argument, registers, [](IValue value) { return value.toInt(); });
  }
  if (argument.elements == Elements::tensors) {
    return list_of<at::Tensor>(argument, registers, [](IValue value) { return std::move(value).toTensor(); });
  }
  return list_of<std::optional<at::Tensor>>(argument, registers, [](IValue value) {
    return value.isNone() ? std::nullopt : std::optional<at::Tensor>(std::move(value).toTensor());
  });
}

// ---- running -------------------------------------------------------------------------------------------------------

void keep_results(const Step& step, torch::jit::Stack& stack, Registers& registers) {
  for (size_t i = 0; i < step.results.size(); ++i) {
    if (step.results[i] >= 0) registers[step.results[i]] = std::move(stack[i]);
  }
  stack.clear();
}

void run_operator(const Step& step, torch::jit::Stack& stack, Registers& registers) {
  for (const Argument& argument : step.arguments) {
    stack.push_back(argument.is_sequence ? sequence(argument, registers) : read(argument, registers));
  }
  step.op->callBoxed(&stack);
  keep_results(step, stack, registers);
}

Owned python_argument(const Argument& argument, Registers& registers) {
  if (!argument.is_sequence) return to_python(read(argument, registers));
  Owned list(PyList_New(static_cast<Py_ssize_t>(argument.parts.size())));
  for (size_t i = 0; list && i < argument.parts.size(); ++i) {
    Owned part = python_argument(argument.parts[i], registers);
    if (!part) return nullptr;
    PyList_SET_ITEM(list.get(), i, part.release());
  }
  return list;
}

// `outside` is the dispatcher's state around the program: hooks of the user run in it.
void run_callable(const Step& step, Registers& registers, const c10::impl::LocalDispatchKeySet& outside) {
  Gil gil;
  c10::impl::ForceDispatchKeyGuard restored(outside);
  std::vector<Owned> values;
  std::vector<PyObject*> arguments{nullptr};
  for (const Argument& argument : step.arguments) {
    values.push_back(python_argument(argument, registers));
    if (!values.back()) raise();
    arguments.push_back(values.back().get());
  }
  Owned result(PyObject_Vectorcall(step.callable.get(), arguments.data() + 1,
                                   values.size() | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
  if (!result) raise();
  if (step.results[0] >= 0) registers[step.results[0]] = from_python(result.get());
}

void run_item(const Step& step, Registers& registers) {
  IValue value = read(step.arguments[0], registers);
  IValue item;
  if (value.isTensorList()) {
    item = value.toTensorList().get(static_cast<size_t>(step.item));
  } else if (value.isPyObject()) {
    Gil gil;
    Owned object = to_python(value);
    Owned part(object ? PySequence_GetItem(object.get(), step.item) : nullptr);
    if (!part) raise();
    item = from_python(part.get());
  } else {
    item = value.toListRef().at(static_cast<size_t>(step.item));
  }
  if (step.results[0] >= 0) registers[step.results[0]] = std::move(item);
}

void check_signals() {
  Gil gil;
  if (PyErr_CheckSignals() < 0) raise();
}

void run_steps(const Program& program, Registers& registers) {
  // What was recorded lies below autocast. It lies below autograd too, which yet keeps books: of views, changes in place
  // and forward-mode gradients.
  auto outside = c10::impl::tls_local_dispatch_key_set();
  c10::impl::ExcludeDispatchKeyGuard below(c10::autocast_dispatch_keyset);
  torch::jit::Stack stack;
  size_t since_signals = 0;
  for (const Step& step : program.steps) {
    if (step.op) {
      run_operator(step, stack, registers);
    } else if (step.callable) {
      run_callable(step, registers, outside);
    } else {
      run_item(step, registers);
    }
    if (++since_signals == steps_between_signals) {
      since_signals = 0;
      check_signals();
    }
  }
}

// ---- calling -------------------------------------------------------------------------------------------------------

// Takes what the list holds. False where there is a tensor of a class of its own, which may want to see the calls.
bool take_inputs(const Program& program, PyObject* list, Registers& registers) {
  for (size_t i = 0; i < program.input_count; ++i) {
    PyObject* value = PyList_GET_ITEM(list, i);
    if (is_tensor(value) && !THPVariable_CheckExact(value)) return false;
    if (program.reads_input[i]) registers[i] = from_python(value);
  }
  return true;
}

PyObject* give_outputs(const Program& program, Registers& registers) {
  Owned outputs(PyTuple_New(static_cast<Py_ssize_t>(program.outputs.size())));
  for (size_t i = 0; outputs && i < program.outputs.size(); ++i) {
    Owned value = to_python(read(program.outputs[i], registers));
    if (!value) return nullptr;
    PyTuple_SET_ITEM(outputs.get(), i, value.release());
  }
  return outputs.release();
}

PyObject* call(PyObject* self, PyObject* const* arguments, size_t flagged, PyObject* names) {
  const Program& program = *cast(self);
  if (PyVectorcall_NARGS(flagged) != 1 || names || !PyList_Check(arguments[0])) {
    PyErr_SetString(PyExc_TypeError, "a program takes one list");
    return nullptr;
  }
  PyObject* list = arguments[0];
  if (PyList_GET_SIZE(list) != static_cast<Py_ssize_t>(program.input_count)) {
    return PyErr_Format(PyExc_TypeError, "%zu values are needed, %zd were given", program.input_count,
                        PyList_GET_SIZE(list));
  }
  try {
    Registers registers(program.register_count);
    if (at::impl::torch_function_mode_enabled() || !take_inputs(program, list, registers)) {
      registers.clear();
      return PyObject_CallOneArg(program.otherwise.get(), list);
    }
    if (PyList_SetSlice(list, 0, PyList_GET_SIZE(list), nullptr) < 0) return nullptr;
    {
      pybind11::gil_scoped_release no_gil;
      run_steps(program, registers);
    }
    return give_outputs(program, registers);
  } catch (...) {
    return translated();
  }
}

// ---- building ------------------------------------------------------------------------------------------------------

c10::TypePtr without_optional(const c10::TypePtr& type) {
  auto optional = type->cast<c10::OptionalType>();
  return optional ? optional->getElementType() : type;
}

Elements elements_of(const c10::TypePtr& type) {
  auto list = without_optional(type)->cast<c10::ListType>();
  TORCH_CHECK_TYPE(list, "a sequence where the operator takes none");
  const c10::TypePtr& element = list->getElementType();
  if (element->kind() == c10::TypeKind::TensorType) return Elements::tensors;
  if (element->kind() == c10::TypeKind::IntType || element->kind() == c10::TypeKind::SymIntType) {
    return Elements::integers;
  }
  TORCH_CHECK_TYPE(element->kind() == c10::TypeKind::OptionalType &&
                       without_optional(element)->kind() == c10::TypeKind::TensorType,
                   "a sequence of unknown kind");
  return Elements::optional_tensors;
}

// A description is the number of a register, a constant in a tuple of one, or a list of descriptions.
struct Builder {
  Program& program;

  int place_of(PyObject* number) const {
    long place = PyLong_AsLong(number);
    if (PyErr_Occurred()) raise();
    TORCH_CHECK_VALUE(place >= -1 && place < static_cast<long>(program.register_count), "no such register");
    return static_cast<int>(place);
  }

  // For Python.
  Argument plain(PyObject* description) const {
    Argument argument;
    if (PyTuple_Check(description)) {
      argument.constant = from_python(PyTuple_GET_ITEM(description, 0));
    } else if (PyList_Check(description)) {
      argument.is_sequence = true;
      for (Py_ssize_t i = 0; i < PyList_GET_SIZE(description); ++i) {
        argument.parts.push_back(plain(PyList_GET_ITEM(description, i)));
      }
    } else {
      argument.place = place_of(description);
    }
    return argument;
  }

  // For an operator; None stands for the default.
  Argument typed(PyObject* description, const c10::Argument& wanted) const {
    if (description == Py_None) {
      TORCH_CHECK_TYPE(wanted.default_value().has_value(), "an argument is missing");
      Argument argument;
      argument.constant = *wanted.default_value();
      return argument;
    }
    c10::TypePtr type = without_optional(wanted.real_type());
    if (PyTuple_Check(description)) return constant(PyTuple_GET_ITEM(description, 0), wanted, type);
    Argument argument = plain(description);
    if (argument.is_sequence) argument.elements = elements_of(wanted.real_type());
    argument.wants_double = type->kind() == c10::TypeKind::FloatType;
    argument.wants_tensor = type->kind() == c10::TypeKind::TensorType;
    return argument;
  }

  Argument constant(PyObject* value, const c10::Argument& wanted, const c10::TypePtr& type) const {
    Argument argument;
    if (type->kind() == c10::TypeKind::TensorType && !is_tensor(value) && value != Py_None) {
      argument.constant = number_as_tensor(torch::jit::toIValue(value, c10::NumberType::get(), std::nullopt));
    } else {
      argument.constant = torch::jit::toIValue(value, wanted.real_type(), wanted.N());
    }
    return argument;
  }

  void set_target(Step& step, PyObject* target, PyObject* arguments) const {
    if (PyTuple_Check(target)) {
      const char *name, *overload;
      if (!PyArg_ParseTuple(target, "ss", &name, &overload)) raise();
      step.op = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
    } else if (PyLong_Check(target)) {
      step.item = PyLong_AsLongLong(target);
    } else {
      step.callable = share(target);
    }
    Py_ssize_t count = PyTuple_GET_SIZE(arguments);
    if (!step.op) {
      for (Py_ssize_t i = 0; i < count; ++i) step.arguments.push_back(plain(PyTuple_GET_ITEM(arguments, i)));
      return;
    }
    const auto& wanted = step.op->schema().arguments();
    TORCH_CHECK_TYPE(static_cast<size_t>(count) == wanted.size(), "not as many arguments as the operator takes");
    for (Py_ssize_t i = 0; i < count; ++i) {
      step.arguments.push_back(typed(PyTuple_GET_ITEM(arguments, i), wanted[i]));
    }
  }

  void add_step(PyObject* description) const {
    PyObject *target, *arguments, *results;
    TORCH_CHECK_TYPE(PyTuple_Check(description), "a step is a tuple");
    if (!PyArg_ParseTuple(description, "OO!O!", &target, &PyTuple_Type, &arguments, &PyTuple_Type, &results)) raise();
    Step step;
    set_target(step, target, arguments);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(results); ++i) {
      step.results.push_back(place_of(PyTuple_GET_ITEM(results, i)));
    }
    size_t expected = step.op ? step.op->schema().returns().size() : 1;
    TORCH_CHECK_TYPE(step.results.size() == expected, "not as many results as there are");
    program.steps.push_back(std::move(step));
  }

  // ---- last uses, from the end

  void mark(Argument& argument, std::vector<bool>& used) const {
    for (auto part = argument.parts.rbegin(); part != argument.parts.rend(); ++part) mark(*part, used);
    if (argument.place < 0) return;
    argument.last = !used[argument.place];
    used[argument.place] = true;
  }

  void mark_last_uses() const {
    std::vector<bool> used(program.register_count);
    for (auto output = program.outputs.rbegin(); output != program.outputs.rend(); ++output) mark(*output, used);
    for (auto step = program.steps.rbegin(); step != program.steps.rend(); ++step) {
      for (int& result : step->results) {
        if (result >= 0 && !used[result]) result = -1;
      }
      for (auto argument = step->arguments.rbegin(); argument != step->arguments.rend(); ++argument) {
        mark(*argument, used);
      }
    }
    program.reads_input.assign(used.begin(), used.begin() + static_cast<std::ptrdiff_t>(program.input_count));
  }
};

// ---- the type ------------------------------------------------------------------------------------------------------

void construct(Program* self) {
  self->vectorcall = call;
  self->input_count = self->register_count = 0;
  new (&self->reads_input) std::vector<bool>();
  new (&self->steps) std::vector<Step>();
  new (&self->outputs) std::vector<Argument>();
  new (&self->otherwise) Owned();
}

void dealloc(PyObject* object) {
  Program* self = cast(object);
  PyObject_GC_UnTrack(object);
  self->reads_input.~vector();
  self->steps.~vector();
  self->outputs.~vector();
  self->otherwise.~Owned();
  Py_TYPE(object)->tp_free(object);
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  Program* self = cast(object);
  for (const Step& step : self->steps) Py_VISIT(step.callable.get());
  Py_VISIT(self->otherwise.get());
  return 0;
}

PyObject* make(PyTypeObject* type, PyObject* args, PyObject*) {
  Py_ssize_t inputs, registers;
  PyObject *steps, *outputs, *otherwise;
  if (!PyArg_ParseTuple(args, "nnO!O!O", &inputs, &registers, &PyList_Type, &steps, &PyList_Type, &outputs,
                        &otherwise)) {
    return nullptr;
  }
  Owned object(type->tp_alloc(type, 0));
  if (!object) return nullptr;
  Program* self = cast(object.get());
  construct(self);
  self->input_count = static_cast<size_t>(inputs);
  self->register_count = static_cast<size_t>(std::max(inputs, registers));
  self->otherwise = share(otherwise);
  try {
    Builder builder{*self};
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(steps); ++i) builder.add_step(PyList_GET_ITEM(steps, i));
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(outputs); ++i) {
      self->outputs.push_back(builder.plain(PyList_GET_ITEM(outputs, i)));
    }
    builder.mark_last_uses();
  } catch (...) {
    return translated();
  }
  return object.release();
}

}  // namespace

int add_operator_program(PyObject* module) {
  ProgramType.tp_name = "kiln._native.OperatorProgram";
  ProgramType.tp_doc = "OperatorProgram(inputs, registers, steps, outputs, otherwise): a graph that runs natively.";
  ProgramType.tp_basicsize = sizeof(Program);
  ProgramType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  ProgramType.tp_vectorcall_offset = offsetof(Program, vectorcall);
  ProgramType.tp_call = PyVectorcall_Call;
  ProgramType.tp_new = make;
  ProgramType.tp_dealloc = dealloc;
  ProgramType.tp_traverse = traverse;
  if (PyType_Ready(&ProgramType) < 0) return -1;
  return PyModule_AddObjectRef(module, "OperatorProgram", reinterpret_cast<PyObject*>(&ProgramType));
}

}  // namespace kiln
