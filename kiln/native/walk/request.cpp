// What a backward pass was asked for, as the engine reads its arguments.
#include "platform/python_function.h"
#include "walk/walk.h"

namespace kiln {
namespace {

bool is_gradient_edge(PyObject* object) {
  static PyObject* kind = [] {
    Owned module(PyImport_ImportModule("torch.autograd.graph"));
    PyObject* found = module ? PyObject_GetAttrString(module.get(), "GradientEdge") : nullptr;
    if (!found) raise();
    return found;
  }();
  return PyTuple_Check(object) && PyType_IsSubtype(Py_TYPE(object), reinterpret_cast<PyTypeObject*>(kind));
}

NodePointer node_of(PyObject* object) {
  if (auto* context = platform::function_context(object)) return platform::node_of_context(context);
  if (platform::is_node_object(object)) return platform::node_in(object);
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
    edge = platform::gradient_edge(tensor_in(root));
  } else if (is_gradient_edge(root)) {
    edge = edge_of(root);
  }
  if (!edge.function) throw Refused{"a root that requires no gradient"};
  check_number(edge);
  return edge;
}

at::Tensor gradient_of(PyObject* gradient) {
  if (!is_exact_tensor(gradient)) throw Refused{"a root without a gradient, or with one of a tensor subclass"};
  return tensor_in(gradient);
}

// A leaf that was never used has no node, and nothing leads to it.
Edge output_of(PyObject* input, bool accumulate) {
  Edge edge;
  if (is_tensor(input)) {
    const at::Tensor& tensor = tensor_in(input);
    if (!tensor.requires_grad()) throw Refused{"an input that requires no gradient"};
    edge = Edge(tensor.grad_fn(), static_cast<uint32_t>(tensor.output_nr()));
    if (!edge.function) edge.function = platform::try_get_grad_accumulator(tensor);
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
  if (platform::AnomalyMode::is_enabled()) throw Refused{"anomaly mode"};
  Py_ssize_t count = PyTuple_GET_SIZE(roots);
  if (count == 0 || count != PyTuple_GET_SIZE(gradients)) throw Refused{"as many gradients as roots are needed"};
  Request request;
  request.accumulate = accumulate;
  for (Py_ssize_t i = 0; i < count; ++i) {
    request.roots.push_back(root_of(PyTuple_GET_ITEM(roots, i)));
    request.gradients.push_back(gradient_of(PyTuple_GET_ITEM(gradients, i)));
  }
  request.outputs = outputs_of(inputs, accumulate);
  platform::validate_outputs(request.roots, request.gradients, [](const std::string& what) { return what; });
  return request;
}

}  // namespace kiln
