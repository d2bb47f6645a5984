// How values of torch's C++ enumerations are put to a user, shared by everything that explains a mismatch.
#pragma once

#include <Python.h>

#include <c10/core/ScalarType.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>

#include <string>

namespace kiln {

// "float32", as a user writes it after `torch.`.
inline std::string dtype_name(at::ScalarType type) {
  try {
    return torch::getTHPDtype(type)->name;
  } catch (const std::exception&) {  // a type without a Python name
    return c10::toString(type);
  }
}

inline std::string mismatch(const std::string& what, const std::string& expected, const std::string& seen) {
  return what + ": " + expected + " expected, " + seen + " seen";
}

}  // namespace kiln
