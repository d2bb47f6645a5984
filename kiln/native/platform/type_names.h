// Classes of torch that are told apart by their mangled names: torch exports no type information of them, so that neither
// typeid nor dynamic_cast of ours knows them. Known for torch 2.11 to 2.15. A class that a version renames is not
// recognised any more, and what has one is left to torch: safe, but slow.
#pragma once

#include <algorithm>
#include <string_view>
#include <typeinfo>

namespace kiln::platform {

// ---- nodes ----------------------------------------------------------------------------------------------------------

constexpr std::string_view kPythonNode = "N5torch8autograd6PyNodeE";
constexpr std::string_view kAccumulateGrad = "N5torch8autograd14AccumulateGradE";
constexpr std::string_view kIdentity = "N5torch8autograd8IdentityE";
constexpr std::string_view kUndefinedGrad = "N5torch8autograd13UndefinedGradE";
constexpr std::string_view kUndefinedGradBackward = "N5torch8autograd21UndefinedGradBackwardE";
constexpr std::string_view kCopyBackwards = "N5torch8autograd13CopyBackwardsE";
constexpr std::string_view kCopySlices = "N5torch8autograd10CopySlicesE";

// The node of a C++ torch::autograd::Function<T>.
inline bool is_custom_node(const std::type_info& type) {
  constexpr std::string_view prefix = "N5torch8autograd7CppNodeI";
  return std::string_view(type.name()).substr(0, prefix.size()) == prefix;
}

// The class of a node that torch generates ("AddBackward0"), or nothing for any other type.
inline std::string_view generated_class(const std::type_info& type) {
  constexpr std::string_view prefix = "N5torch8autograd9generated", digits = "0123456789";
  std::string_view name = type.name();
  if (name.substr(0, prefix.size()) != prefix) return {};
  name = name.substr(std::min(name.find_first_not_of(digits, prefix.size()), name.size() - 1));
  return name.substr(0, name.size() - 1);
}

// ---- hooks of Python's, and what retain_grad() leaves at a node -----------------------------------------------------

constexpr std::string_view kTensorHook = "N5torch8autograd23PyFunctionTensorPreHookE";
constexpr std::string_view kPreHook = "N5torch8autograd17PyFunctionPreHookE";
constexpr std::string_view kPostHook = "N5torch8autograd18PyFunctionPostHookE";
constexpr std::string_view kAccumulateHook = "N5torch8autograd32PyFunctionTensorPostAccGradHooksE";
constexpr std::string_view kRetainsHook = "N5torch8autograd30CppFunctionSingleTensorPreHookE";

// The object as one of the class of this name, or null.
template <class Kind, class Base>
Kind* cast_by_name(Base* object, std::string_view name) {
  return typeid(*object).name() == name ? static_cast<Kind*>(object) : nullptr;
}

}  // namespace kiln::platform
