// How values of torch's C++ enumerations are put to a user, shared by everything that explains a mismatch.
#pragma once

#include "platform/tensors.h"

#include <c10/core/ScalarType.h>

#include <string>

namespace kiln {

// "float32", or torch's C++ name of a type without a Python name.
inline std::string dtype_name(at::ScalarType type) {
  try {
    return dtype_python_name(type);
  } catch (const std::exception&) {
    return c10::toString(type);
  }
}

inline std::string mismatch(const std::string& what, const std::string& expected, const std::string& seen) {
  return what + ": " + expected + " expected, " + seen + " seen";
}

}  // namespace kiln
