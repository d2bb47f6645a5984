// OperatorProgram: the type whose instances run a program (program.h), and how they are called.
#include "program/program.h"

#include <new>

namespace kiln {
namespace {

PyTypeObject ProgramType = {PyVarObject_HEAD_INIT(nullptr, 0)};

Program* cast(PyObject* object) { return reinterpret_cast<Program*>(object); }

// ---- calling -------------------------------------------------------------------------------------------------------

// Whether only the list holds a tensor: when it is emptied, nobody does but the program.
bool is_given_away(PyObject* value, const Memory& memory) {
  if (!is_exact_tensor(value) || Py_REFCNT(value) != 1) return false;
  const at::Tensor& tensor = tensor_in(value);
  return tensor.use_count() == 1 && tensor.layout() == at::kStrided && memory.has(tensor) &&
         !tensor.key_set().has(c10::DispatchKey::Python) && !tensor.requires_grad() && tensor.has_storage();
}

// Takes what the list holds. False where there is a tensor of a class of its own, which may want to see the calls.
bool take_inputs(const Program& program, PyObject* list, Registers& registers) {
  for (size_t i = 0; i < program.input_count; ++i) {
    PyObject* value = PyList_GET_ITEM(list, i);
    if (is_tensor(value) && !is_exact_tensor(value)) return false;
    if (!program.reads_input[i]) continue;
    bool is_given = program.is_donor[i] && is_given_away(value, program.memory);
    registers[i] = is_given ? IValue(unknown_to_python(tensor_in(value))) : from_python(value);
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
  return guarded([&]() -> PyObject* {
    ProfilerRange range(at::RecordScope::USER_SCOPE, program.name);
    Frame frame{Registers(program.register_count), {}, program.memory};
    if (platform::torch_function_mode_enabled() || !take_inputs(program, list, frame.registers) ||
        !begin(program, frame)) {
      frame.registers.clear();
      return PyObject_CallOneArg(program.otherwise.get(), list);
    }
    if (program.launcher.launch) frame.stream = current_stream(program);
    if (PyList_SetSlice(list, 0, PyList_GET_SIZE(list), nullptr) < 0) return nullptr;
    {
      WithoutGil no_gil;
      run_steps(program, frame);
    }
    return give_outputs(program, frame.registers);
  });
}

// ---- the type ------------------------------------------------------------------------------------------------------

void construct(Program* self) {
  self->vectorcall = call;
  self->input_count = self->register_count = 0;
  self->has_kernels = false;
  new (&self->reads_input) std::vector<bool>();
  new (&self->is_donor) std::vector<bool>();
  new (&self->instructions) std::vector<Instruction>();
  new (&self->checks) std::vector<Check>();
  new (&self->exposed) std::vector<std::pair<int, int>>();
  new (&self->steps) std::vector<Step>();
  new (&self->outputs) std::vector<Argument>();
  new (&self->otherwise) Owned();
  new (&self->memory) Memory();
  new (&self->launcher) Launcher();
  new (&self->name) std::string();
  self->attributes = nullptr;
}

void dealloc(PyObject* object) {
  Program* self = cast(object);
  PyObject_GC_UnTrack(object);
  self->reads_input.~vector();
  self->is_donor.~vector();
  self->instructions.~vector();
  self->checks.~vector();
  self->exposed.~vector();
  self->steps.~vector();
  self->outputs.~vector();
  self->otherwise.~Owned();
  self->launcher.~Launcher();
  self->name.~basic_string();
  Py_XDECREF(self->attributes);
  Py_TYPE(object)->tp_free(object);
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  Program* self = cast(object);
  for (const Step& step : self->steps) {
    if (auto* called = std::get_if<CallableStep>(&step)) Py_VISIT(called->callable.get());
  }
  Py_VISIT(self->otherwise.get());
  Py_VISIT(self->launcher.current_stream.get());
  Py_VISIT(self->launcher.failed.get());
  Py_VISIT(self->attributes);
  return 0;
}

PyObject* make(PyTypeObject* type, PyObject* args, PyObject*) {
  Py_ssize_t inputs, registers;
  int device = -1;
  PyObject* otherwise;
  Description description{};
  if (!PyArg_ParseTuple(args, "nnO!O!O|O!O!O!iO!", &inputs, &registers, &PyList_Type, &description.steps, &PyList_Type,
                        &description.outputs, &otherwise, &PyList_Type, &description.instructions, &PyList_Type,
                        &description.checks, &PyList_Type, &description.exposed, &device, &PyTuple_Type,
                        &description.launcher)) {
    return nullptr;
  }
  if (inputs < 0) return PyErr_Format(PyExc_ValueError, "a program has no %zd inputs", inputs);
  Owned object(type->tp_alloc(type, 0));
  if (!object) return nullptr;
  Program* self = cast(object.get());
  construct(self);
  self->input_count = static_cast<size_t>(inputs);
  self->register_count = static_cast<size_t>(std::max(inputs, registers));
  self->otherwise = share(otherwise);
  try {
    self->memory = memory_of(device);
    build_program(*self, description);
  } catch (...) {
    return translated();
  }
  return object.release();
}

PyObject* get_name(PyObject* object, void*) {
  const std::string& name = cast(object)->name;
  return PyUnicode_FromStringAndSize(name.data(), static_cast<Py_ssize_t>(name.size()));
}

int set_name(PyObject* object, PyObject* value, void*) {
  Py_ssize_t length = 0;
  const char* text = value && PyUnicode_Check(value) ? PyUnicode_AsUTF8AndSize(value, &length) : nullptr;
  if (text) {
    cast(object)->name.assign(text, static_cast<size_t>(length));
    return 0;
  }
  if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a program's name is a string");
  return -1;
}

// Callers of compiled graphs ask whether they take a list.
PyObject* get_true(PyObject*, void*) { Py_RETURN_TRUE; }

PyGetSetDef properties[] = {{"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
                            {"name", get_name, set_name, nullptr, nullptr},
                            {"_boxed_call", get_true, nullptr, nullptr, nullptr},
                            {nullptr, nullptr, nullptr, nullptr, nullptr}};

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
  ProgramType.tp_getset = properties;
  ProgramType.tp_dictoffset = offsetof(Program, attributes);
  ProgramType.tp_getattro = PyObject_GenericGetAttr;
  ProgramType.tp_setattro = PyObject_GenericSetAttr;
  return PyModule_AddType(module, &ProgramType);
}

}  // namespace kiln
