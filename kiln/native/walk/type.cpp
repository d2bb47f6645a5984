// Walk as Python sees it: `walk(roots, gradients, inputs, retain_graph, accumulate)`. kiln/_native.pyi says more.
#include "walk/walk.h"

namespace kiln {
namespace {

PyTypeObject WalkType = {PyVarObject_HEAD_INIT(nullptr, 0)};

struct WalkObject {
  PyObject_HEAD
  Walk walk;
  // Of the hooks of each call, at the time of watch().
  std::vector<uint64_t> signatures;
};

// ---- making --------------------------------------------------------------------------------------------------------

// The tensors as the objects that Python has of them; the walk lets go of them.
void wrap_tensors(Walk& walk) {
  walk.input_list.reset(PyList_New(static_cast<Py_ssize_t>(walk.tensors.size())));
  if (!walk.input_list) raise();
  for (size_t i = 0; i < walk.tensors.size(); ++i) {
    PyObject* object = tensor_object(std::move(walk.tensors[i]));
    if (!object) raise();
    PyList_SET_ITEM(walk.input_list.get(), static_cast<Py_ssize_t>(i), object);
    if (!is_exact_tensor(object)) throw Refused{std::string("a tensor of class ") + Py_TYPE(object)->tp_name};
  }
  walk.tensors.clear();
}

// Why all walks are refused, empty if they are not. With the GIL held.
std::string& switched_off() {
  static std::string reason;
  return reason;
}

void fill(Walk& walk, PyObject* const* arguments, bool accumulate) {
  std::string refusal;
  try {
    if (!switched_off().empty()) throw Refused{switched_off()};
    Request request = request_of(arguments[0], arguments[1], arguments[2], accumulate);
    find_order(request, walk);
    try {
      collect(request, walk);
    } catch (const Refused&) {
      if (!walk.has_saved_tensor_hooks) throw;
      walk = Walk();
      walk.has_saved_tensor_hooks = true;
      find_order(request, walk);
      collect(request, walk);
    }
    wrap_tensors(walk);
    return;
  } catch (const Refused& refused) {
    refusal = refused.reason;
  } catch (const std::exception& error) {
    // Freed, changed in place, a gradient that does not fit: torch's engine says it.
    refusal = error.what();
    refusal.resize(std::min(refusal.size(), refusal.find('\n')));
  }
  PyErr_Clear();
  bool has_hooks = walk.has_saved_tensor_hooks;
  walk = Walk();
  walk.has_saved_tensor_hooks = has_hooks;
  walk.refused = true;
  walk.refusal = std::move(refusal);
}

PyObject* make(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 5 || !PyTuple_Check(arguments[0]) || !PyTuple_Check(arguments[1]) || !PyTuple_Check(arguments[2])) {
    return PyErr_Format(PyExc_TypeError, "walk(roots, gradients, inputs, retain_graph, accumulate): tuples first");
  }
  int accumulate = PyObject_IsTrue(arguments[4]);
  if (accumulate < 0) return nullptr;
  Owned object(WalkType.tp_alloc(&WalkType, 0));
  if (!object) return nullptr;
  new (&walk_of(object.get())) Walk();
  new (&reinterpret_cast<WalkObject*>(object.get())->signatures) std::vector<uint64_t>();
  fill(walk_of(object.get()), arguments, accumulate);
  return object.release();
}

void dealloc(PyObject* self) {
  Walk& walk = walk_of(self);
  // From the roots on, so that each node dies with nothing but others behind it: a long chain is no deep recursion.
  for (Call& call : walk.calls) call.node = {};
  walk.~Walk();
  reinterpret_cast<WalkObject*>(self)->signatures.~vector();
  Py_TYPE(self)->tp_free(self);
}

// ---- looking in ----------------------------------------------------------------------------------------------------

template <PyObject* (*Get)(Walk&)>
PyObject* property(PyObject* self, void*) {
  return guarded([&]() -> PyObject* {
    return Get(walk_of(self));
  });
}

PyObject* refusal(Walk& walk) {
  if (!walk.refused) Py_RETURN_NONE;
  return PyUnicode_DecodeUTF8(walk.refusal.data(), static_cast<Py_ssize_t>(walk.refusal.size()), "replace");
}

PyObject* has_saved_tensor_hooks(Walk& walk) { return PyBool_FromLong(walk.has_saved_tensor_hooks); }

PyObject* count(Walk& walk) { return PyLong_FromSize_t(walk.calls.size()); }

PyObject* key(Walk& walk) {
  const std::string& bytes = walk.key.all();
  return PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size()));
}

PyObject* size_bytes(Walk& walk) {
  return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(walk.sizes.data()),
                                   static_cast<Py_ssize_t>(walk.sizes.size() * sizeof(int64_t)));
}

PyObject* sizes(Walk& walk) {
  if (!walk.size_list) {
    Owned list(PyList_New(static_cast<Py_ssize_t>(walk.sizes.size())));
    for (size_t i = 0; list && i < walk.sizes.size(); ++i) {
      PyObject* size = PyLong_FromLongLong(walk.sizes[i]);
      if (!size) return nullptr;
      PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), size);
    }
    walk.size_list = std::move(list);
  }
  return Py_XNewRef(walk.size_list.get());
}

PyObject* calls(Walk& walk) {
  if (!walk.call_list) walk.call_list = calls_view(walk);
  return Py_NewRef(walk.call_list.get());
}

PyObject* tensors(Walk& walk) {
  if (!walk.tensor_list) walk.tensor_list = tensors_view(walk);
  return Py_NewRef(walk.tensor_list.get());
}

PyObject* classes(Walk& walk) {
  Owned list(PyList_New(0));
  for (const Owned& one : walk.classes) {
    if (!list || PyList_Append(list.get(), one.get()) < 0) return nullptr;
  }
  return list.release();
}

PyGetSetDef properties[] = {
    {"refusal", property<refusal>, nullptr, "Why torch's engine must do it, or None.", nullptr},
    {"has_saved_tensor_hooks", property<has_saved_tensor_hooks>, nullptr, "Whether hooks packed what nodes keep.",
     nullptr},
    {"count", property<count>, nullptr, "The number of calls.", nullptr},
    {"key", property<key>, nullptr, "Bytes: all that it depends on but sizes.", nullptr},
    {"size_bytes", property<size_bytes>, nullptr, "The sizes as bytes.", nullptr},
    {"sizes", property<sizes>, nullptr, "The sizes.", nullptr},
    {"calls", property<calls>, nullptr, "The calls in order.", nullptr},
    {"tensors", property<tensors>, nullptr, "What the inputs look like.", nullptr},
    {"classes", property<classes>, nullptr, "Objects whose ids are in the key.", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};

// ---- taking part ---------------------------------------------------------------------------------------------------

PyObject* inputs(PyObject* self, PyObject*) {
  Walk& walk = walk_of(self);
  if (!walk.input_list) return PyErr_Format(PyExc_RuntimeError, "the inputs of this walk are gone");
  return walk.input_list.release();
}

Owned hook_object(PyObject* self, const Call& call, const Hook& hook) {
  if (hook.object) return share(hook.object.get());
  if (hook.kind == Hook::Kind::retains) return new_retain_grad(call.node, hook.input);
  return new_node_function(self, static_cast<uint32_t>(&call - walk_of(self).calls.data()));
}

PyObject* hooks(PyObject* self, PyObject*) {
  return guarded([&]() -> PyObject* {
    Walk& walk = walk_of(self);
    Owned list(PyList_New(static_cast<Py_ssize_t>(walk.hooks.size()) + 1));
    if (!list) return nullptr;
    PyList_SET_ITEM(list.get(), 0, Py_NewRef(Py_None));
    if (walk.hooks.empty()) return list.release();
    for (const Call& call : walk.calls) {
      for (uint32_t i = call.hooks.first; i < call.hooks.first + call.hooks.count; ++i) {
        PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i) + 1, hook_object(self, call, walk.hooks[i]).release());
      }
    }
    return list.release();
  });
}

// Hooks of a kind: functions, or pairs with the number of the input that they belong to.
Owned hooks_of_kind(PyObject* self, const Walk& found, const Call& call, Hook::Kind kind, bool with_input) {
  Owned list(PyList_New(0));
  if (!list) raise();
  for (const Hook& hook : found.hooks) {
    if (hook.kind != kind) continue;
    Owned item = hook_object(self, call, hook);
    if (with_input) item.reset(Py_BuildValue("(IO)", hook.input, item.get()));
    if (!item || PyList_Append(list.get(), item.get()) < 0) raise();
  }
  return list;
}

PyObject* hooks_now(PyObject* self, PyObject* index) {
  size_t place = PyLong_AsSize_t(index);
  if (PyErr_Occurred()) return nullptr;
  try {
    const Walk& walk = walk_of(self);
    const Call& call = call_at(walk, place);
    Walk found;
    found.is_partial = walk.is_partial;
    Call copy = call;
    collect_hooks(found, copy);
    Owned tensor = hooks_of_kind(self, found, call, Hook::Kind::tensor, true);
    Owned retains = hooks_of_kind(self, found, call, Hook::Kind::retains, true);
    Owned before = hooks_of_kind(self, found, call, Hook::Kind::before, false);
    Owned after = hooks_of_kind(self, found, call, Hook::Kind::after, false);
    return PyTuple_Pack(4, tensor.get(), retains.get(), before.get(), after.get());
  } catch (const Refused& refused) {
    return PyErr_Format(PyExc_RuntimeError, "%s", refused.reason.c_str());
  } catch (...) {
    return translated();
  }
}

// Kept while the same list is given: a trace gives it for each node.
const std::vector<c10::SymInt>& sizes_of(Walk& walk, PyObject* sequence) {
  if (walk.given_sizes.get() == sequence) return walk.given;
  Owned items(PySequence_Fast(sequence, "a sequence of sizes expected"));
  if (!items) raise();
  std::vector<c10::SymInt> sizes;
  Py_ssize_t count = PySequence_Fast_GET_SIZE(items.get());
  sizes.reserve(static_cast<size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    sizes.push_back(size_in(PySequence_Fast_GET_ITEM(items.get(), i)));
  }
  walk.given = std::move(sizes);
  walk.given_sizes = share(sequence);
  return walk.given;
}

PyObject* apply(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count < 2 || count > 4) return PyErr_Format(PyExc_TypeError, "apply(index, gradients, saved=None, sizes=None)");
  return guarded([&]() -> PyObject* {
    size_t index = PyLong_AsSize_t(arguments[0]);
    if (PyErr_Occurred()) return nullptr;
    bool with_saved = count > 2 && arguments[2] != Py_None;
    bool with_sizes = count > 3 && arguments[3] != Py_None;
    variable_list saved;
    if (with_saved) saved = tensors_of(arguments[2]);
    const auto* sizes = with_sizes ? &sizes_of(walk_of(self), arguments[3]) : nullptr;
    auto results = apply_call(walk_of(self), static_cast<uint32_t>(std::min<size_t>(index, kNone)),
                              tensors_of(arguments[1]), with_saved ? &saved : nullptr, sizes);
    return tuple_of(std::move(results)).release();
  });
}

bool runs_as_it_is(const Call& call) {
  return call.kind == CallKind::python || call.kind == CallKind::custom;
}

uint64_t signature_of(const Call& call) { return call.node ? hooks_signature(*call.node, call.kind, 0) : 0; }

PyObject* watch(PyObject* self, PyObject*) {
  auto& signatures = reinterpret_cast<WalkObject*>(self)->signatures;
  signatures.clear();
  for (const Call& call : walk_of(self).calls) signatures.push_back(signature_of(call));
  Py_RETURN_NONE;
}

bool has_changed(const WalkObject& object, size_t start) {
  for (const Watched& watched : object.walk.watched) {
    bool is_used = watched.last_use != kNone && watched.last_use >= start;
    if (is_used && watched.version.current_version() != watched.seen) return true;
  }
  for (size_t i = start; i < object.signatures.size(); ++i) {
    if (signature_of(object.walk.calls[i]) != object.signatures[i]) return true;
  }
  return false;
}

PyObject* changed(PyObject* self, PyObject* first) {
  size_t start = PyLong_AsSize_t(first);
  if (PyErr_Occurred()) return nullptr;
  return PyBool_FromLong(has_changed(*reinterpret_cast<WalkObject*>(self), start));
}

edge_list edges_of(const Walk& walk, PyObject* places) {
  Owned items(PySequence_Fast(places, "a sequence of edges expected"));
  if (!items) raise();
  edge_list edges;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.get()); ++i) {
    unsigned index, number;
    if (!PyArg_ParseTuple(PySequence_Fast_GET_ITEM(items.get(), i), "II", &index, &number)) raise();
    edges.emplace_back(call_at(walk, index).node, number);
  }
  return edges;
}

// Gives the gradients that wait to where they wait. The engine itself takes no undefined ones for its roots.
struct Rest : Node {
  Rest(edge_list&& edges, variable_list&& gradients) : Node(std::move(edges)), gradients(std::move(gradients)) {}
  variable_list apply(variable_list&&) override { return std::move(gradients); }
  std::string name() const override { return "KilnRest"; }

  variable_list gradients;
};

// finish(edges, gradients, inputs, retain_graph, accumulate): the rest of a pass, by torch's engine.
PyObject* finish(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 5 || !PyTuple_Check(arguments[2])) {
    return PyErr_Format(PyExc_TypeError, "finish(edges, gradients, inputs, retain_graph, accumulate)");
  }
  try {
    int keep = PyObject_IsTrue(arguments[3]), accumulate = PyObject_IsTrue(arguments[4]);
    if (keep < 0 || accumulate < 0) return nullptr;
    edge_list roots = edges_of(walk_of(self), arguments[0]);
    variable_list gradients = tensors_of(arguments[1]);
    if (roots.empty() || roots.size() != gradients.size()) {
      fail(PyExc_ValueError, "as many gradients as edges are needed");
    }
    edge_list outputs = outputs_of(arguments[2], accumulate);
    NodePointer rest = make_node<Rest>(std::move(roots), std::move(gradients));
    at::Tensor start = at::zeros({});
    rest->add_input_metadata(start);
    variable_list results;
    {
      WithoutGil without_gil;
      results = platform::engine().execute({Edge(rest, 0)}, {start}, keep, /*create_graph=*/false,
                                                               accumulate, outputs);
    }
    return tuple_of(std::move(results)).release();
  } catch (const Refused& refused) {
    return PyErr_Format(PyExc_RuntimeError, "%s", refused.reason.c_str());
  } catch (...) {
    return translated();
  }
}

// For each input the last call that uses it: as told, or if only told that there is lending, any but of a number.
std::vector<int64_t> last_uses_of(const Walk& walk, PyObject* lending) {
  std::vector<int64_t> last_uses;
  if (PyBool_Check(lending)) {
    for (const Slot& slot : walk.slots) last_uses.push_back(slot.is_number ? -1 : INT64_MAX);
    return last_uses;
  }
  Owned items(PySequence_Fast(lending, "a sequence of the inputs' last uses expected"));
  if (!items) raise();
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items.get()); ++i) {
    last_uses.push_back(PyLong_AsLongLong(PySequence_Fast_GET_ITEM(items.get(), i)));
    if (PyErr_Occurred()) raise();
  }
  if (last_uses.size() != walk.slots.size()) {
    fail(PyExc_ValueError, std::to_string(walk.slots.size()) + " inputs expected");
  }
  return last_uses;
}

// release(lending=False): lent tensors can be put back.
PyObject* release(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  bool lending = count > 0 && arguments[0] != Py_False && arguments[0] != Py_None;
  return guarded([&]() -> PyObject* {
    const Walk& walk = walk_of(self);
    std::vector<int64_t> last_uses;
    if (lending) last_uses = last_uses_of(walk, arguments[0]);
    for (size_t i = 0; i < walk.calls.size(); ++i) {
      const Call& call = walk.calls[i];
      if (!call.node || !call.needed || runs_as_it_is(call)) continue;
      if (!lending) call.node->release_variables();
      if (lending && call.known) lend_saved(walk, static_cast<uint32_t>(i), last_uses);
    }
    Py_RETURN_NONE;
  });
}

PyObject* release_rest(PyObject* self, PyObject*) {
  return guarded([&]() -> PyObject* {
    for (const Call& call : walk_of(self).calls) {
      if (call.node && call.needed && runs_as_it_is(call)) call.node->release_variables();
    }
    Py_RETURN_NONE;
  });
}

PyObject* restore(PyObject* self, PyObject* first) {
  size_t start = PyLong_AsSize_t(first);
  if (PyErr_Occurred()) return nullptr;
  return guarded([&]() -> PyObject* {
    const Walk& walk = walk_of(self);
    for (size_t i = start; i < walk.calls.size(); ++i) {
      const Call& call = walk.calls[i];
      if (call.node && call.needed && call.known) restore_saved(walk, call);
    }
    Py_RETURN_NONE;
  });
}

PyMethodDef methods[] = {
    {"inputs", inputs, METH_NOARGS, "inputs() -> list: the tensors, once."},
    {"hooks", hooks, METH_NOARGS, "hooks() -> list: None, then hooks and objects of nodes, in order."},
    {"hooks_now", hooks_now, METH_O,
     "hooks_now(index) -> (tensor, retains, before, after): the hooks of a call as they are by now."},
    {"apply", method(apply), METH_FASTCALL, "apply(index, gradients, saved=None, sizes=None) -> tuple: calls a node."},
    {"release", method(release), METH_FASTCALL,
     "release(lending=False): the nodes that ran let go of what they saved."},
    {"release_rest", release_rest, METH_NOARGS, "release_rest(): those that run as they are do so, too."},
    {"finish", method(finish), METH_FASTCALL,
     "finish(edges, gradients, inputs, retain_graph, accumulate) -> tuple: the rest of a pass, by torch's engine."},
    {"restore", restore, METH_O, "restore(start): what was lent is the nodes' again, from a call on."},
    {"watch", watch, METH_NOARGS, "watch(): remembers the hooks that there are."},
    {"changed", changed, METH_O,
     "changed(start) -> bool: hooks since watch(), or what calls from there on have saved."},
    {nullptr, nullptr, 0, nullptr}};

PyObject* set_inner_hook_type(PyObject*, PyObject* type) {
  inner_hook_type() = share(type);
  Py_RETURN_NONE;
}

PyObject* refuse_walks(PyObject*, PyObject* reason) {
  const char* text = reason == Py_None ? "" : PyUnicode_AsUTF8(reason);
  if (!text) return nullptr;
  switched_off() = text;
  Py_RETURN_NONE;
}

PyMethodDef functions[] = {{"walk", method(make), METH_FASTCALL,
                            "walk(roots, gradients, inputs, retain_graph, accumulate) -> Walk: what would be done."},
                           {"set_inner_hook_type", set_inner_hook_type, METH_O,
                            "set_inner_hook_type(type): how hooks inside compiled functions are shown."},
                           {"refuse_walks", refuse_walks, METH_O,
                            "refuse_walks(reason): each walk is refused from now on, for this reason; None: no more."},
                           {nullptr, nullptr, 0, nullptr}};

}  // namespace

Walk& walk_of(PyObject* object) { return reinterpret_cast<WalkObject*>(object)->walk; }

int add_walk(PyObject* module) {
  WalkType.tp_name = "kiln._native.Walk";
  WalkType.tp_doc = "What a backward pass would do.";
  WalkType.tp_basicsize = sizeof(WalkObject);
  WalkType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION;
  WalkType.tp_dealloc = dealloc;
  WalkType.tp_methods = methods;
  WalkType.tp_getset = properties;
  if (ready_walk_views() < 0 || ready_walk_actions() < 0) return -1;
  if (PyModule_AddFunctions(module, functions) < 0) return -1;
  return PyModule_AddType(module, &WalkType);
}

}  // namespace kiln
