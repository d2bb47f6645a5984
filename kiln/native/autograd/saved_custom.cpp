// What the nodes of C++ custom functions (Function<T>) keep, whatever T is.
#include "autograd/saved_fields.h"
#include "platform/custom_function.h"

#include <algorithm>
#include <typeinfo>

namespace kiln {
namespace {

using platform::VariableInfo;

bool visit_value(SavedVisitor& visitor, c10::IValue& value);

// Lists and dictionaries give their elements as constant, but hold them in containers that are not.
bool visit_element(SavedVisitor& visitor, const c10::IValue& value) {
  return visit_value(visitor, const_cast<c10::IValue&>(value));
}

template <class Elements>
bool visit_elements(SavedVisitor& visitor, const Elements& elements) {
  length(visitor, elements.size());
  return std::all_of(elements.begin(), elements.end(),
                     [&](const c10::IValue& element) { return visit_element(visitor, element); });
}

// In the order of insertion, which the function sees too.
bool visit_dictionary(SavedVisitor& visitor, const c10::Dict<c10::IValue, c10::IValue>& dictionary) {
  length(visitor, dictionary.size());
  for (const auto& entry : dictionary) {
    static_assert(std::is_reference_v<decltype(entry.value())>, "a copy could not be replaced");
    if (entry.key().isTensor() || !visit_element(visitor, entry.key())) return false;
    if (!visit_element(visitor, entry.value())) return false;
  }
  return true;
}

// A letter for the type, then the value. Objects, streams, futures and their like cannot be visited.
bool visit_value(SavedVisitor& visitor, c10::IValue& value) {
  auto type = [&](char letter) { plain(visitor, letter); };
  if (value.isTensor()) {
    type('t');
    return field(visitor, value.toTensor());
  }
  if (value.isNone()) {
    type('n');
    return true;
  }
  if (value.isBool()) {
    type('b');
    plain(visitor, value.toBool());
    return true;
  }
  if (value.isInt()) {
    type('i');
    plain(visitor, value.toInt());
    return true;
  }
  if (value.isDouble()) {
    type('d');
    plain(visitor, value.toDouble());
    return true;
  }
  if (value.isString()) {
    type('s');
    text(visitor, value.toStringRef());
    return true;
  }
  if (value.isDevice()) {
    type('v');
    auto device = value.toDevice();
    return field(visitor, device);
  }
  if (value.isTuple()) {
    type('u');
    return visit_elements(visitor, value.toTupleRef().elements());
  }
  if (value.isList()) {
    type('l');
    plain(visitor, value.toList().elementType()->kind());
    return visit_elements(visitor, value.toListRef());
  }
  if (value.isGenericDict()) {
    type('m');
    return visit_dictionary(visitor, value.toGenericDict());
  }
  return false;
}

// By name: the order of the map is that of a hash table.
bool visit_saved_data(SavedVisitor& visitor, ska::flat_hash_map<std::string, c10::IValue>& data) {
  length(visitor, data.size());
  if (data.empty()) return true;
  std::vector<std::remove_reference_t<decltype(*data.begin())>*> entries;
  entries.reserve(data.size());
  for (auto& entry : data) entries.push_back(&entry);
  std::sort(entries.begin(), entries.end(), [](auto* left, auto* right) { return left->first < right->first; });
  for (auto* entry : entries) {
    text(visitor, entry->first);
    if (!visit_value(visitor, entry->second)) return false;
  }
  return true;
}

}  // namespace

// From this zeros are made for a gradient that is not there.
template <>
struct Field<VariableInfo> {
  static bool visit(SavedVisitor& visitor, VariableInfo& info) {
    return fields(visitor, info.layout, info.device, info.scalar_type, info.size, info.requires_grad, info.is_empty,
                  info.the_var);
  }
};

bool visit_custom_function(Node& node, SavedVisitor& visitor) {
  auto& custom = platform::as_custom_node(node);
  auto& context = custom.ctx_;
  if (platform::has_freed_buffers(context)) return false;
  plain(visitor, reinterpret_cast<uintptr_t>(&typeid(node)));
  plain(visitor, platform::materializes_grads(context));
  // Of the inputs' sizes nothing is made.
  return fields(visitor, custom.is_variable_input_, custom.output_info_, platform::saved_variables(context)) &&
         visit_saved_data(visitor, context.saved_data);
}

}  // namespace kiln
