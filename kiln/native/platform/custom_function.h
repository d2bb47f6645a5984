// The nodes of C++ custom functions (torch::autograd::Function<T>), read by layout. Known for torch 2.11 to 2.15.
#pragma once

#include "platform/private_member.h"

#include <torch/csrc/autograd/custom_function.h>

#include <vector>

namespace kiln::platform {

using torch::autograd::AutogradContext;
using torch::autograd::VariableInfo;

struct ContextVariables {
  friend constexpr auto member(ContextVariables);
};
template struct PrivateMember<ContextVariables, &AutogradContext::saved_variables_>;

struct ContextMaterializes {
  friend constexpr auto member(ContextMaterializes);
};
template struct PrivateMember<ContextMaterializes, &AutogradContext::materialize_grads_>;

struct ContextFreed {
  friend constexpr auto member(ContextFreed);
};
template struct PrivateMember<ContextFreed, &AutogradContext::has_freed_buffers_>;

// No member of CppNode<T> depends on T: each node is read as one for this T.
struct AnyFunction;
struct AnotherFunction;

using CustomNode = torch::autograd::CppNode<AnyFunction>;

static_assert(sizeof(CustomNode) == sizeof(torch::autograd::CppNode<AnotherFunction>));

// The node, which is_custom_node (type_names.h).
inline CustomNode& as_custom_node(torch::autograd::Node& node) { return static_cast<CustomNode&>(node); }

// What save_for_backward() kept.
inline std::vector<torch::autograd::SavedVariable>& saved_variables(AutogradContext& context) {
  return context.*member(ContextVariables{});
}

// Whether zeros stand for gradients that are not there.
inline bool materializes_grads(const AutogradContext& context) { return context.*member(ContextMaterializes{}); }

// Whether the node has released what it kept.
inline bool has_freed_buffers(const AutogradContext& context) { return context.*member(ContextFreed{}); }

}  // namespace kiln::platform
