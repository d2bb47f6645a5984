// Running a program: what happens when a call begins, and each kind of step.
#include "program/program.h"

#include <c10/core/DeviceGuard.h>

#include <algorithm>

namespace kiln {
namespace {

// How often a long run looks whether the user pressed Ctrl-C.
constexpr size_t steps_between_signals = 64;

// ---- the beginning -------------------------------------------------------------------------------------------------

bool has_tangent(const at::Tensor& tensor) {
  auto* meta = platform::get_autograd_meta(tensor);
  return meta && meta->fw_grad_;
}

using c10::DispatchKey;

// Whether it is what it seems, and no more.
bool is_itself(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet strange({DispatchKey::Python, DispatchKey::FuncTorchBatched, DispatchKey::Functionalize,
                                         DispatchKey::FuncTorchGradWrapper});
  return !tensor.defined() || (!tensor.key_set().has_any(strange) && !has_tangent(tensor));
}

// Whether its storage was resized to nothing, as FSDP does with parameters that are not needed.
bool lacks_memory(const at::Tensor& tensor) { return tensor.numel() != 0 && tensor.storage().nbytes() == 0; }

// Whether nothing but its elements matters.
bool is_plain(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet lazy({DispatchKey::Conjugate, DispatchKey::Negative, DispatchKey::ZeroTensor});
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.has_storage() &&
         !tensor.key_set().has_any(lazy) && is_itself(tensor) && !lacks_memory(tensor);
}

bool is_plain_in(const Memory& memory, const at::Tensor& tensor) {
  return tensor.defined() && memory.has(tensor) && is_plain(tensor);
}

bool is_fine(const Check& check, const Frame& frame) {
  const IValue& input = frame.registers[check.input];
  if (!check.layout) return !input.isTensor() || is_itself(input.toTensor());
  return input.isTensor() && is_plain_in(frame.memory, input.toTensor()) &&
         input.toTensor().scalar_type() == check.layout->dtype && lies_so(input.toTensor(), *check.layout, frame);
}

// Rounds down, as Python does.
int64_t floored_quotient(int64_t a, int64_t b) {
  TORCH_CHECK(b != 0, "a size is divided by 0");
  if (b == -1) return static_cast<int64_t>(-static_cast<uint64_t>(a));
  int64_t quotient = a / b;
  return (a % b != 0 && (a < 0) != (b < 0)) ? quotient - 1 : quotient;
}

int64_t power(int64_t base, int64_t exponent) {
  TORCH_CHECK(exponent >= 0, "a size to a negative power");
  uint64_t found = 1;
  for (int64_t i = 0; i < exponent; ++i) found *= static_cast<uint64_t>(base);
  return static_cast<int64_t>(found);
}

int64_t computed(Operation operation, int64_t a, int64_t b) {
  switch (operation) {
    case Operation::add: return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    case Operation::mul: return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    case Operation::floordiv: return floored_quotient(a, b);
    case Operation::mod: return a - floored_quotient(a, b) * b;
    case Operation::min: return std::min(a, b);
    case Operation::max: return std::max(a, b);
    case Operation::pow: return power(a, b);
    case Operation::eq: return a == b;
    case Operation::ne: return a != b;
    case Operation::lt: return a < b;
    default: return a <= b;
  }
}

// A number that an input says; nothing where the input is of another kind.
std::optional<int64_t> told(const Instruction& instruction, const Frame& frame) {
  const IValue& input = frame.registers[instruction.first];
  if (instruction.operation == Operation::value) return input.isInt() ? std::optional(input.toInt()) : std::nullopt;
  if (!input.isTensor()) return std::nullopt;
  const at::Tensor& tensor = input.toTensor();
  // Operators of a program on a GPU may have inputs on the CPU, too.
  if (!is_plain_in(frame.memory, tensor) && !is_plain_in(Memory(), tensor)) return std::nullopt;
  if (instruction.second >= tensor.dim()) return std::nullopt;
  return instruction.operation == Operation::size ? tensor.sizes()[instruction.second]
                                                  : tensor.strides()[instruction.second];
}

bool compute_numbers(const Program& program, Frame& frame) {
  frame.numbers.reserve(program.instructions.size());
  for (const Instruction& instruction : program.instructions) {
    if (instruction.operation == Operation::constant) {
      frame.numbers.push_back(instruction.first);
    } else if (instruction.operation < Operation::constant) {
      std::optional<int64_t> number = told(instruction, frame);
      if (!number) return false;
      frame.numbers.push_back(*number);
    } else {
      int64_t first = frame.numbers[instruction.first], second = frame.numbers[instruction.second];
      frame.numbers.push_back(computed(instruction.operation, first, second));
    }
  }
  for (const auto& [number, place] : program.exposed) frame.registers[place] = frame.numbers[number];
  return true;
}

// ---- operators -----------------------------------------------------------------------------------------------------

std::string text_of(at::IntArrayRef sizes) {
  std::string text = "[";
  for (size_t i = 0; i < sizes.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(sizes[i]);
  return text + "]";
}

// What an operator gave, laid out as kernels read it.
IValue laid_out(const std::string& who, const Layout& layout, IValue value, const Frame& frame) {
  TORCH_CHECK(value.isTensor() && is_plain_in(frame.memory, value.toTensor()),
              who + " gave something of another kind than it was compiled for");
  const at::Tensor& found = value.toTensor();
  // What torch foretells of an operator's results is not always so, not even the type.
  if (found.scalar_type() == layout.dtype && lies_so(found, layout, frame)) return value;
  at::Tensor fit = allocated(layout, frame);
  TORCH_CHECK(found.sizes() == fit.sizes(), who + " gave a tensor of the sizes " + text_of(found.sizes()) +
                                                " where it was compiled for " + text_of(fit.sizes()));
  fit.copy_(found);
  return fit;
}

void run(const OperatorStep& step, Frame& frame, platform::Stack& stack) {
  for (const Argument& argument : step.arguments) {
    stack.push_back(argument.is_sequence ? read_sequence(argument, frame.registers) : read(argument, frame.registers));
  }
  step.op.callBoxed(&stack);
  for (size_t i = 0; i < step.results.size(); ++i) {
    if (step.results[i] < 0) continue;
    IValue& result = frame.registers[step.results[i]];
    result = std::move(stack[i]);
    if (i < step.layouts.size() && step.layouts[i]) {
      result = laid_out(step.op.schema().name(), *step.layouts[i], std::move(result), frame);
    }
  }
  stack.clear();
}

// ---- Python --------------------------------------------------------------------------------------------------------

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
void run(const CallableStep& step, Frame& frame, const platform::DispatchState& outside) {
  Gil gil;
  platform::DispatchStateGuard restored(outside);
  std::vector<Owned> values;
  std::vector<PyObject*> arguments{nullptr};
  for (const Argument& argument : step.arguments) {
    values.push_back(python_argument(argument, frame.registers));
    if (!values.back()) raise();
    arguments.push_back(values.back().get());
  }
  Owned result(PyObject_Vectorcall(step.callable.get(), arguments.data() + 1,
                                   values.size() | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
  if (!result) raise();
  if (step.result < 0) return;
  IValue value = from_python(result.get());
  if (step.layout) value = laid_out("a function in the graph", *step.layout, std::move(value), frame);
  frame.registers[step.result] = std::move(value);
}

void run(const ItemStep& step, Frame& frame) {
  IValue value = read(step.source, frame.registers);
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
  if (step.result < 0) return;
  if (step.layout) item = laid_out("a call in the graph", *step.layout, std::move(item), frame);
  frame.registers[step.result] = std::move(item);
}

void check_signals() {
  Gil gil;
  if (PyErr_CheckSignals() < 0) raise();
}

// ---- memory --------------------------------------------------------------------------------------------------------

size_t bytes_of(const Layout& layout, const Frame& frame) {
  c10::SmallVector<int64_t, 8> size_place, stride_place;
  return platform::computeStorageNbytes(layout.sizes.now(frame, size_place), layout.strides.now(frame, stride_place),
                                          c10::elementSize(layout.dtype));
}

void run(const AllocateStep& step, Frame& frame) {
  if (step.donor.place >= 0) {
    IValue& held = frame.registers[step.donor.place];
    if (held.isTensor() && is_sole_owner(held.toTensor(), frame.memory) &&
        held.toTensor().storage().nbytes() == bytes_of(step.layout, frame)) {
      at::Tensor made = again(held.toTensor(), step.layout, frame);
      if (step.donor.last) held = IValue();
      frame.registers[step.result] = std::move(made);
      return;
    }
    if (step.donor.last) held = IValue();
  }
  frame.registers[step.result] = allocated(step.layout, frame);
}

void run(const ViewStep& step, Frame& frame) {
  c10::SmallVector<int64_t, 8> place;
  int64_t offset = step.offset.now(frame, place)[0];
  at::Tensor source = read(step.source, frame.registers).toTensor();
  frame.registers[step.result] = view_of(source, step.layout, offset, frame);
}

}  // namespace

bool begin(const Program& program, Frame& frame) {
  if (program.has_kernels && platform::DispatchModes::any_modes_set()) return false;
  if (!compute_numbers(program, frame)) return false;
  return std::all_of(program.checks.begin(), program.checks.end(),
                     [&](const Check& check) { return is_fine(check, frame); });
}

void run_steps(const Program& program, Frame& frame) {
  // What was recorded lies below autocast. It lies below autograd too, which yet keeps books: of views, changes in place
  // and forward-mode gradients.
  auto outside = platform::dispatch_state();
  platform::ExcludeKeysGuard below(c10::autocast_dispatch_keyset);
  c10::OptionalDeviceGuard device;
  if (!frame.memory.device.is_cpu()) device.reset_device(frame.memory.device);
  platform::Stack stack;
  size_t since_signals = 0;
  for (const Step& step : program.steps) {
    switch (step.index()) {
      case 0: run(std::get<0>(step), frame, stack); break;
      case 1: run(std::get<1>(step), frame, outside); break;
      case 2: run(std::get<2>(step), frame); break;
      case 3: run(std::get<3>(step), frame); break;
      case 4: run(std::get<4>(step), frame); break;
      case 5: run(std::get<5>(step), frame); break;
      case 6: run(std::get<6>(step), program.launcher, frame); break;
      case 7: run(std::get<7>(step), program.launcher, frame); break;
      default: run(std::get<8>(step), program.launcher, frame);
    }
    if (++since_signals == steps_between_signals) {
      since_signals = 0;
      check_signals();
    }
  }
}

}  // namespace kiln
