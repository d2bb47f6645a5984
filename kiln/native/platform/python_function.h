// The contexts of Python's torch.autograd.Function: fields of torch's THPFunction. Known for torch 2.11 to 2.15.
#pragma once

#include "platform/autograd.h"

#include <torch/csrc/autograd/python_function.h>

namespace kiln::platform {

using FunctionContext = THPFunction;

// Null: the object is no context.
inline FunctionContext* function_context(PyObject* object) {
  return PyType_IsSubtype(Py_TYPE(object), &THPFunctionType) ? reinterpret_cast<FunctionContext*>(object) : nullptr;
}

// The node, held; a context made by hand has none. Up to torch 2.12 the context holds it by a weak pointer.
template <class Context>
NodePointer node_of_context(Context* context) {
  if constexpr (std::is_convertible_v<std::remove_reference_t<decltype(context->cdata)>, NodePointer>) {
    return context->cdata;
  } else {
    return context->cdata.lock();
  }
}

// Whether backward takes its gradients as one list. From torch 2.13 on.
template <class Context>
bool takes_boxed_gradients(Context* context) {
  if constexpr (requires { context->boxed_grads_call; }) {
    return context->boxed_grads_call;
  } else {
    return false;
  }
}

}  // namespace kiln::platform
