// Random numbers: a step that takes seed and offset from torch's generator of the program's GPU, in the program's order.
#include "program/program.h"

namespace kiln {

void run(const DrawStep& step, const Launcher& launcher, Frame& frame) {
  c10::SmallVector<int64_t, 8> place;
  const int64_t increment = step.increment.now(frame, place)[0];
  platform::Drawn drawn = platform::draw(launcher.draw, frame.memory.device, static_cast<uint64_t>(increment));
  if (step.result < 0) return;
  at::Tensor words = at::empty({drawn_words}, at::TensorOptions(at::kLong));
  int64_t* data = words.mutable_data_ptr<int64_t>();
  data[0] = drawn.seed;
  data[1] = drawn.offset;
  data[2] = drawn.place;
  frame.registers[step.result] = std::move(words);
}

}  // namespace kiln
