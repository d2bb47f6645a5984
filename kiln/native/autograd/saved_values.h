// What the nodes of autograd's graph keep from the forward pass, field by field.
//
// The fields of torch's built-in nodes are known from the header that torch generates for them: `setup.py` reads that
// header and writes one function a type. A visitor sees each field by reference, always in the same order: the walk reads
// them for its key and its inputs, a trace puts stand-ins in their place and takes them out again.
#pragma once

#include "autograd/grad_node.h"

#include <c10/core/SymInt.h>

#include <string_view>

namespace kiln {

class SavedVisitor {
 public:
  virtual ~SavedVisitor() = default;
  // A tensor kept with its version.
  virtual void variable(SavedVariable& variable) = 0;
  // A tensor kept as it is.
  virtual void tensor(at::Tensor& tensor) = 0;
  // A size, which may be symbolic in a trace.
  virtual void size(c10::SymInt& size) = 0;
  // Anything else: bytes that are the same for equal values, of fixed length or with their length in front.
  virtual void constant(std::string_view bytes) = 0;
};

// Visits all that the node keeps. False: the type is not known, or keeps something that cannot be visited.
// With the GIL held.
bool visit_saved(Node& node, SavedVisitor& visitor);

// The node of a C++ Function<T>. Nothing that can be reached at run time says whether T::is_traceable.
bool visit_custom_function(Node& node, SavedVisitor& visitor);

}  // namespace kiln
