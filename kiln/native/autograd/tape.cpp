// Cutting autograd's graph: edges that lead to a given place are made to end in nodes of our own, so that a backward
// pass over one part of the graph stops there. Used on graphs of fake tensors, while tracing; and on those of programs
// that run again, which are made whole afterwards.
#include "autograd/grad_node.h"

#include <algorithm>
#include <map>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace kiln {
namespace {

// Where a gradient stops. It has nothing to run.
struct Cut : Node {
  // Takes gradients like those of the output that it stands for.
  explicit Cut(const platform::InputMetadata& gradient) { input_metadata_.emplace_back(gradient); }
  variable_list apply(variable_list&&) override { return {}; }
  std::string name() const override { return "KilnCut"; }
};

// Not set_next_edge, which wants a node without parents: a cut has the lowest topological number, so theirs stay true.
void set_edge(Node& node, size_t index, const Edge& edge) {
  node.next_edges().at(index) = edge;
  // The node of an in-place operation on a view holds that operation's own node, and wants its edges to be the same.
  auto* slices = dynamic_cast<platform::CopySlices*>(&node);
  if (slices && index > 0) slices->fn->next_edges().at(index) = edge;
}

struct Tape {
  std::unordered_map<PyObject*, NodePointer> nodes;
  std::vector<Owned> objects;

  void walk(const at::Tensor& root) {
    std::vector<NodePointer> pending;
    auto edge = platform::gradient_edge(root);
    if (edge.function) pending.push_back(edge.function);
    while (!pending.empty()) {
      NodePointer node = pending.back();
      pending.pop_back();
      PyObject* object = platform::node_object(node);
      if (!object) raise();
      if (!nodes.emplace(object, node).second) {
        Py_DECREF(object);
        continue;
      }
      objects.emplace_back(object);
      for (const auto& next : node->next_edges()) {
        if (next.function) pending.push_back(next.function);
      }
    }
  }
};

// The edges that were cut, as they were.
struct Cuts {
  struct One {
    NodePointer consumer;
    size_t index;
    Edge edge;
  };
  std::vector<One> all;
};

const char* const kCuts = "kiln.cuts";

void delete_cuts(PyObject* capsule) { delete static_cast<Cuts*>(PyCapsule_GetPointer(capsule, kCuts)); }

// mend_edges(cuts, [(node, number, tensor), …]): what cut_edges did is undone; edges that led to a given output of a node
// lead to the tensor's place instead.
PyObject* mend_edges(PyObject*, PyObject* args) {
  return guarded([&]() -> PyObject* {
    PyObject *capsule, *links;
    if (!PyArg_ParseTuple(args, "OO!", &capsule, &PyList_Type, &links)) return nullptr;
    auto* cuts = static_cast<Cuts*>(PyCapsule_GetPointer(capsule, kCuts));
    if (!cuts) return nullptr;
    std::map<std::pair<PyObject*, long>, Edge> instead;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(links); ++i) {
      PyObject *node, *tensor;
      long number;
      if (!PyArg_ParseTuple(PyList_GET_ITEM(links, i), "OlO", &node, &number, &tensor)) return nullptr;
      if (!is_tensor(tensor)) {
        PyErr_SetString(PyExc_TypeError, "mend_edges: a tensor expected");
        return nullptr;
      }
      instead[{node, number}] = platform::gradient_edge(tensor_in(tensor));
    }
    for (auto& one : cuts->all) {
      Owned node(platform::node_object(one.edge.function));
      auto found = instead.find({node.get(), static_cast<long>(one.edge.input_nr)});
      set_edge(*one.consumer, one.index, found == instead.end() ? one.edge : found->second);
    }
    cuts->all.clear();
    Py_RETURN_NONE;
  });
}

// link_tensor(tensor, index): while a node of autograd's graph runs, a tensor's gradients are made to go where the node's
// index-th ones go.
PyObject* link_tensor(PyObject*, PyObject* args) {
  return guarded([&]() -> PyObject* {
    PyObject* object;
    unsigned index;
    if (!PyArg_ParseTuple(args, "OI", &object, &index)) return nullptr;
    auto current = platform::get_current_node();
    if (!is_tensor(object) || !current || index >= current->num_outputs()) {
      PyErr_SetString(PyExc_ValueError, "link_tensor: a tensor and an edge of the running node expected");
      return nullptr;
    }
    const at::Tensor& tensor = tensor_in(object);
    NodePointer passage = make_node<Passage>(edge_list{current->next_edge(index)});
    passage->add_input_metadata(tensor);
    platform::set_gradient_edge(tensor, Edge(std::move(passage), 0));
    Py_RETURN_NONE;
  });
}

// lead_to_running(tensors, [(node, number, index), …]): while a node of autograd's graph runs, edges of the graph behind
// the tensors that lead to a given output of a node lead to the running node's index-th output instead. The graph is
// searched up to where it joins those of others.
PyObject* lead_to_running(PyObject*, PyObject* args) {
  return guarded([&]() -> PyObject* {
    PyObject *tensors, *places;
    if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &tensors, &PyList_Type, &places)) return nullptr;
    auto current = platform::get_current_node();
    if (!current) Py_RETURN_NONE;
    std::map<std::pair<PyObject*, long>, uint32_t> instead;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(places); ++i) {
      PyObject* node;
      long number;
      unsigned index;
      if (!PyArg_ParseTuple(PyList_GET_ITEM(places, i), "OlI", &node, &number, &index)) return nullptr;
      instead[{node, number}] = index;
    }
    std::vector<NodePointer> pending;
    std::unordered_set<Node*> seen;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(tensors); ++i) {
      PyObject* tensor = PyList_GET_ITEM(tensors, i);
      if (!is_tensor(tensor)) continue;
      auto edge = platform::gradient_edge(tensor_in(tensor));
      if (edge.function) pending.push_back(edge.function);
    }
    while (!pending.empty()) {
      NodePointer node = pending.back();
      pending.pop_back();
      bool joins = dynamic_cast<Passage*>(node.get()) || dynamic_cast<GradNode*>(node.get());
      if (joins || !seen.insert(node.get()).second) continue;
      for (size_t i = 0; i < node->next_edges().size(); ++i) {
        Edge edge = node->next_edges()[i];
        if (!edge.function) continue;
        Owned object(platform::node_object(edge.function));
        auto found = instead.find({object.get(), static_cast<long>(edge.input_nr)});
        if (found == instead.end()) {
          pending.push_back(edge.function);
        } else {
          set_edge(*node, i, Edge(current, found->second));
        }
      }
    }
    Py_RETURN_NONE;
  });
}

// cut_edges(tensors, [(consumer, index, node, number), …]) -> [cut node, …], cuts: the consumer's edge at an index, which
// leads to a node's number-th output, ends in a cut node instead; equal places share one.
PyObject* cut_edges(PyObject*, PyObject* args) {
  PyObject *tensors, *edges;
  if (!PyArg_ParseTuple(args, "OO", &tensors, &edges)) return nullptr;
  return guarded([&]() -> PyObject* {
    Tape tape;
    Owned roots(PySequence_Fast(tensors, "tensors"));
    if (!roots) return nullptr;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(roots.get()); ++i) {
      PyObject* tensor = PySequence_Fast_GET_ITEM(roots.get(), i);
      if (!is_tensor(tensor)) {
        PyErr_SetString(PyExc_TypeError, "cut_edges: tensors expected");
        return nullptr;
      }
      tape.walk(tensor_in(tensor));
    }
    Owned wanted(PySequence_Fast(edges, "edges"));
    Owned result(PyList_New(0));
    if (!wanted || !result) return nullptr;
    std::map<std::pair<Node*, long>, NodePointer> cuts;
    auto done = std::make_unique<Cuts>();
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(wanted.get()); ++i) {
      PyObject *consumer, *target;
      long index, number;
      if (!PyArg_ParseTuple(PySequence_Fast_GET_ITEM(wanted.get(), i), "OlOl", &consumer, &index, &target, &number)) {
        return nullptr;
      }
      auto from = tape.nodes.find(consumer);
      auto to = tape.nodes.find(target);
      if (from == tape.nodes.end() || to == tape.nodes.end()) {
        PyErr_SetString(PyExc_ValueError, "cut_edges: a node that the tensors do not lead to");
        return nullptr;
      }
      TORCH_CHECK_INDEX(number >= 0 && number < static_cast<long>(to->second->num_inputs()), "no such output");
      TORCH_CHECK_INDEX(index >= 0 && index < static_cast<long>(from->second->num_outputs()), "no such input");
      NodePointer& cut = cuts[{to->second.get(), number}];
      if (!cut) {
        cut = make_node<Cut>(to->second->input_metadata(static_cast<size_t>(number)));
      }
      auto place = static_cast<size_t>(index);
      done->all.push_back({from->second, place, from->second->next_edge(place)});
      set_edge(*from->second, place, Edge(cut, 0));
      Owned object(platform::node_object(cut));
      if (!object || PyList_Append(result.get(), object.get()) < 0) return nullptr;
    }
    Owned capsule(PyCapsule_New(done.get(), kCuts, delete_cuts));
    if (!capsule) return nullptr;
    done.release();
    return PyTuple_Pack(2, result.get(), capsule.get());
  });
}

// gradient_edge(tensor) -> (node, number), its place in autograd's graph; None without one. Nothing is dispatched: the
// place of a leaf could be read off a view of it, but a view of a fake tensor makes torch import a second's worth.
PyObject* gradient_edge(PyObject*, PyObject* tensor) {
  if (!is_tensor(tensor)) return PyErr_Format(PyExc_TypeError, "gradient_edge: a tensor expected");
  return guarded([&]() -> PyObject* {
    Edge edge = platform::gradient_edge(tensor_in(tensor));
    if (!edge.function) Py_RETURN_NONE;
    return Py_BuildValue("(NI)", platform::node_object(edge.function), edge.input_nr);
  });
}

// shares_memory(changed, others) -> whether one of the changed tensors shares its storage with another tensor of either.
PyObject* shares_memory(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 2 || !PyTuple_Check(given[0]) || !PyTuple_Check(given[1])) {
    PyErr_SetString(PyExc_TypeError, "shares_memory: two tuples expected");
    return nullptr;
  }
  std::vector<const void*> changed;
  auto storage_of = [](PyObject* tensor) -> const void* {
    if (!is_tensor(tensor)) return nullptr;
    const at::Tensor& value = tensor_in(tensor);
    return value.has_storage() ? value.storage().unsafeGetStorageImpl() : nullptr;
  };
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given[0]); ++i) {
    const void* storage = storage_of(PyTuple_GET_ITEM(given[0], i));
    if (storage) changed.push_back(storage);
  }
  std::sort(changed.begin(), changed.end());
  if (std::adjacent_find(changed.begin(), changed.end()) != changed.end()) Py_RETURN_TRUE;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given[1]); ++i) {
    const void* storage = storage_of(PyTuple_GET_ITEM(given[1], i));
    if (storage && std::binary_search(changed.begin(), changed.end(), storage)) Py_RETURN_TRUE;
  }
  Py_RETURN_FALSE;
}

PyObject* has_node_creation_hooks(PyObject*, PyObject*) {
  return PyBool_FromLong(platform::has_node_creation_hooks());
}

PyMethodDef tape_functions[] = {
    {"has_node_creation_hooks", has_node_creation_hooks, METH_NOARGS,
     "has_node_creation_hooks() -> bool: are new nodes of this thread given to hooks?"},
    {"gradient_edge", gradient_edge, METH_O,
     "gradient_edge(tensor) -> (node, number) | None: its place in the graph, found without an operation on it."},
    {"shares_memory", method(shares_memory), METH_FASTCALL,
     "Whether one of the first tensors shares its storage with another."},
    {"mend_edges", mend_edges, METH_VARARGS, "Undo what cut_edges did."},
    {"link_tensor", link_tensor, METH_VARARGS, "Make a tensor's gradients go where those of the running node go."},
    {"lead_to_running", lead_to_running, METH_VARARGS, "Make edges to some places lead to the running node."},
    {"cut_edges", cut_edges, METH_VARARGS, "Make edges of autograd's graph end in nodes of their own."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

int add_tape(PyObject* module) { return PyModule_AddFunctions(module, tape_functions); }

}  // namespace kiln
