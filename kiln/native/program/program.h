// A program: steps over numbered registers, run without Python between them. What the files of this folder share.
//
// Inputs are in the first registers, then come what steps give. A value is let go at its last use. Programs do not change
// once they are built: all that a call needs of its own is in its Frame, so that calls may nest and run side by side.
#pragma once

#include "autograd/grad_node.h"
#include "platform/dispatch.h"
#include "platform/random.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <c10/util/SmallVector.h>

#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace kiln {

using c10::IValue;

using Registers = std::vector<IValue>;

// Where a program's tensors are. On the CPU the allocator is always torch's own, and not noted.
struct Memory {
  c10::Device device{c10::DeviceType::CPU};
  c10::Allocator* allocator = nullptr;

  bool has(const at::Tensor& tensor) const {
    c10::Device found = tensor.device();
    return found.type() == device.type() && (found.is_cpu() || found.index() == device.index());
  }
};

struct Frame {
  Registers registers;
  std::vector<int64_t> numbers;  // sizes that vary, computed from those of the inputs when the call begins
  Memory memory;
  void* stream = nullptr;  // that kernels on a GPU are launched on
};

// Integers, some of which are the frame's.
class Numbers {
 public:
  void add(int64_t value) { values_.push_back(value); }
  void add_moving(uint32_t number) {
    moving_.emplace_back(static_cast<uint32_t>(values_.size()), number);
    values_.push_back(0);
  }
  size_t size() const { return values_.size(); }

  // Valid as long as `place` and this are.
  at::IntArrayRef now(const Frame& frame, c10::SmallVector<int64_t, 8>& place) const {
    if (moving_.empty()) return values_;
    place.assign(values_.begin(), values_.end());
    for (const auto& [index, number] : moving_) place[index] = frame.numbers[number];
    return place;
  }

 private:
  std::vector<int64_t> values_;
  std::vector<std::pair<uint32_t, uint32_t>> moving_;
};

// How a tensor lies in the program's memory.
struct Layout {
  at::ScalarType dtype = at::ScalarType::Undefined;
  Numbers sizes, strides;
  uint64_t alignment = 1;  // of its first element, in bytes
};

enum class Elements : uint8_t { none, integers, doubles, scalars, tensors, optional_tensors };

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

// ---- steps; a result of -1 is one that nobody reads -----------------------------------------------------------------

struct OperatorStep {
  c10::OperatorHandle op;
  std::vector<Argument> arguments;
  std::vector<int> results;
  std::vector<std::optional<Layout>> layouts;  // that results must have; may be empty
};

struct CallableStep {
  Owned callable;
  std::vector<Argument> arguments;
  int result;
  std::optional<Layout> layout;
};

struct ItemStep {
  Argument source;
  int64_t item;
  int result;
  std::optional<Layout> layout;
};

// New memory, or that of the donor's tensor if nobody else holds it.
struct AllocateStep {
  Layout layout;
  Argument donor;
  int result;
};

struct ViewStep {
  Argument source;
  Layout layout;
  Numbers offset;  // one, in elements from the source's first
  int result;
};

// Computes the units of a kernel's work from `start` up to `end`.
using Entry = void (*)(void* const* pointers, const int64_t* sizes, int64_t start, int64_t end);

struct Pointer {
  Argument source;
  int64_t offset;  // in bytes
  bool is_written;  // an input's memory, which the kernel changes
  bool is_by_value = false;  // the kernel's parameters are the words of a DrawStep's result, not their address
};

// What a kernel is given.
inline void* address_of(const Pointer& pointer, const Frame& frame) {
  const IValue& value = pointer.source.place < 0 ? pointer.source.constant : frame.registers[pointer.source.place];
  c10::TensorImpl* tensor = value.toTensor().unsafeGetTensorImpl();
  void* data = pointer.is_written ? tensor->mutable_data() : const_cast<void*>(tensor->data());
  return static_cast<char*>(data) + pointer.offset;
}

// Lets go of what a kernel was the last to use.
inline void let_go(const std::vector<Pointer>& pointers, Frame& frame) {
  for (const Pointer& pointer : pointers) {
    if (pointer.source.last) frame.registers[pointer.source.place] = IValue();
  }
}

struct Launch {
  Entry entry;
  std::vector<Pointer> pointers;
  Numbers sizes;
  Numbers extent;  // units of work, and how long all of them take, roughly, in picoseconds
  bool is_whole;  // one thread does all of it
};

// Kernels of which none writes what another reads or writes: threads share the work of all of them at once.
struct LaunchStep {
  std::string name;
  std::vector<Launch> launches;
};

// cuLaunchKernel of the CUDA driver, whose headers are not needed: function, blocks, threads of a block, bytes of
// shared memory, stream, parameters, extra; gives 0 or the number of an error.
using CudaLaunch = int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                           void**);

// What Python gives a program that launches kernels on a GPU.
struct Launcher {
  CudaLaunch launch = nullptr;
  Owned current_stream;  // takes the index of the program's device, and gives the address of torch's stream
  Owned failed;  // takes a kernel's name, the driver's error and the device; raises, or returns to have it tried again
  platform::DrawFromGenerator draw = nullptr;
};

// A kernel on a GPU, and the shape of its blocks.
struct CudaKernel {
  std::string name;
  void* function;  // the driver's handle
  unsigned threads;  // of a block
  unsigned shared_bytes;
};

// Seed and offset of random numbers: torch's generator of the program's GPU moves on by the increment. The result is a
// tensor of `drawn_words` integers on the CPU (platform::Drawn).
struct DrawStep {
  Numbers increment;  // one number
  int result;
};

constexpr int64_t drawn_words = 3;

// What a kernel on a GPU works on.
struct CudaWork {
  std::vector<Pointer> pointers;
  Numbers sizes;
  Numbers blocks;  // one number
};

// One launch on a GPU. Its parameters are the pointers, then the sizes, 64 bits each.
struct CudaLaunchStep {
  CudaKernel kernel;
  CudaWork work;
};

// Works of one kernel, none of which writes what another reads or writes: one launch does as many as its table has rows.
// The kernel's only parameter is the table: the number of the first block of each row, 32 bits each and so many that
// their count is a power of two (unused ones are the greatest number), then the pointers and sizes of each row.
struct CudaTableStep {
  CudaKernel kernel;
  std::vector<CudaWork> works;
  size_t rows;
};

// In bytes: what kernels' parameters may take up, from CUDA 12.1 on.
constexpr size_t most_parameter_bytes = 32764;

inline size_t starts_in_table(size_t rows) {
  size_t count = 2;
  while (count < rows) count *= 2;
  return count;
}

inline size_t bytes_of_table(size_t rows, size_t words) { return 4 * starts_in_table(rows) + 8 * rows * words; }

using Step = std::variant<OperatorStep, CallableStep, ItemStep, AllocateStep, ViewStep, LaunchStep, CudaLaunchStep,
                          DrawStep, CudaTableStep>;

// ---- what is done when a call begins --------------------------------------------------------------------------------

enum class Operation : uint8_t { value, size, stride, constant, add, mul, floordiv, mod, min, max, pow, eq, ne, lt, le };

// Number k of a frame is what instruction k gives, of an input or of earlier numbers.
struct Instruction {
  Operation operation;
  int64_t first, second;
};

// How an input must lie; without a layout it may be any tensor, but nothing that is more than its elements.
struct Check {
  int input;
  std::optional<Layout> layout;
};

// A range in torch's profiler, as long as it lives. Where nobody profiles, it is a look at a variable of the thread.
class ProfilerRange {
 public:
  ProfilerRange(at::RecordScope scope, const std::string& name) {
    if (name.empty()) return;
    auto callbacks = at::getStepCallbacksUnlessEmpty(scope);
    if (!callbacks.has_value()) return;
    recorded_.emplace(std::move(*callbacks));
    recorded_->before(name);
  }

 private:
  std::optional<at::RecordFunction> recorded_;
};

struct Program {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  size_t input_count;
  size_t register_count;
  bool has_kernels;  // which no mode can see into
  std::vector<bool> reads_input;
  std::vector<bool> is_donor;  // inputs whose memory is taken where nobody else holds it
  std::vector<Instruction> instructions;
  std::vector<Check> checks;
  std::vector<std::pair<int, int>> exposed;  // numbers that are in registers too
  std::vector<Step> steps;
  std::vector<Argument> outputs;
  Owned otherwise;
  Memory memory;
  Launcher launcher;
  std::string name;  // of its range in torch's profiler; without one it has no range
  PyObject* attributes;
};

// ---- values.cpp ---------------------------------------------------------------------------------------------------

// A number where an operator takes a tensor, as torch's own bindings pass it.
IValue number_as_tensor(const IValue& number);
IValue from_python(PyObject* object);
Owned to_python(const IValue& value);
IValue read(const Argument& argument, Registers& registers);
IValue read_sequence(const Argument& argument, Registers& registers);

bool lies_so(const at::Tensor& tensor, const Layout& layout, const Frame& frame);
Memory memory_of(int64_t device);  // -1: the CPU; otherwise the index of a GPU
at::Tensor allocated(const Layout& layout, const Frame& frame);
// A view, which shares the version counter.
at::Tensor view_of(const at::Tensor& source, const Layout& layout, int64_t offset, const Frame& frame);
// Another tensor over the same memory, for when nobody needs the first any more.
at::Tensor again(const at::Tensor& source, const Layout& layout, const Frame& frame);
bool is_sole_owner(const at::Tensor& tensor, const Memory& memory);
// The same, as a tensor that Python does not know.
at::Tensor unknown_to_python(const at::Tensor& tensor);

// ---- steps.cpp ---------------------------------------------------------------------------------------------------

// Whether the inputs, which are in their registers, are as they must be.
bool begin(const Program& program, Frame& frame);
// Without the GIL.
void run_steps(const Program& program, Frame& frame);

// ---- launches.cpp ---------------------------------------------------------------------------------------------------

void run(const LaunchStep& step, Frame& frame);

// ---- cuda_launches.cpp ----------------------------------------------------------------------------------------------

void run(const CudaLaunchStep& step, const Launcher& launcher, Frame& frame);
void run(const CudaTableStep& step, const Launcher& launcher, Frame& frame);
// With the GIL. The stream that kernels are launched on now.
void* current_stream(const Program& program);

// ---- draws.cpp ------------------------------------------------------------------------------------------------------

void run(const DrawStep& step, const Launcher& launcher, Frame& frame);

// ---- building.cpp ---------------------------------------------------------------------------------------------------

struct Description {
  PyObject *steps, *outputs, *instructions, *checks, *exposed, *launcher;
};

void build_program(Program& program, const Description& description);

}  // namespace kiln
