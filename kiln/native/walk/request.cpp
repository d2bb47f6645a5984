// What a backward pass was asked for, as the engine reads its arguments.
#include "walk/walk.h"

#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/python_cpp_function.h>
// The only header that leads from the context of a Python function to its node.
#include <torch/csrc/autograd/python_function.h>

namespace kiln {
namespace {

namespace autograd = torch::autograd;

bool is_gradient_edge(PyObject* object) {
  static PyObject* kind = [] {
    Owned module(PyImport_ImportModule("torch.autograd.graph"));
    PyObject* found = module ? PyObject_GetAttrString(module.get(), "GradientEdge") : nullptr;
    if (!found) raise();
    return found;
  }();
  return PyTuple_Check(object) && PyType_IsSubtype(Py_TYPE(object), reinterpret_cast<PyTypeObject*>(kind));
}

template <class Context>
NodePointer node_of_context(Context* context) {
  using Pointer = std::remove_reference_t<decltype(context->cdata)>;
  if constexpr (std::is_convertible_v<Pointer, NodePointer>) {
    return context->cdata;
  } else {  // up to torch 2.12
    return context->cdata.lock();
  }
}

NodePointer node_of(PyObject* object) {
  if (PyType_IsSubtype(Py_TYPE(object), &THPFunctionType)) {
    return node_of_context(reinterpret_cast<THPFunction*>(object));
  }
  if (autograd::THPCppFunction_Check(object)) return reinterpret_cast<autograd::THPCppFunction*>(object)->cdata;
  return {};
}

Edge edge_of(PyObject* gradient_edge) {
  unsigned long number = PyLong_AsUnsignedLong(PyTuple_GET_ITEM(gradient_edge, 1));
  if (PyErr_Occurred()) raise();
  return Edge(node_of(PyTuple_GET_ITEM(gradient_edge, 0)), static_cast<uint32_t>(number));
}

void check_number(const Edge& edge) {
  if (edge.input_nr >= edge.function->num_inputs()) throw Refused{"an edge that is not there"};
}

Edge root_of(PyObject* root) {
  Edge edge;
  if (is_tensor(root)) {
    edge = autograd::impl::gradient_edge(THPVariable_Unpack(root));
  } else if (is_gradient_edge(root)) {
    edge = edge_of(root);
  }
  if (!edge.function) throw Refused{"a root that requires no gradient"};
  check_number(edge);
  return edge;
}

at::Tensor gradient_of(PyObject* gradient) {
  if (!THPVariable_CheckExact(gradient)) throw Refused{"a root without a gradient, or with one of a tensor subclass"};
  return THPVariable_Unpack(gradient);
}

// A leaf that was never used has no node, and nothing leads to it.
Edge output_of(PyObject* input, bool accumulate) {
  Edge edge;
  if (is_tensor(input)) {
    const at::Tensor& tensor = THPVariable_Unpack(input);
    if (!tensor.requires_grad()) throw Refused{"an input that requires no gradient"};
    edge = Edge(tensor.grad_fn(), static_cast<uint32_t>(tensor.output_nr()));
    if (!edge.function) edge.function = autograd::impl::try_get_grad_accumulator(tensor);
    if (!edge.function) return Edge(make_node<Passage>(edge_list()), 0);
    // The engine accumulates into what is not a leaf by this.
    if (accumulate) tensor.retain_grad();
  } else if (is_gradient_edge(input)) {
    edge = edge_of(input);
  }
  if (!edge.function) throw Refused{"an input that is neither a tensor nor an edge"};
  check_number(edge);
  return edge;
}

}  // namespace

edge_list outputs_of(PyObject* inputs, bool accumulate) {
  edge_list outputs;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(inputs); ++i) {
    outputs.push_back(output_of(PyTuple_GET_ITEM(inputs, i), accumulate));
  }
  return outputs;
}

Request request_of(PyObject* roots, PyObject* gradients, PyObject* inputs, bool accumulate) {
  if (autograd::AnomalyMode::is_enabled()) throw Refused{"anomaly mode"};
  Py_ssize_t count = PyTuple_GET_SIZE(roots);
  if (count == 0 || count != PyTuple_GET_SIZE(gradients)) throw Refused{"as many gradients as roots are needed"};
  Request request;
  request.accumulate = accumulate;
  for (Py_ssize_t i = 0; i < count; ++i) {
    request.roots.push_back(root_of(PyTuple_GET_ITEM(roots, i)));
    request.gradients.push_back(gradient_of(PyTuple_GET_ITEM(gradients, i)));
  }
  request.outputs = outputs_of(inputs, accumulate);
  autograd::validate_outputs(request.roots, request.gradients, [](const std::string& what) { return what; });
  return request;
}

}  // namespace kiln
