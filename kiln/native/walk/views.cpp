// The calls and tensors of a walk as Python sees them, made for a trace only.
#include "walk/walk.h"

#include <structmember.h>

namespace kiln {
namespace {

PyTypeObject NodeCallType = {PyVarObject_HEAD_INIT(nullptr, 0)};
PyTypeObject* TensorDescriptionType = nullptr;

struct NodeCall {
  PyObject_HEAD
  PyObject* attributes;
  NodePointer node;
};

// ---- values --------------------------------------------------------------------------------------------------------

Owned checked(PyObject* object) {
  if (!object) raise();
  return Owned(object);
}

Owned number(uint64_t value) { return checked(PyLong_FromUnsignedLongLong(value)); }

Owned number_or_none(uint32_t value) { return value == kNone ? share(Py_None) : number(value); }

Owned dtype_of(at::ScalarType type) { return share(dtype_object(type)); }

Owned device_of(at::Device device) { return checked(device_object(device)); }

template <class... Items>
Owned tuple(Items&&... items) {
  return checked(PyTuple_Pack(sizeof...(items), items.get()...));
}

template <class Item>
Owned list(size_t count, Item item) {
  Owned result = checked(PyList_New(static_cast<Py_ssize_t>(count)));
  for (size_t i = 0; i < count; ++i) PyList_SET_ITEM(result.get(), static_cast<Py_ssize_t>(i), item(i).release());
  return result;
}

Owned indices(size_t first, size_t count) {
  return list(count, [&](size_t i) { return number(first + i); });
}

Owned python_number(const at::Scalar& value) {
  if (value.isBoolean()) return share(value.toBool() ? Py_True : Py_False);
  if (value.isIntegral(/*includeBool=*/false)) return checked(PyLong_FromLongLong(value.toLong()));
  if (value.isFloatingPoint()) return checked(PyFloat_FromDouble(value.toDouble()));
  auto complex = value.toComplexDouble();
  return checked(PyComplex_FromDoubles(complex.real(), complex.imag()));
}

// ---- tensors -------------------------------------------------------------------------------------------------------

Owned strides_of(const Walk& walk, const Slot& slot) {
  if (slot.layout == Slot::Layout::contiguous) return checked(Py_BuildValue("(sO)", "contiguous", Py_None));
  if (slot.layout == Slot::Layout::strided) {
    return tuple(checked(PyUnicode_FromString("given")), indices(slot.first_stride, slot.dimensions));
  }
  Owned order = list(slot.dimensions, [&](size_t i) { return number(walk.permutations[slot.first_stride + i]); });
  return tuple(checked(PyUnicode_FromString("permuted")), order);
}

Owned describe(const Walk& walk, const Slot& slot) {
  Owned result = checked(PyStructSequence_New(TensorDescriptionType));
  Py_ssize_t place = 0;
  auto add = [&](Owned value) { PyStructSequence_SET_ITEM(result.get(), place++, value.release()); };
  add(dtype_of(slot.dtype));
  add(device_of(slot.device));
  add(indices(slot.first_size, slot.dimensions));
  add(strides_of(walk, slot));
  add(share(slot.requires_grad ? Py_True : Py_False));
  add(share(slot.is_leaf ? Py_True : Py_False));
  add(slot.is_number ? python_number(slot.number) : share(Py_None));
  add(number_or_none(slot.number_place));
  return result;
}

PyStructSequence_Field description_fields[] = {{"dtype", nullptr},
                                               {"device", nullptr},
                                               {"sizes", "Indices into the sizes of the walk."},
                                               {"strides", "How they follow from the sizes."},
                                               {"requires_grad", nullptr},
                                               {"is_leaf", nullptr},
                                               {"constant", "The value of a wrapped number."},
                                               {"position", "Where that is among the sizes."},
                                               {nullptr, nullptr}};

PyStructSequence_Desc description = {"kiln._native.TensorDescription", "A tensor among the inputs of a walk.",
                                     description_fields, 8};

// ---- calls ---------------------------------------------------------------------------------------------------------

const char* const kind_names[] = {"root", "builtin", "accumulate", "python", "custom", "kiln"};

Owned input_metadata_of(const Call& call) {
  size_t place = call.first_size;
  return list(call.node ? call.node->num_inputs() : 0, [&](size_t i) {
    const auto& metadata = call.node->input_metadata(i);
    if (metadata.was_default_constructed()) return checked(Py_BuildValue("([]OOO)", Py_None, Py_None, Py_None));
    size_t count = metadata.shape_as_dim_vector().size();
    Owned sizes = indices(place, count);
    place += count;
    auto cast_to = metadata.grad_dtype();
    return tuple(sizes, dtype_of(c10::typeMetaToScalarType(metadata.dtype())), device_of(metadata.device()),
                 cast_to ? dtype_of(*cast_to) : share(Py_None));
  });
}

Owned call_edges_of(const Walk& walk, const Call& call) {
  return list(call.edges.count, [&](size_t i) {
    const CallEdge& edge = walk.edges[call.edges.first + i];
    return edge.call == kNone ? share(Py_None) : tuple(number(edge.call), number(edge.input));
  });
}

void append(const Owned& target, const Owned& value) {
  if (PyList_Append(target.get(), value.get()) < 0) raise();
}

Owned captures_of(const Walk& walk, uint32_t index) {
  Owned result = checked(PyList_New(0));
  for (const Capture& capture : walk.captures) {
    if (capture.call == index) append(result, tuple(number(capture.input), number(capture.output)));
  }
  return result;
}

// Places in Walk.hooks(), of which the first is the caller's; with the input for what belongs to one.
Owned hooks_of(const Walk& walk, const Call& call, Hook::Kind kind, bool with_input) {
  Owned result = checked(PyList_New(0));
  for (uint32_t i = call.hooks.first; i < call.hooks.first + call.hooks.count; ++i) {
    const Hook& hook = walk.hooks[i];
    if (hook.kind != kind) continue;
    append(result, with_input ? tuple(number(hook.input), number(i + 1)) : number(i + 1));
  }
  return result;
}

Owned object_of(const Walk& walk, const Call& call) {
  for (uint32_t i = call.hooks.first; i < call.hooks.first + call.hooks.count; ++i) {
    if (walk.hooks[i].kind == Hook::Kind::object) return number(i + 1);
  }
  return share(Py_None);
}

Owned call_view(const Walk& walk, uint32_t index) {
  const Call& call = walk.calls[index];
  Owned object = checked(NodeCallType.tp_alloc(&NodeCallType, 0));
  auto* view = reinterpret_cast<NodeCall*>(object.get());
  new (&view->node) NodePointer(call.node);
  Owned attributes = checked(PyDict_New());
  view->attributes = Py_NewRef(attributes.get());
  auto set = [&](const char* name, const Owned& value) {
    if (PyDict_SetItemString(attributes.get(), name, value.get()) < 0) raise();
  };
  auto truth = [&](bool value) { return share(value ? Py_True : Py_False); };
  set("index", number(index));
  set("name", checked(PyUnicode_FromString(call.node ? call.node->name().c_str() : "torch::autograd::GraphRoot")));
  set("kind", checked(PyUnicode_InternFromString(kind_names[static_cast<size_t>(call.kind)])));
  set("traceable", truth(call.known));
  set("needed", truth(call.needed));
  set("input_count", number(call.node ? call.node->num_inputs() : 0));
  set("metadata", input_metadata_of(call));
  set("edges", call_edges_of(walk, call));
  set("captures", captures_of(walk, index));
  set("tensor_hooks", hooks_of(walk, call, Hook::Kind::tensor, true));
  set("retains", hooks_of(walk, call, Hook::Kind::retains, true));
  set("inner_hooks", hooks_of(walk, call, Hook::Kind::inner, true));
  set("pre_hooks", hooks_of(walk, call, Hook::Kind::before, false));
  set("post_hooks", hooks_of(walk, call, Hook::Kind::after, false));
  set("accumulate_hooks", hooks_of(walk, call, Hook::Kind::accumulate, false));
  set("saved", list(call.saved.count, [&](size_t i) { return number_or_none(walk.saved[call.saved.first + i]); }));
  set("saved_sizes",
      list(call.saved_sizes.count, [&](size_t i) { return number(walk.saved_sizes[call.saved_sizes.first + i]); }));
  set("variable", number_or_none(call.variable));
  set("has_grad", truth(call.has_grad));
  set("object", object_of(walk, call));
  return object;
}

PyObject* get_node(PyObject* self, void*) {
  const NodePointer& node = reinterpret_cast<NodeCall*>(self)->node;
  if (!node) Py_RETURN_NONE;
  return guarded([&]() -> PyObject* {
    return platform::node_object(node);
  });
}

void dealloc_call(PyObject* self) {
  auto* view = reinterpret_cast<NodeCall*>(self);
  Py_CLEAR(view->attributes);
  view->node.~NodePointer();
  Py_TYPE(self)->tp_free(self);
}

PyGetSetDef call_properties[] = {{"node", get_node, nullptr, "The node as torch shows it.", nullptr},
                            {"__dict__", PyObject_GenericGetDict, nullptr, nullptr, nullptr},
                            {nullptr, nullptr, nullptr, nullptr, nullptr}};

}  // namespace

Owned calls_view(const Walk& walk) {
  return list(walk.calls.size(), [&](size_t i) { return call_view(walk, static_cast<uint32_t>(i)); });
}

Owned tensors_view(const Walk& walk) {
  return list(walk.slots.size(), [&](size_t i) { return describe(walk, walk.slots[i]); });
}

int ready_walk_views() {
  NodeCallType.tp_name = "kiln._native.NodeCall";
  NodeCallType.tp_doc = "One step of a walk.";
  NodeCallType.tp_basicsize = sizeof(NodeCall);
  NodeCallType.tp_flags = Py_TPFLAGS_DEFAULT;
  NodeCallType.tp_dictoffset = offsetof(NodeCall, attributes);
  NodeCallType.tp_getset = call_properties;
  NodeCallType.tp_dealloc = dealloc_call;
  if (PyType_Ready(&NodeCallType) < 0) return -1;
  TensorDescriptionType = PyStructSequence_NewType(&description);
  return TensorDescriptionType ? 0 : -1;
}

}  // namespace kiln
