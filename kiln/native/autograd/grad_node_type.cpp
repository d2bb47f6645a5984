// GradNode as Python sees it: the handle that the runtime of a compiled graph builds nodes with, and the type of
// `output.grad_fn`. They are two, because torch (2.13) takes a chain of nodes apart recursively where each has a wrapper.
//
//     node = GradNode(name, backward, higher, context, inputs, following)
//     node.output(tensor), node.replaced(tensor), node.output_none(), node.hidden(...)   in the order of the gradients
//     node.save(*tensors)                                                                once, after all outputs
//
// The engine then calls backward(defined, needed, saved, gradients, context) or, where a graph of the backward is wanted
// or backward answers NotImplemented, higher(defined, needed, inputs, gradients, context). kiln/_native.pyi says more.
#include "autograd/grad_node.h"

#include <unordered_map>

namespace kiln {
namespace {

PyTypeObject GradNodeType = {PyVarObject_HEAD_INIT(nullptr, 0)};
PyTypeObject KilnBackwardType = {PyVarObject_HEAD_INIT(nullptr, 0)};

struct Handle {
  PyObject_HEAD
  NodePointer node;
};

const NodePointer& pointer_of(PyObject* handle) { return reinterpret_cast<Handle*>(handle)->node; }

// The node of a handle.
GradNode* cast(PyObject* handle) { return static_cast<GradNode*>(pointer_of(handle).get()); }

// The node of a grad_fn.
GradNode* cast_function(PyObject* function) {
  return static_cast<GradNode*>(platform::node_in(function).get());
}

const at::Tensor& tensor_of(PyObject* object) {
  TORCH_CHECK_TYPE(is_tensor(object), std::string("a tensor is needed, not ") + Py_TYPE(object)->tp_name);
  return tensor_in(object);
}

// ---- making --------------------------------------------------------------------------------------------------------

// A pair of a node and one of its numbers.
Edge pair_edge(PyObject* pair) {
  TORCH_CHECK_TYPE(PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) >= 2,
                   std::string("what follows is a tensor, None or (node, number), not ") + Py_TYPE(pair)->tp_name);
  PyObject* node = PyTuple_GET_ITEM(pair, 0);
  unsigned long number = PyLong_AsUnsignedLong(PyTuple_GET_ITEM(pair, 1));
  if (PyErr_Occurred()) raise();
  if (Py_IS_TYPE(node, &GradNodeType)) return Edge(pointer_of(node), static_cast<uint32_t>(number));
  TORCH_CHECK_TYPE(platform::is_node_object(node),
                   std::string("a native node is needed, not ") + Py_TYPE(node)->tp_name);
  return Edge(platform::node_in(node), static_cast<uint32_t>(number));
}

Edge edge_to(PyObject* following) {
  if (following == Py_None) return {};
  if (!is_tensor(following)) return pair_edge(following);
  const at::Tensor& tensor = tensor_in(following);
  return tensor.requires_grad() ? platform::gradient_edge(tensor) : Edge();
}

edge_list edges_to(PyObject* following) {
  TORCH_CHECK_TYPE(PyTuple_Check(following), "what follows is given as a tuple");
  edge_list edges;
  edges.reserve(PyTuple_GET_SIZE(following));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(following); ++i) {
    edges.push_back(edge_to(PyTuple_GET_ITEM(following, i)));
  }
  return edges;
}

std::string text_of(PyObject* object) {
  const char* text = PyUnicode_AsUTF8(object);
  if (!text) raise();
  return text;
}

PyObject* handle_of(NodePointer node) {
  PyObject* handle = GradNodeType.tp_alloc(&GradNodeType, 0);
  if (handle) new (&reinterpret_cast<Handle*>(handle)->node) NodePointer(std::move(node));
  return handle;
}

void dealloc(PyObject* handle) {
  reinterpret_cast<Handle*>(handle)->node.~NodePointer();
  Py_TYPE(handle)->tp_free(handle);
}

PyObject* make(PyObject*, PyObject* const* arguments, size_t flagged, PyObject* names) {
  if (PyVectorcall_NARGS(flagged) != 6 || names) {
    PyErr_SetString(PyExc_TypeError, "GradNode(name, backward, higher, context, inputs, following)");
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    auto recipe = std::make_shared<const Recipe>(text_of(arguments[0]), arguments[1], arguments[2]);
    TORCH_CHECK_TYPE(PyTuple_Check(arguments[4]), "inputs are given as a tuple");
    edge_list edges = edges_to(arguments[5]);
    auto held = std::make_shared<const HeldInputs>(arguments[4], edges);
    return handle_of(make_node<GradNode>(std::move(recipe), arguments[3], std::move(held), std::move(edges)));
  });
}

// ---- outputs and saved tensors -------------------------------------------------------------------------------------

PyObject* output(PyObject* self, PyObject* tensor) {
  return guarded([&]() -> PyObject* {
    return PyLong_FromUnsignedLong(cast(self)->add_output(tensor_of(tensor)));
  });
}

PyObject* outputs(PyObject* self, PyObject* const* tensors, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    for (Py_ssize_t i = 0; i < count; ++i) {
      if (tensors[i] == Py_None) {
        cast(self)->add_input_metadata(Node::undefined_input());
      } else {
        cast(self)->add_output(tensor_of(tensors[i]));
      }
    }
    Py_RETURN_NONE;
  });
}

PyObject* output_none(PyObject* self, PyObject* const*, Py_ssize_t) {
  return PyLong_FromUnsignedLong(cast(self)->add_input_metadata(Node::undefined_input()));
}

PyObject* replaced(PyObject* self, PyObject* tensor) {
  return guarded([&]() -> PyObject* {
    return PyLong_FromUnsignedLong(cast(self)->add_replaced(tensor_of(tensor)));
  });
}

uint32_t add_hidden(GradNode* node, PyObject* sizes, PyObject* dtype, PyObject* device) {
  TORCH_CHECK_TYPE(is_dtype(dtype) && is_device(device), "hidden(sizes, dtype, device)");
  Owned sequence(PySequence_Fast(sizes, "sizes are a sequence of ints"));
  if (!sequence) raise();
  std::vector<c10::SymInt> shape;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(sequence.get()); ++i) {
    shape.emplace_back(static_cast<int64_t>(PyLong_AsLongLong(PySequence_Fast_GET_ITEM(sequence.get(), i))));
    if (PyErr_Occurred()) raise();
  }
  at::ScalarType kind = dtype_in(dtype);
  auto options = at::TensorOptions().dtype(kind).device(device_in(device));
  return node->add_input_metadata(options, shape, /*is_tensor_subclass=*/false, /*is_nested=*/false, kind);
}

PyObject* hidden(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 1 && count != 3) return PyErr_Format(PyExc_TypeError, "hidden(tensor) or hidden(sizes, dtype, device)");
  return guarded([&]() -> PyObject* {
    GradNode* node = cast(self);
    return PyLong_FromUnsignedLong(count == 1 ? node->add_input_metadata(tensor_of(arguments[0]))
                                              : add_hidden(node, arguments[0], arguments[1], arguments[2]));
  });
}

PyObject* save(PyObject* self, PyObject* const* tensors, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    cast(self)->save(tensors, static_cast<size_t>(count));
    Py_RETURN_NONE;
  });
}

PyObject* grad_fn(PyObject* self, void*) {
  return guarded([&]() -> PyObject* {
    return platform::node_object(pointer_of(self));
  });
}

// ---- looking in ----------------------------------------------------------------------------------------------------

PyObject* saved_tensors(PyObject* self, void*) {
  return guarded([&]() -> PyObject* {
    return PyList_AsTuple(cast_function(self)->unpack_saved().get());
  });
}

PyObject* backward(PyObject* self, void*) { return Py_NewRef(cast_function(self)->backward()); }

PyObject* rerun_inputs(PyObject* self, PyObject*) {
  return guarded([&]() -> PyObject* {
    return cast_function(self)->rerun_inputs().release();
  });
}

PyObject* apply(PyObject* self, PyObject* gradients) { return PyObject_Call(self, gradients, nullptr); }

PyMethodDef node_methods[] = {
    {"output", output, METH_O, "output(tensor) -> int: its history is this node now; the number of its gradient."},
    {"outputs", method(outputs), METH_FASTCALL, "outputs(*tensors): each as by output() or, for None, output_none()."},
    {"output_none", method(output_none), METH_FASTCALL, "output_none() -> int: an output that has no gradient."},
    {"replaced", replaced, METH_O, "replaced(tensor) -> int: like output(), for a tensor changed in place."},
    {"hidden", method(hidden), METH_FASTCALL,
     "hidden(tensor) or hidden(sizes, dtype, device) -> int: a gradient like this tensor that no tensor stands for."},
    {"save", method(save), METH_FASTCALL, "save(*tensors): keeps tensors (or None) for backward; after all outputs."},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef node_properties[] = {{"grad_fn", grad_fn, nullptr, "The node as torch shows it.", nullptr},
                                 {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyMethodDef function_methods[] = {
    {"rerun_inputs", rerun_inputs, METH_NOARGS, "rerun_inputs() -> list: the inputs as `higher` gets them."},
    {"apply", apply, METH_VARARGS, "apply(*gradients): calls the node."},
    {"_register_hook_dict", platform::register_hook_dict, METH_O, nullptr},
    {"register_hook", platform::register_hook, METH_O, nullptr},
    {"register_prehook", platform::register_prehook, METH_O, nullptr},
    {"name", platform::node_name, METH_NOARGS, nullptr},
    {"_sequence_nr", platform::node_sequence_nr, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyGetSetDef function_properties[] = {
    {"saved_tensors", saved_tensors, nullptr, "What was saved, unpacked.", nullptr},
    {"backward", backward, nullptr, "The callable that the node was made with.", nullptr},
    {"next_functions", platform::next_functions, nullptr, nullptr, nullptr},
    {"requires_grad", platform::node_requires_grad, nullptr, nullptr, nullptr},
    {"metadata", platform::node_metadata, nullptr, nullptr, nullptr},
    {"_input_metadata", platform::node_input_metadata, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

// ---- functions beside it -------------------------------------------------------------------------------------------

PyObject* bump_version(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2) return PyErr_Format(PyExc_TypeError, "bump_version(tensor, times)");
  return guarded([&]() -> PyObject* {
    c10::TensorImpl* impl = tensor_of(arguments[0]).unsafeGetTensorImpl();
    long times = PyLong_AsLong(arguments[1]);
    if (PyErr_Occurred()) return nullptr;
    for (; times > 0; --times) impl->bump_version();
    Py_RETURN_NONE;
  });
}

PyObject* bump_versions(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2 || !PyTuple_Check(arguments[0]) || !PyTuple_Check(arguments[1]) ||
      PyTuple_GET_SIZE(arguments[0]) != PyTuple_GET_SIZE(arguments[1])) {
    PyErr_SetString(PyExc_TypeError, "bump_versions(tensors, times): two tuples of one length expected");
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arguments[0]); ++i) {
      c10::TensorImpl* impl = tensor_of(PyTuple_GET_ITEM(arguments[0], i)).unsafeGetTensorImpl();
      long times = PyLong_AsLong(PyTuple_GET_ITEM(arguments[1], i));
      if (PyErr_Occurred()) return nullptr;
      for (; times > 0; --times) impl->bump_version();
    }
    Py_RETURN_NONE;
  });
}

PyObject* with_history_of(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 2) return PyErr_Format(PyExc_TypeError, "with_history_of(value, origin)");
  return guarded([&]() -> PyObject* {
    at::Tensor result = without_history(tensor_of(arguments[0]));
    Edge edge = edge_to(arguments[1]);
    if (edge.function) platform::set_gradient_edge(result, std::move(edge));
    return tensor_object(std::move(result));
  });
}

// The storage of a tensor that has one; a subclass without memory of its own has none.
const void* storage_of(PyObject* object) {
  if (!is_tensor(object)) return nullptr;
  const c10::TensorImpl* impl = tensor_in(object).unsafeGetTensorImpl();
  return impl->has_storage() ? impl->unsafe_storage().unsafeGetStorageImpl() : nullptr;
}

PyObject* shared_storages(PyObject*, PyObject* const* objects, Py_ssize_t count) {
  return guarded([&]() -> PyObject* {
    std::unordered_map<const void*, Py_ssize_t> first;
    first.reserve(static_cast<size_t>(count));
    Owned pattern(PyTuple_New(count));
    for (Py_ssize_t i = 0; pattern && i < count; ++i) {
      const void* storage = storage_of(objects[i]);
      PyObject* place = PyLong_FromSsize_t(storage ? first.emplace(storage, i).first->second : i);
      if (!place) return nullptr;
      PyTuple_SET_ITEM(pattern.get(), i, place);
    }
    return pattern.release();
  });
}

PyMethodDef tensor_functions[] = {
    {"bump_version", method(bump_version), METH_FASTCALL,
     "bump_version(tensor, times): as if it had been changed in place so often."},
    {"bump_versions", method(bump_versions), METH_FASTCALL,
     "bump_versions(tensors, times): the same for each tensor and its number, in two tuples."},
    {"with_history_of", method(with_history_of), METH_FASTCALL,
     "with_history_of(value, origin) -> Tensor: the data of one tensor with the gradient edge of another."},
    {"shared_storages", method(shared_storages), METH_FASTCALL,
     "shared_storages(*tensors) -> tuple: for each the place of the first with the same storage."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_grad_node(PyObject* module) {
  try {
    platform::add_node_class(typeid(GradNode), KilnBackwardType, "kiln._native.KilnBackward", function_properties,
                             function_methods);
  } catch (...) {
    translated();
    return -1;
  }
  GradNodeType.tp_name = "kiln._native.GradNode";
  GradNodeType.tp_doc = "GradNode(name, backward, higher, context, inputs, following): a node of autograd's graph.";
  GradNodeType.tp_basicsize = sizeof(Handle);
  GradNodeType.tp_flags = Py_TPFLAGS_DEFAULT;
  GradNodeType.tp_dealloc = dealloc;
  GradNodeType.tp_methods = node_methods;
  GradNodeType.tp_getset = node_properties;
  GradNodeType.tp_vectorcall = make;
  if (PyModule_AddFunctions(module, tensor_functions) < 0) return -1;
  return PyModule_AddType(module, &GradNodeType);
}

}  // namespace kiln
