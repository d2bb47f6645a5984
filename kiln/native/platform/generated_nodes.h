// The nodes that torch generates, one class an operator, from the header that it generates for them. Known for torch 2.11
// to 2.15; generate_saved_values.py reads the same header, and leaves out the classes that it does not understand.
#pragma once

#include <torch/csrc/autograd/generated/Functions.h>

namespace kiln::platform {

namespace generated = torch::autograd::generated;

}  // namespace kiln::platform
