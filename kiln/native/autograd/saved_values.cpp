// Finds the function that visits a node by the node's type, and has those of the types that torch writes by hand.
#include "autograd/saved_values.h"

#include "autograd/saved_fields.h"
#include "platform/type_names.h"

#include <c10/util/flat_hash_map.h>

#include <string_view>
#include <typeinfo>

namespace kiln {
namespace {

using platform::CopyBackwards;
using platform::CopySlices;

using Visit = bool (*)(Node&, SavedVisitor&);

bool visit_unknown(Node&, SavedVisitor&) { return false; }

bool visit_nothing(Node&, SavedVisitor&) { return true; }

bool visit_copy(Node& node, SavedVisitor& visitor) {
  return field(visitor, static_cast<CopyBackwards&>(node).src_options);
}

// An operation in place on a view: the history of the base goes through it, and it calls the node of the operation with
// the gradient of the view.
bool visit_copy_slices(Node& node, SavedVisitor& visitor) {
  auto& slices = static_cast<CopySlices&>(node);
  // A function that makes the view has arguments that cannot be read. Without the inner node this was freed.
  if (slices.view_fn || !slices.fn || !fields(visitor, slices.base, slices.view)) return false;
  Node& inner = *slices.fn;
  // A function of the user's may do more than a trace could see.
  if (platform::is_custom_node(typeid(inner))) return false;
  plain(visitor, reinterpret_cast<uintptr_t>(&typeid(inner)));
  length(visitor, inner.num_outputs());
  for (const auto& edge : inner.next_edges()) plain(visitor, edge.is_valid());
  return visit_saved(inner, visitor);
}

constexpr KnownType known_by_hand[] = {
    // What it accumulates into is no saved value.
    {platform::kAccumulateGrad, visit_nothing},
    {platform::kIdentity, visit_nothing},
    {platform::kUndefinedGrad, visit_nothing},
    {platform::kUndefinedGradBackward, visit_nothing},
    {platform::kCopyBackwards, visit_copy},
    {platform::kCopySlices, visit_copy_slices},
};

Visit find_in(const KnownType* types, size_t count, std::string_view name) {
  for (size_t i = 0; i < count; ++i) {
    if (types[i].name == name) return types[i].visit;
  }
  return nullptr;
}

Visit find(Node& node) {
  const std::type_info& type = typeid(node);
  if (Visit found = find_in(known_by_hand, std::size(known_by_hand), type.name())) return found;
  if (Visit found = find_in(generated_types, generated_type_count, platform::generated_class(type))) return found;
  if (platform::is_custom_node(type)) return visit_custom_function;
  return dynamic_cast<KeepsNothing*>(&node) ? visit_nothing : visit_unknown;
}

}  // namespace

// The number of elements is kept beside the sizes: it follows them when a visitor has put others in their place.
bool Field<at::TensorGeometry>::visit(SavedVisitor& visitor, at::TensorGeometry& geometry) {
  bool visited =
      fields(visitor, geometry.mutable_sizes(), geometry.mutable_strides(), geometry.mutable_storage_offset());
  bool symbolic = geometry.sym_numel().is_heap_allocated();
  int64_t elements = 1;
  for (const auto& size : geometry.sym_sizes()) {
    symbolic = symbolic || size.is_heap_allocated();
    if (!symbolic) elements *= size.as_int_unchecked();
  }
  if (symbolic || elements != geometry.sym_numel().as_int_unchecked()) geometry.recompute();
  return visited;
}

bool visit_saved(Node& node, SavedVisitor& visitor) {
  // By the address of the type's description, which is one comparison; the types seen are few.
  static ska::flat_hash_map<const std::type_info*, Visit> seen;
  const std::type_info* type = &typeid(node);
  auto place = seen.find(type);
  if (place == seen.end()) place = seen.emplace(type, find(node)).first;
  return place->second(node, visitor);
}

}  // namespace kiln
