// The state of a GPU's random generator, as ATen's own kernels take it. Known for torch 2.11 to 2.15; run with 2.11.
//
// Nothing is linked against CUDA: Python finds at::CUDAGeneratorImpl::philox_cuda_state in torch's library by its name.
#pragma once

#include <ATen/Context.h>
#include <ATen/cuda/PhiloxCudaState.h>

#include <mutex>

namespace kiln::platform {

// The method as a function: in the calling conventions of Linux, `this` is the first argument.
using DrawFromGenerator = at::PhiloxCudaState (*)(c10::GeneratorImpl* generator, uint64_t increment);

// Seed and offset, where `place` is 0. While a CUDA graph is captured, `place` is the address on the GPU of a number that
// has to be added to the offset, and `seed` the address of the seed.
struct Drawn {
  int64_t seed, offset, place;
};

// Takes numbers from the default generator of a device, which moves on by the increment.
inline Drawn draw(DrawFromGenerator from_generator, c10::Device device, uint64_t increment) {
  at::Generator generator = at::globalContext().defaultGenerator(device);
  at::PhiloxCudaState state;
  {
    std::lock_guard<std::mutex> lock(generator.mutex());
    state = from_generator(generator.unsafeGetGeneratorImpl(), increment);
  }
  if (!state.captured_) return {static_cast<int64_t>(state.seed_.val), static_cast<int64_t>(state.offset_.val), 0};
  return {reinterpret_cast<int64_t>(state.seed_.ptr), static_cast<int64_t>(state.offset_intragraph_),
          reinterpret_cast<int64_t>(state.offset_.ptr)};
}

}  // namespace kiln::platform
