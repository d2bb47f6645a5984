// Saved tensors of autograd's nodes: private members of torch::autograd::SavedVariable. Known for torch 2.11 to 2.15.
#pragma once

#include "platform/private_member.h"

#include <torch/csrc/autograd/saved_variable.h>

namespace kiln::platform {
struct SavedData {
  friend constexpr auto member(SavedData);
};
template struct PrivateMember<SavedData, &torch::autograd::SavedVariable::data_>;

struct SavedOriginal {
  friend constexpr auto member(SavedOriginal);
};
template struct PrivateMember<SavedOriginal, &torch::autograd::SavedVariable::saved_original_>;

struct SavedLeaf {
  friend constexpr auto member(SavedLeaf);
};
template struct PrivateMember<SavedLeaf, &torch::autograd::SavedVariable::is_leaf_>;

// The tensor that is kept. By public functions a saved tensor could only be made anew, with the version that the tensor
// has by then.
inline at::Tensor& saved_data(torch::autograd::SavedVariable& variable) { return variable.*member(SavedData{}); }

// Whether the tensor itself is kept, not a copy without history.
inline bool keeps_original(const torch::autograd::SavedVariable& variable) {
  return variable.*member(SavedOriginal{});
}

// Whether it was a leaf when it was saved.
inline bool was_leaf(const torch::autograd::SavedVariable& variable) { return variable.*member(SavedLeaf{}); }

}  // namespace kiln::platform
