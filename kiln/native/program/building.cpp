// Building a program from its description in Python.
#include "program/program.h"

#include <ATen/core/jit_type.h>

#include <algorithm>
#include <unordered_map>

namespace kiln {
namespace {

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
  if (element->kind() == c10::TypeKind::FloatType) return Elements::doubles;
  if (element->kind() == c10::TypeKind::NumberType) return Elements::scalars;
  TORCH_CHECK_TYPE(element->kind() == c10::TypeKind::OptionalType &&
                       without_optional(element)->kind() == c10::TypeKind::TensorType,
                   "a sequence of unknown kind");
  return Elements::optional_tensors;
}

// The parts of a tuple.
std::vector<PyObject*> parts_of(PyObject* tuple) {
  TORCH_CHECK_TYPE(PyTuple_Check(tuple), "a tuple is needed");
  return {&PyTuple_GET_ITEM(tuple, 0), &PyTuple_GET_ITEM(tuple, 0) + PyTuple_GET_SIZE(tuple)};
}

int64_t integer(PyObject* object) {
  int64_t value = PyLong_AsLongLong(object);
  if (value == -1 && PyErr_Occurred()) raise();
  return value;
}

const std::unordered_map<std::string, Operation>& operations() {
  static const std::unordered_map<std::string, Operation> table{
      {"value", Operation::value}, {"size", Operation::size}, {"stride", Operation::stride},
      {"constant", Operation::constant}, {"add", Operation::add}, {"mul", Operation::mul},
      {"floordiv", Operation::floordiv}, {"mod", Operation::mod}, {"min", Operation::min}, {"max", Operation::max},
      {"pow", Operation::pow}, {"eq", Operation::eq}, {"ne", Operation::ne}, {"lt", Operation::lt},
      {"le", Operation::le}};
  return table;
}

const char* text(PyObject* object) {
  const char* found = PyUnicode_AsUTF8(object);
  if (!found) raise();
  return found;
}

void* address(PyObject* object) {
  void* found = PyLong_AsVoidPtr(object);
  if (PyErr_Occurred()) raise();
  TORCH_CHECK_VALUE(found, "a function without an address");
  return found;
}

// A description of an argument is the number of a register, a constant in a tuple of one, or a list of descriptions.
struct Builder {
  Program& program;

  int place_of(PyObject* number) const {
    int64_t place = integer(number);
    TORCH_CHECK_VALUE(place >= -1 && place < static_cast<int64_t>(program.register_count), "no such register");
    return static_cast<int>(place);
  }

  // For Python.
  Argument plain(PyObject* description) const {
    Argument argument;
    if (PyTuple_Check(description)) {
      TORCH_CHECK_TYPE(PyTuple_GET_SIZE(description) == 1, "a constant is in a tuple of one");
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
      argument.constant = number_as_tensor(value_in(value, c10::NumberType::get()));
    } else {
      argument.constant = value_in(value, wanted.real_type(), wanted.N());
    }
    return argument;
  }

  // ---- numbers and layouts: a number is an int, or the number of one of the frame's in a tuple of one

  void add_number(Numbers& numbers, PyObject* description) const {
    if (!PyTuple_Check(description)) {
      numbers.add(integer(description));
      return;
    }
    TORCH_CHECK_TYPE(PyTuple_GET_SIZE(description) == 1, "a number is in a tuple of one");
    int64_t number = integer(PyTuple_GET_ITEM(description, 0));
    TORCH_CHECK_VALUE(number >= 0 && number < static_cast<int64_t>(program.instructions.size()), "no such number");
    numbers.add_moving(static_cast<uint32_t>(number));
  }

  Numbers numbers(PyObject* description) const {
    Numbers found;
    for (PyObject* part : parts_of(description)) add_number(found, part);
    return found;
  }

  // (dtype, sizes, strides[, alignment])
  Layout layout(PyObject* description) const {
    auto parts = parts_of(description);
    TORCH_CHECK_TYPE((parts.size() == 3 || parts.size() == 4) && is_dtype(parts[0]),
                     "a layout is a dtype, sizes and strides, and may have an alignment");
    Layout found{dtype_in(parts[0]), numbers(parts[1]), numbers(parts[2])};
    TORCH_CHECK_VALUE(found.sizes.size() == found.strides.size(), "not as many strides as sizes");
    if (parts.size() == 4) {
      int64_t alignment = integer(parts[3]);
      TORCH_CHECK_VALUE(alignment > 0 && (alignment & (alignment - 1)) == 0, "an alignment is a power of two");
      found.alignment = static_cast<uint64_t>(alignment);
    }
    return found;
  }

  std::optional<Layout> optional_layout(PyObject* description) const {
    return description == Py_None ? std::nullopt : std::optional(layout(description));
  }

  // ---- steps

  std::vector<int> results(PyObject* description, size_t count) const {
    std::vector<int> found;
    for (PyObject* part : parts_of(description)) found.push_back(place_of(part));
    TORCH_CHECK_TYPE(found.size() == count, "not as many results as there are");
    return found;
  }

  OperatorStep operator_step(PyObject* target, PyObject* arguments, PyObject* given, PyObject* layouts) const {
    const char *name, *overload;
    if (!PyArg_ParseTuple(target, "ss", &name, &overload)) raise();
    OperatorStep step{c10::Dispatcher::singleton().findSchemaOrThrow(name, overload), {}, {}, {}};
    const auto& wanted = step.op.schema().arguments();
    auto parts = parts_of(arguments);
    TORCH_CHECK_TYPE(parts.size() == wanted.size(), "not as many arguments as the operator takes");
    for (size_t i = 0; i < parts.size(); ++i) step.arguments.push_back(typed(parts[i], wanted[i]));
    step.results = results(given, step.op.schema().returns().size());
    if (!layouts) return step;
    for (PyObject* part : parts_of(layouts)) step.layouts.push_back(optional_layout(part));
    return step;
  }

  // (target, arguments, results[, layouts])
  Step called(PyObject* description) const {
    PyObject *target, *arguments, *given, *layouts = nullptr;
    if (!PyArg_ParseTuple(description, "OO!O!|O!", &target, &PyTuple_Type, &arguments, &PyTuple_Type, &given,
                          &PyTuple_Type, &layouts)) {
      raise();
    }
    if (PyTuple_Check(target)) return operator_step(target, arguments, given, layouts);
    int result = results(given, 1)[0];
    std::optional<Layout> expected;
    if (layouts && PyTuple_GET_SIZE(layouts) == 1) expected = optional_layout(PyTuple_GET_ITEM(layouts, 0));
    if (PyLong_Check(target)) {
      TORCH_CHECK_TYPE(PyTuple_GET_SIZE(arguments) == 1, "an item of one list");
      return ItemStep{plain(PyTuple_GET_ITEM(arguments, 0)), integer(target), result, std::move(expected)};
    }
    CallableStep step{share(target), {}, result, std::move(expected)};
    for (PyObject* argument : parts_of(arguments)) step.arguments.push_back(plain(argument));
    return step;
  }

  // ("allocate", register, layout, donor or -1)
  Step allocation(const std::vector<PyObject*>& parts) const {
    TORCH_CHECK_TYPE(parts.size() == 4, "allocate: a register, a layout and a donor");
    return AllocateStep{layout(parts[2]), plain(parts[3]), place_of(parts[1])};
  }

  // ("view", register, source, layout, offset)
  Step view(const std::vector<PyObject*>& parts) const {
    TORCH_CHECK_TYPE(parts.size() == 5, "view: a register, a source, a layout and an offset");
    ViewStep step{plain(parts[2]), layout(parts[3]), {}, place_of(parts[1])};
    add_number(step.offset, parts[4]);
    return step;
  }

  // (address, ((source, offset in bytes, 1 for an input that is written and 2 for what was drawn), …), sizes,
  // (units, work), is whole)
  Launch one_launch(PyObject* description) const {
    auto parts = parts_of(description);
    TORCH_CHECK_TYPE(parts.size() == 5, "a launch is an address, pointers, sizes, an extent and whether it is whole");
    Launch launch{reinterpret_cast<Entry>(address(parts[0])), pointers(parts[1]), numbers(parts[2]), numbers(parts[3]),
                  integer(parts[4]) != 0};
    TORCH_CHECK_TYPE(launch.extent.size() == 2, "an extent is units and work");
    return launch;
  }

  std::vector<Pointer> pointers(PyObject* description) const {
    std::vector<Pointer> found;
    for (PyObject* pointer : parts_of(description)) {
      auto parts = parts_of(pointer);
      TORCH_CHECK_TYPE(parts.size() == 3, "a pointer is a source, an offset, and how it is used");
      int64_t use = integer(parts[2]);
      found.push_back({plain(parts[0]), integer(parts[1]), use == 1, use == 2});
      const Argument& source = found.back().source;
      TORCH_CHECK_TYPE(source.place >= 0 || source.constant.isTensor(), "a kernel reads tensors");
      TORCH_CHECK_VALUE(source.place >= 0 || program.memory.has(source.constant.toTensor()),
                        "a kernel reads a constant that is on another device");
    }
    return found;
  }

  // ("launch", name, launch, …)
  Step launch(const std::vector<PyObject*>& parts) const {
    TORCH_CHECK_TYPE(parts.size() >= 3, "launch: a name and at least one launch");
    LaunchStep step{text(parts[1]), {}};
    for (size_t i = 2; i < parts.size(); ++i) step.launches.push_back(one_launch(parts[i]));
    return step;
  }

  CudaKernel cuda_kernel(PyObject* name, PyObject* function, PyObject* thread_count, PyObject* shared) const {
    TORCH_CHECK_VALUE(program.launcher.launch, "a launch on a GPU in a program that has no launcher");
    int64_t threads = integer(thread_count), shared_bytes = integer(shared);
    TORCH_CHECK_VALUE(threads > 0 && threads <= 1024, "a block has 1 to 1024 threads, not " + std::to_string(threads));
    TORCH_CHECK_VALUE(shared_bytes >= 0 && shared_bytes < (1 << 20),
                      "no block has " + std::to_string(shared_bytes) + " bytes of shared memory");
    return {text(name), address(function), static_cast<unsigned>(threads), static_cast<unsigned>(shared_bytes)};
  }

  CudaWork cuda_work(PyObject* given, PyObject* sizes, PyObject* blocks) const {
    CudaWork work{pointers(given), numbers(sizes), {}};
    add_number(work.blocks, blocks);
    return work;
  }

  // ("cuda_launch", name, function, pointers, sizes, blocks, threads of a block, bytes of shared memory)
  Step cuda_launch(const std::vector<PyObject*>& parts) const {
    TORCH_CHECK_TYPE(parts.size() == 8, "cuda_launch: name, function, pointers, sizes, blocks, threads, shared bytes");
    return CudaLaunchStep{cuda_kernel(parts[1], parts[2], parts[6], parts[7]), cuda_work(parts[3], parts[4], parts[5])};
  }

  // ("cuda_table", name, function, ((pointers, sizes, blocks), …), rows of the table, threads, bytes of shared memory)
  Step cuda_table(const std::vector<PyObject*>& parts) const {
    TORCH_CHECK_TYPE(parts.size() == 7, "cuda_table: name, function, works, rows, threads, shared bytes");
    int64_t rows = integer(parts[4]);
    CudaTableStep step{cuda_kernel(parts[1], parts[2], parts[5], parts[6]), {}, static_cast<size_t>(rows)};
    std::optional<size_t> words;
    for (PyObject* description : parts_of(parts[3])) {
      auto work = parts_of(description);
      TORCH_CHECK_TYPE(work.size() == 3, "a work is pointers, sizes and blocks");
      step.works.push_back(cuda_work(work[0], work[1], work[2]));
      const std::vector<Pointer>& given = step.works.back().pointers;
      const size_t count = given.size() + step.works.back().sizes.size();
      TORCH_CHECK_VALUE(std::none_of(given.begin(), given.end(), [](const Pointer& one) { return one.is_by_value; }),
                        "a table has no place for what was drawn");
      TORCH_CHECK_VALUE(words.value_or(count) == count, "works of one kernel take equally many pointers and sizes");
      words = count;
    }
    TORCH_CHECK_VALUE(words, "a table without works");
    TORCH_CHECK_VALUE(rows > 0 && rows <= static_cast<int64_t>(most_parameter_bytes) &&
                          bytes_of_table(step.rows, *words) <= most_parameter_bytes,
                      "no kernel takes a table of " + std::to_string(rows) + " rows");
    return step;
  }

  // ("draw", register, increment)
  Step drawing(const std::vector<PyObject*>& parts) const {
    TORCH_CHECK_TYPE(parts.size() == 3, "draw: a register and an increment");
    TORCH_CHECK_VALUE(program.launcher.draw, "random numbers in a program whose launcher does not draw");
    DrawStep step{{}, place_of(parts[1])};
    add_number(step.increment, parts[2]);
    return step;
  }

  void add_step(PyObject* description) const {
    auto parts = parts_of(description);
    TORCH_CHECK_TYPE(!parts.empty(), "an empty step");
    if (!PyUnicode_Check(parts[0])) {
      program.steps.push_back(called(description));
    } else if (PyUnicode_CompareWithASCIIString(parts[0], "allocate") == 0) {
      program.steps.push_back(allocation(parts));
    } else if (PyUnicode_CompareWithASCIIString(parts[0], "view") == 0) {
      program.steps.push_back(view(parts));
    } else if (PyUnicode_CompareWithASCIIString(parts[0], "draw") == 0) {
      program.steps.push_back(drawing(parts));
    } else {
      program.steps.push_back(launch_of_kind(parts));
      program.has_kernels = true;
    }
  }

  Step launch_of_kind(const std::vector<PyObject*>& parts) const {
    if (PyUnicode_CompareWithASCIIString(parts[0], "cuda_launch") == 0) return cuda_launch(parts);
    if (PyUnicode_CompareWithASCIIString(parts[0], "cuda_table") == 0) return cuda_table(parts);
    TORCH_CHECK_VALUE(PyUnicode_CompareWithASCIIString(parts[0], "launch") == 0, "a step of unknown kind");
    return launch(parts);
  }

  // (address of cuLaunchKernel, current stream, what to do with errors[, address of what draws random numbers or 0])
  void add_launcher(PyObject* description) const {
    auto parts = parts_of(description);
    TORCH_CHECK_TYPE((parts.size() == 3 || parts.size() == 4) && PyCallable_Check(parts[1]) &&
                         PyCallable_Check(parts[2]),
                     "a launcher is an address and two functions, and may have a second address");
    program.launcher.launch = reinterpret_cast<CudaLaunch>(address(parts[0]));
    program.launcher.current_stream = share(parts[1]);
    program.launcher.failed = share(parts[2]);
    if (parts.size() == 4 && integer(parts[3]) != 0) {
      program.launcher.draw = reinterpret_cast<platform::DrawFromGenerator>(address(parts[3]));
    }
  }

  // ---- the beginning

  int input_of(PyObject* number) const {
    int64_t place = integer(number);
    TORCH_CHECK_VALUE(place >= 0 && place < static_cast<int64_t>(program.input_count), "no such input");
    return static_cast<int>(place);
  }

  // (operation, first, second)
  void add_instruction(PyObject* description) const {
    auto parts = parts_of(description);
    TORCH_CHECK_TYPE(parts.size() == 3 && PyUnicode_Check(parts[0]), "an instruction is a name and two numbers");
    auto found = operations().find(PyUnicode_AsUTF8(parts[0]));
    TORCH_CHECK_VALUE(found != operations().end(), "an unknown instruction");
    Instruction instruction{found->second, integer(parts[1]), integer(parts[2])};
    int64_t count = static_cast<int64_t>(program.instructions.size());
    if (instruction.operation < Operation::constant) {
      input_of(parts[1]);
      TORCH_CHECK_VALUE(instruction.second >= 0, "no such dimension");
    } else if (instruction.operation > Operation::constant) {
      TORCH_CHECK_VALUE(instruction.first >= 0 && instruction.first < count && instruction.second >= 0 &&
                            instruction.second < count,
                        "no such number yet");
    }
    program.instructions.push_back(instruction);
  }

  void add_check(PyObject* description) const {
    auto parts = parts_of(description);
    TORCH_CHECK_TYPE(parts.size() == 2, "a check is an input and a layout");
    program.checks.push_back({input_of(parts[0]), optional_layout(parts[1])});
  }

  void add_exposed(PyObject* description) const {
    auto parts = parts_of(description);
    TORCH_CHECK_TYPE(parts.size() == 2, "a number and a register");
    int64_t number = integer(parts[0]);
    int place = place_of(parts[1]);
    TORCH_CHECK_VALUE(number >= 0 && number < static_cast<int64_t>(program.instructions.size()) && place >= 0,
                      "no such number");
    program.exposed.emplace_back(static_cast<int>(number), place);
  }
};

// ---- last uses, from the end ---------------------------------------------------------------------------------------

class LastUses {
 public:
  explicit LastUses(Program& program) : program_(program), used_(program.register_count) {}

  void mark_all() {
    program_.is_donor.assign(program_.input_count, false);
    mark(program_.outputs);
    for (auto step = program_.steps.rbegin(); step != program_.steps.rend(); ++step) {
      std::visit([this](auto& kind) { mark_step(kind); }, *step);
    }
    for (const Check& check : program_.checks) used_[check.input] = true;
    for (const Instruction& instruction : program_.instructions) {
      if (instruction.operation < Operation::constant) used_[instruction.first] = true;
    }
    auto first = used_.begin();
    program_.reads_input.assign(first, first + static_cast<std::ptrdiff_t>(program_.input_count));
  }

 private:
  void mark(Argument& argument) {
    for (auto part = argument.parts.rbegin(); part != argument.parts.rend(); ++part) mark(*part);
    if (argument.place < 0) return;
    argument.last = !used_[argument.place];
    used_[argument.place] = true;
  }

  void mark(std::vector<Argument>& arguments) {
    for (auto argument = arguments.rbegin(); argument != arguments.rend(); ++argument) mark(*argument);
  }

  // Nobody reads it: it is not kept.
  void drop_if_unused(int& result) const {
    if (result >= 0 && !used_[result]) result = -1;
  }

  void mark_step(OperatorStep& step) {
    for (int& result : step.results) drop_if_unused(result);
    mark(step.arguments);
  }

  void mark_step(CallableStep& step) {
    drop_if_unused(step.result);
    mark(step.arguments);
  }

  void mark_step(ItemStep& step) {
    drop_if_unused(step.result);
    mark(step.source);
  }

  void mark_step(AllocateStep& step) {
    TORCH_CHECK_VALUE(step.result >= 0 && used_[step.result], "memory that nobody reads");
    mark(step.donor);
    int donor = step.donor.place;
    if (donor >= 0 && donor < static_cast<int>(program_.input_count)) program_.is_donor[donor] = true;
  }

  void mark_step(ViewStep& step) {
    TORCH_CHECK_VALUE(step.result >= 0 && used_[step.result], "a view that nobody reads");
    mark(step.source);
  }

  void mark(std::vector<Pointer>& pointers) {
    for (auto pointer = pointers.rbegin(); pointer != pointers.rend(); ++pointer) mark(pointer->source);
  }

  void mark_step(LaunchStep& step) {
    for (auto launch = step.launches.rbegin(); launch != step.launches.rend(); ++launch) mark(launch->pointers);
  }

  void mark_step(CudaLaunchStep& step) { mark(step.work.pointers); }

  void mark_step(CudaTableStep& step) {
    for (auto work = step.works.rbegin(); work != step.works.rend(); ++work) mark(work->pointers);
  }

  void mark_step(DrawStep& step) { drop_if_unused(step.result); }

  Program& program_;
  std::vector<bool> used_;
};

template <class Add>
void each(PyObject* list, Add add) {
  if (!list) return;
  TORCH_CHECK_TYPE(PyList_Check(list), "a list is needed");
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) add(PyList_GET_ITEM(list, i));
}

}  // namespace

void build_program(Program& program, const Description& description) {
  Builder builder{program};
  if (description.launcher) builder.add_launcher(description.launcher);
  each(description.instructions, [&](PyObject* one) { builder.add_instruction(one); });
  each(description.checks, [&](PyObject* one) { builder.add_check(one); });
  each(description.exposed, [&](PyObject* one) { builder.add_exposed(one); });
  each(description.steps, [&](PyObject* one) { builder.add_step(one); });
  each(description.outputs, [&](PyObject* one) { program.outputs.push_back(builder.plain(one)); });
  LastUses(program).mark_all();
}

}  // namespace kiln
