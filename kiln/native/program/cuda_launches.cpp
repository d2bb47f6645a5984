// Launching kernels on a GPU: through the CUDA driver, on the stream that is torch's current one when a call begins.
//
// Nothing waits for the GPU. Memory that is let go while a kernel still uses it goes back to torch's allocator, which
// gives it to nobody but later work of the same stream. The driver copies a launch's parameters before it returns.
#include "program/program.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace kiln {
namespace {

// Parameters that need no memory from the heap.
constexpr size_t usual_parameters = 128;
constexpr int64_t most_blocks = std::numeric_limits<int32_t>::max();

// Raises what Python says about an error. It returns if the launch may succeed now: the driver knows no device in a
// thread that has not used it yet.
void explain(const CudaKernel& kernel, const Launcher& launcher, int error, c10::Device device) {
  Gil gil;
  Owned done(PyObject_CallFunction(launcher.failed.get(), "sii", kernel.name.c_str(), error,
                                   static_cast<int>(device.index())));
  if (!done) raise();
}

void launch(const CudaKernel& kernel, const Launcher& launcher, int64_t blocks, void** parameters, Frame& frame) {
  ProfilerRange range(at::RecordScope::FUNCTION, kernel.name);
  int error = 0;
  for (int attempt = 0; attempt < 2; ++attempt) {
    error = launcher.launch(kernel.function, static_cast<unsigned>(blocks), 1, 1, kernel.threads, 1, 1,
                            kernel.shared_bytes, frame.stream, parameters, nullptr);
    if (error == 0) return;
    explain(kernel, launcher, error, frame.memory.device);
  }
  TORCH_CHECK(false, "the kernel " + kernel.name + " could not be launched: error " + std::to_string(error) +
                         " of the CUDA driver");
}

int64_t blocks_of(const CudaWork& work, const CudaKernel& kernel, const Frame& frame) {
  c10::SmallVector<int64_t, 8> place;
  const int64_t blocks = work.blocks.now(frame, place)[0];
  TORCH_CHECK(blocks <= most_blocks,
              "the kernel " + kernel.name + " needs " + std::to_string(blocks) + " blocks, more than a GPU takes");
  return blocks;
}

size_t word_count(const CudaWork& work) {
  size_t count = work.sizes.size();
  for (const Pointer& pointer : work.pointers) count += pointer.is_by_value ? drawn_words : 1;
  return count;
}

// Writes the addresses and sizes of a work; gives the end of what was written.
uint64_t* write_words(const CudaWork& work, const Frame& frame, uint64_t* words) {
  for (const Pointer& pointer : work.pointers) {
    const auto* address = static_cast<const uint64_t*>(address_of(pointer, frame));
    if (pointer.is_by_value) {
      words = std::copy_n(address, drawn_words, words);
    } else {
      *words++ = reinterpret_cast<uintptr_t>(address);
    }
  }
  c10::SmallVector<int64_t, 8> place;
  for (int64_t size : work.sizes.now(frame, place)) *words++ = static_cast<uint64_t>(size);
  return words;
}

// The table that is the parameter of a launch, filled row by row.
class Table {
 public:
  Table(const CudaTableStep& step, const Launcher& launcher, Frame& frame)
      : step_(step), launcher_(launcher), frame_(frame), starts_(starts_in_table(step.rows)), next_(first_row()) {}

  void add(const CudaWork& work) {
    const int64_t blocks = blocks_of(work, step_.kernel, frame_);
    if (blocks <= 0) return;
    if (rows_ == step_.rows || blocks_ + blocks > most_blocks) send();
    start(rows_++, static_cast<int32_t>(blocks_));
    next_ = write_words(work, frame_, next_);
    blocks_ += blocks;
  }

  // Launches what was added since the last launch.
  void send() {
    if (rows_ == 0) return;
    for (size_t unused = rows_; unused < starts_; ++unused) start(unused, std::numeric_limits<int32_t>::max());
    void* parameter = bytes_;
    launch(step_.kernel, launcher_, blocks_, &parameter, frame_);
    rows_ = 0;
    blocks_ = 0;
    next_ = first_row();
  }

 private:
  void start(size_t row, int32_t block) { std::memcpy(bytes_ + 4 * row, &block, sizeof block); }
  uint64_t* first_row() { return reinterpret_cast<uint64_t*>(bytes_ + 4 * starts_); }

  const CudaTableStep& step_;
  const Launcher& launcher_;
  Frame& frame_;
  const size_t starts_;
  size_t rows_ = 0;
  int64_t blocks_ = 0;
  alignas(8) char bytes_[most_parameter_bytes];
  uint64_t* next_;
};

}  // namespace

void* current_stream(const Program& program) {
  Owned index(PyLong_FromLong(program.memory.device.index()));
  Owned stream(index ? PyObject_CallOneArg(program.launcher.current_stream.get(), index.get()) : nullptr);
  if (!stream) raise();
  void* found = PyLong_AsVoidPtr(stream.get());
  if (!found && PyErr_Occurred()) raise();
  return found;
}

void run(const CudaLaunchStep& step, const Launcher& launcher, Frame& frame) {
  const CudaWork& work = step.work;
  const int64_t blocks = blocks_of(work, step.kernel, frame);
  if (blocks > 0) {
    c10::SmallVector<uint64_t, usual_parameters> values(word_count(work));
    c10::SmallVector<void*, usual_parameters> parameters(values.size());
    write_words(work, frame, values.data());
    for (size_t i = 0; i < values.size(); ++i) parameters[i] = &values[i];
    launch(step.kernel, launcher, blocks, parameters.data(), frame);
  }
  let_go(work.pointers, frame);
}

void run(const CudaTableStep& step, const Launcher& launcher, Frame& frame) {
  Table table(step, launcher, frame);
  for (const CudaWork& work : step.works) table.add(work);
  table.send();
  for (const CudaWork& work : step.works) let_go(work.pointers, frame);
}

}  // namespace kiln
