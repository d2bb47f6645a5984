// How each kind of field that a node may have is shown to a visitor: Field<Type>::visit. False: this value cannot be.
#pragma once

#include "autograd/saved_values.h"

#include <ATen/TensorGeometry.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Scalar.h>
#include <c10/core/TensorOptions.h>

#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace kiln {

// A node's type, by its name, and the function that visits such a node.
struct KnownType {
  std::string_view name;
  bool (*visit)(Node& node, SavedVisitor& visitor);
};

// Written by generate_saved_values.py: the classes that torch generates.
extern const KnownType generated_types[];
extern const size_t generated_type_count;

template <class Value>
void plain(SavedVisitor& visitor, const Value& value) {
  static_assert(std::is_trivially_copyable_v<Value> && std::has_unique_object_representations_v<Value>);
  visitor.constant({reinterpret_cast<const char*>(&value), sizeof(value)});
}

inline void plain(SavedVisitor& visitor, const double& value) {
  visitor.constant({reinterpret_cast<const char*>(&value), sizeof(value)});
}

inline void length(SavedVisitor& visitor, size_t count) { plain(visitor, static_cast<uint64_t>(count)); }

inline void text(SavedVisitor& visitor, std::string_view value) {
  length(visitor, value.size());
  visitor.constant(value);
}

// Numbers, bools and enumerations. For any other type there is a specialisation below or an error of the compiler.
template <class Value>
struct Field {
  static_assert(std::is_arithmetic_v<Value> || std::is_enum_v<Value>);
  static bool visit(SavedVisitor& visitor, const Value& value) {
    plain(visitor, value);
    return true;
  }
};

template <>
struct Field<SavedVariable> {
  static bool visit(SavedVisitor& visitor, SavedVariable& variable) {
    visitor.variable(variable);
    return true;
  }
};

template <>
struct Field<at::Tensor> {
  static bool visit(SavedVisitor& visitor, at::Tensor& tensor) {
    visitor.tensor(tensor);
    return true;
  }
};

template <>
struct Field<c10::SymInt> {
  static bool visit(SavedVisitor& visitor, c10::SymInt& size) {
    visitor.size(size);
    return true;
  }
};

template <>
struct Field<std::string> {
  static bool visit(SavedVisitor& visitor, const std::string& value) {
    text(visitor, value);
    return true;
  }
};

template <>
struct Field<at::Scalar> {
  // The type first: 1 and 1.0 promote differently.
  static bool visit(SavedVisitor& visitor, const at::Scalar& value) {
    if (value.isSymbolic()) return false;
    plain(visitor, value.type());
    if (value.isFloatingPoint()) {
      plain(visitor, value.toDouble());
    } else if (value.isComplex()) {
      auto number = value.toComplexDouble();
      plain(visitor, number.real());
      plain(visitor, number.imag());
    } else if (value.type() == at::kUInt64) {
      plain(visitor, value.toUInt64());
    } else {
      plain(visitor, value.toLong());
    }
    return true;
  }
};

template <>
struct Field<at::Device> {
  static bool visit(SavedVisitor& visitor, const at::Device& device) {
    plain(visitor, device.type());
    plain(visitor, device.index());
    return true;
  }
};

template <>
struct Field<at::TensorOptions> {
  static bool visit(SavedVisitor& visitor, const at::TensorOptions& options) {
    constexpr int8_t absent = -1;
    auto memory_format = options.memory_format_opt();
    auto device = options.device_opt();
    const int8_t description[] = {
        options.has_dtype() ? static_cast<int8_t>(c10::typeMetaToScalarType(options.dtype())) : absent,
        options.has_layout() ? static_cast<int8_t>(options.layout()) : absent,
        device ? static_cast<int8_t>(device->type()) : absent,
        device ? static_cast<int8_t>(device->index()) : absent,
        options.has_requires_grad() ? static_cast<int8_t>(options.requires_grad()) : absent,
        options.has_pinned_memory() ? static_cast<int8_t>(options.pinned_memory()) : absent,
        memory_format ? static_cast<int8_t>(*memory_format) : absent};
    visitor.constant({reinterpret_cast<const char*>(description), sizeof(description)});
    return true;
  }
};

template <class Value>
struct Field<std::vector<Value>> {
  static bool visit(SavedVisitor& visitor, std::vector<Value>& values) {
    length(visitor, values.size());
    if constexpr (std::is_same_v<Value, bool>) {
      for (bool value : values) plain(visitor, value);
    } else if constexpr (std::is_arithmetic_v<Value> || std::is_enum_v<Value>) {
      visitor.constant({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(Value)});
    } else {
      for (auto& value : values) {
        if (!Field<Value>::visit(visitor, value)) return false;
      }
    }
    return true;
  }
};

template <class Value>
struct Field<std::optional<Value>> {
  static bool visit(SavedVisitor& visitor, std::optional<Value>& value) {
    plain(visitor, value.has_value());
    return !value || Field<Value>::visit(visitor, *value);
  }
};

template <class Value>
struct Field<c10::OptionalArray<Value>> {
  static bool visit(SavedVisitor& visitor, c10::OptionalArray<Value>& values) {
    return Field<std::optional<std::vector<Value>>>::visit(visitor, values.list);
  }
};

template <>
struct Field<platform::TypeAndSize> {
  static bool visit(SavedVisitor& visitor, platform::TypeAndSize& value) {
    return Field<std::vector<c10::SymInt>>::visit(visitor, value.sym_sizes) &&
           Field<at::TensorOptions>::visit(visitor, value.options);
  }
};

template <>
struct Field<at::TensorGeometry> {
  static bool visit(SavedVisitor& visitor, at::TensorGeometry& geometry);
};

template <class Value>
bool field(SavedVisitor& visitor, Value& value) {
  return Field<Value>::visit(visitor, value);
}

// All in order, up to the first that cannot be visited.
template <class... Values>
bool fields(SavedVisitor& visitor, Values&... values) {
  return (field(visitor, values) && ...);
}

}  // namespace kiln
