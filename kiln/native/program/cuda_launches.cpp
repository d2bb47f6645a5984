// Launching kernels on a GPU: through the CUDA driver, on the stream that is torch's current one when a call begins.
//
// Nothing waits for the GPU. Memory that is let go while a kernel still uses it goes back to torch's allocator, which
// gives it to nobody but later work of the same stream.
#include "program/program.h"

#include <limits>

namespace kiln {
namespace {

// Parameters that need no memory from the heap; more than kernels have, except for those over tables of tensors.
constexpr size_t usual_parameters = 256;
constexpr int64_t most_blocks = std::numeric_limits<int32_t>::max();

// Raises what Python says about an error. It returns if the launch may succeed now: the driver knows no device in a
// thread that has not used it yet.
void explain(const CudaLaunchStep& step, const Launcher& launcher, int error, c10::Device device) {
  Gil gil;
  Owned done(PyObject_CallFunction(launcher.failed.get(), "sii", step.name.c_str(), error,
                                   static_cast<int>(device.index())));
  if (!done) raise();
}

void launch(const CudaLaunchStep& step, const Launcher& launcher, unsigned blocks, void** parameters, Frame& frame) {
  int error = 0;
  for (int attempt = 0; attempt < 2; ++attempt) {
    error = launcher.launch(step.function, blocks, 1, 1, step.threads, 1, 1, step.shared_bytes, frame.stream,
                            parameters, nullptr);
    if (error == 0) return;
    explain(step, launcher, error, frame.memory.device);
  }
  TORCH_CHECK(false, "the kernel " + step.name + " could not be launched: error " + std::to_string(error) +
                         " of the CUDA driver");
}

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
  c10::SmallVector<int64_t, 8> place;
  const int64_t blocks = step.blocks.now(frame, place)[0];
  TORCH_CHECK(blocks <= most_blocks,
              "the kernel " + step.name + " needs " + std::to_string(blocks) + " blocks, more than a GPU takes");
  if (blocks > 0) {
    c10::SmallVector<uint64_t, usual_parameters> values;
    for (const Pointer& pointer : step.pointers) {
      const auto* address = static_cast<const uint64_t*>(address_of(pointer, frame));
      if (pointer.is_by_value) {
        values.append(address, address + drawn_words);
      } else {
        values.push_back(reinterpret_cast<uintptr_t>(address));
      }
    }
    for (int64_t size : step.sizes.now(frame, place)) values.push_back(static_cast<uint64_t>(size));
    c10::SmallVector<void*, usual_parameters> parameters;
    for (uint64_t& value : values) parameters.push_back(&value);
    ProfilerRange range(at::RecordScope::FUNCTION, step.name);
    launch(step, launcher, static_cast<unsigned>(blocks), parameters.data(), frame);
  }
  let_go(step.pointers, frame);
}

}  // namespace kiln
