// torch's autograd: the graph, its engine, nodes and hooks, which torch has no public C++ interface for. Known for torch
// 2.11 to 2.15. Names are torch's own, by the headers that declare them.
#pragma once

#include "platform/tensors.h"

#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/cpp_hook.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/python_hook.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <type_traits>

#if __has_include(<ATen/NodeCreationHooks.h>)
#include <ATen/NodeCreationHooks.h>
#define KILN_HAS_NODE_CREATION_HOOKS
#endif

namespace kiln {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// torch 2.13 holds nodes by c10::intrusive_ptr, releases before it by std::shared_ptr.
using NodePointer = decltype(Edge::function);

template <class Kind, class... Arguments>
NodePointer make_node(Arguments&&... arguments) {
  if constexpr (std::is_same_v<NodePointer, std::shared_ptr<Node>>) {
    // torch's own deleter takes a long chain of nodes apart without recursion.
    return std::shared_ptr<Kind>(new Kind(std::forward<Arguments>(arguments)...), [](Kind* node) { deleteNode(node); });
  } else {
    return c10::make_intrusive<Kind>(std::forward<Arguments>(arguments)...);
  }
}

namespace platform {

// ---- a tensor's place in the graph: its node, its view, its forward-mode gradient -----------------------------------

using torch::autograd::AutogradMeta;
using torch::autograd::isDifferentiableType;
using torch::autograd::impl::get_autograd_meta;
using torch::autograd::impl::get_view_autograd_meta;
using torch::autograd::impl::grad_fn_unsafe;
using torch::autograd::impl::gradient_edge;
using torch::autograd::impl::rebase_history;
using torch::autograd::impl::set_gradient_edge;
using torch::autograd::impl::try_get_grad_accumulator;

// What torch keeps of a tensor for autograd, or null; without a look at whether it is of torch's own class.
inline const AutogradMeta* autograd_meta_of(const at::Tensor& tensor) {
  return static_cast<const AutogradMeta*>(tensor.unsafeGetTensorImpl()->autograd_meta());
}

// ---- nodes ----------------------------------------------------------------------------------------------------------

using torch::autograd::AccumulateGrad;
using torch::autograd::CopyBackwards;
// An operation in place on a view. It holds that operation's own node, and wants its edges to be the same.
using torch::autograd::CopySlices;
// What a node knows of one of its gradients.
using torch::autograd::InputMetadata;
using torch::autograd::TypeAndSize;
using torch::autograd::collect_input_metadata;
using torch::autograd::validate_outputs;

// The error of a node that was freed.
using torch::autograd::ERR_BACKWARD_TWICE;

// ---- nodes as Python objects ----------------------------------------------------------------------------------------

// A new reference to the node's object; null with an error set, or throws.
inline PyObject* node_object(const NodePointer& node) { return torch::autograd::functionToPyObject(node); }

// Whether an object is that of a node of C++, and the node.
inline bool is_node_object(PyObject* object) { return torch::autograd::THPCppFunction_Check(object); }
inline const NodePointer& node_in(PyObject* object) {
  return reinterpret_cast<torch::autograd::THPCppFunction*>(object)->cdata;
}

// Makes the class of the objects of a type of nodes, and has torch use it. Throws.
inline void add_node_class(const std::type_info& node, PyTypeObject& type, const char* name, PyGetSetDef* properties,
                           PyMethodDef* methods) {
  torch::autograd::_initFunctionPyTypeObject(type, name, properties, methods);
  torch::autograd::registerCppFunction(node, &type);
}

// The methods and properties that torch gives to the objects of its own nodes.
inline constexpr auto register_hook_dict = torch::autograd::THPCppFunction_register_hook_dict;
inline constexpr auto register_hook = torch::autograd::THPCppFunction_register_hook;
inline constexpr auto register_prehook = torch::autograd::THPCppFunction_register_prehook;
inline constexpr auto node_name = torch::autograd::THPCppFunction_name;
inline constexpr auto node_sequence_nr = torch::autograd::THPCppFunction_sequence_nr;
inline constexpr auto next_functions = torch::autograd::THPCppFunction_next_functions;
inline constexpr auto node_requires_grad = torch::autograd::THPCppFunction_requires_grad;
inline constexpr auto node_metadata = torch::autograd::THPCppFunction_metadata;
inline constexpr auto node_input_metadata = torch::autograd::THPCppFunction_input_metadata;

// ---- hooks, told apart by the names of type_names.h -----------------------------------------------------------------

// What retain_grad() leaves at a node.
using torch::autograd::CppFunctionSingleTensorPreHook;
using torch::autograd::PyFunctionPostHook;
using torch::autograd::PyFunctionPreHook;
using torch::autograd::PyFunctionTensorPostAccGradHooks;
using torch::autograd::PyFunctionTensorPreHook;

// ---- the engine -----------------------------------------------------------------------------------------------------

// Whether this thread has hooks on new nodes, torch.autograd.graph.node_creation_hook. From torch 2.14 on.
inline bool has_node_creation_hooks() {
#ifdef KILN_HAS_NODE_CREATION_HOOKS
  return !at::impl::NodeCreationHooks::empty();
#else
  return false;
#endif
}

using torch::autograd::AnomalyMode;
using torch::autograd::AutoGradMode;

inline torch::autograd::Engine& engine() { return torch::autograd::Engine::get_default_engine(); }

// The node that runs in this thread; what of the graph its pass was asked for, null or empty for all of it; and whether
// the pass keeps its graph.
using torch::autograd::get_current_graph_task_exec_info;
using torch::autograd::get_current_graph_task_keep_graph;
using torch::autograd::get_current_node;

}  // namespace platform
}  // namespace kiln
