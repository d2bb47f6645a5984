// What of a walk Python can call: `retain_grad` at a node, and a node as a function of its gradients.
#include "walk/walk.h"

namespace kiln {
namespace {

PyTypeObject RetainGradType = {PyVarObject_HEAD_INIT(nullptr, 0)};
PyTypeObject NodeFunctionType = {PyVarObject_HEAD_INIT(nullptr, 0)};

struct RetainGrad {
  PyObject_HEAD
  NodePointer node;
  uint32_t input;
  vectorcallfunc call;
};

struct NodeFunction {
  PyObject_HEAD
  PyObject* walk;
  uint32_t index;
};

// The hook takes all gradients of the node and looks at one.
void retain(const RetainGrad& self, const at::Tensor& gradient) {
  platform::AutoGradMode without_grad(false);
  for (auto& [number, hook] : self.node->retains_grad_hooks()) {
    if (static_cast<platform::CppFunctionSingleTensorPreHook&>(*hook).value_idx_ != self.input) continue;
    variable_list gradients(self.input + 1);
    gradients[self.input] = gradient;
    (*hook)(gradients);
    return;
  }
}

PyObject* call_retain(PyObject* self, PyObject* const* arguments, size_t flagged, PyObject* names) {
  if (PyVectorcall_NARGS(flagged) != 1 || names || !(arguments[0] == Py_None || is_tensor(arguments[0]))) {
    return PyErr_Format(PyExc_TypeError, "a gradient or None expected");
  }
  return guarded([&]() -> PyObject* {
    at::Tensor gradient;
    if (arguments[0] != Py_None) gradient = tensor_in(arguments[0]);
    retain(*reinterpret_cast<RetainGrad*>(self), gradient);
    Py_RETURN_NONE;
  });
}

void dealloc_retain(PyObject* self) {
  reinterpret_cast<RetainGrad*>(self)->node.~NodePointer();
  Py_TYPE(self)->tp_free(self);
}

PyObject* call_function(PyObject* self, PyObject* gradients, PyObject* names) {
  if (names && PyDict_GET_SIZE(names)) return PyErr_Format(PyExc_TypeError, "gradients have no names");
  return guarded([&]() -> PyObject* {
    auto* function = reinterpret_cast<NodeFunction*>(self);
    Owned walk = share(function->walk);
    variable_list results =
        apply_call(walk_of(walk.get()), function->index, tensors_of(gradients), nullptr, nullptr);
    return tuple_of(std::move(results)).release();
  });
}

void dealloc_function(PyObject* self) {
  Py_DECREF(reinterpret_cast<NodeFunction*>(self)->walk);
  Py_TYPE(self)->tp_free(self);
}

}  // namespace

variable_list tensors_of(PyObject* sequence) {
  Owned items(PySequence_Fast(sequence, "a sequence of tensors expected"));
  if (!items) raise();
  variable_list tensors(static_cast<size_t>(PySequence_Fast_GET_SIZE(items.get())));
  for (size_t i = 0; i < tensors.size(); ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(items.get(), static_cast<Py_ssize_t>(i));
    if (item == Py_None) continue;
    TORCH_CHECK_TYPE(is_tensor(item), std::string("a tensor or None expected, not ") + Py_TYPE(item)->tp_name);
    tensors[i] = tensor_in(item);
  }
  return tensors;
}

Owned tuple_of(variable_list&& tensors) {
  Owned tuple(PyTuple_New(static_cast<Py_ssize_t>(tensors.size())));
  if (!tuple) raise();
  for (size_t i = 0; i < tensors.size(); ++i) {
    PyObject* tensor = tensor_object(std::move(tensors[i]));
    if (!tensor) raise();
    PyTuple_SET_ITEM(tuple.get(), static_cast<Py_ssize_t>(i), tensor);
  }
  return tuple;
}

Owned new_retain_grad(const NodePointer& node, uint32_t input) {
  Owned object(RetainGradType.tp_alloc(&RetainGradType, 0));
  if (!object) raise();
  auto* self = reinterpret_cast<RetainGrad*>(object.get());
  new (&self->node) NodePointer(node);
  self->input = input;
  self->call = call_retain;
  return object;
}

Owned new_node_function(PyObject* walk, uint32_t index) {
  Owned object(NodeFunctionType.tp_alloc(&NodeFunctionType, 0));
  if (!object) raise();
  auto* self = reinterpret_cast<NodeFunction*>(object.get());
  self->walk = Py_NewRef(walk);
  self->index = index;
  return object;
}

int ready_walk_actions() {
  RetainGradType.tp_name = "kiln._native.RetainGrad";
  RetainGradType.tp_doc = "What retain_grad() left at a node: takes the gradient or None.";
  RetainGradType.tp_basicsize = sizeof(RetainGrad);
  RetainGradType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL;
  RetainGradType.tp_vectorcall_offset = offsetof(RetainGrad, call);
  RetainGradType.tp_call = PyVectorcall_Call;
  RetainGradType.tp_dealloc = dealloc_retain;
  NodeFunctionType.tp_name = "kiln._native.NodeFunction";
  NodeFunctionType.tp_doc = "A node of a walk as a function of its gradients: see Walk.apply.";
  NodeFunctionType.tp_basicsize = sizeof(NodeFunction);
  NodeFunctionType.tp_flags = Py_TPFLAGS_DEFAULT;
  NodeFunctionType.tp_call = call_function;
  NodeFunctionType.tp_dealloc = dealloc_function;
  return PyType_Ready(&RetainGradType) < 0 || PyType_Ready(&NodeFunctionType) < 0 ? -1 : 0;
}

}  // namespace kiln
