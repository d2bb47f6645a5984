// GradNode: a node of torch's autograd graph whose backward is a Python callable that Kiln compiled.
#include "autograd/grad_node.h"
#include "platform/python.h"

namespace kiln {
namespace {

// An int with bit i set where `is_set(i)`.
template <class Predicate>
Owned mask(size_t count, Predicate is_set) {
  if (count <= 64) {
    uint64_t bits = 0;
    for (size_t i = 0; i < count; ++i) bits |= uint64_t(is_set(i)) << i;
    return Owned(PyLong_FromUnsignedLongLong(bits));
  }
  std::vector<unsigned char> bytes((count + 7) / 8);
  for (size_t i = 0; i < count; ++i) bytes[i / 8] |= static_cast<unsigned char>(is_set(i) << (i % 8));
  return Owned(platform::int_from_bytes(bytes.data(), bytes.size()));
}

// A new list of these tensors, None where undefined; the vector lets go of them.
Owned list_of(variable_list& tensors) {
  Owned list(PyList_New(static_cast<Py_ssize_t>(tensors.size())));
  if (!list) raise();
  for (size_t i = 0; i < tensors.size(); ++i) {
    PyObject* tensor = tensor_object(std::move(tensors[i]));
    if (!tensor) raise();
    PyList_SET_ITEM(list.get(), i, tensor);
  }
  tensors.clear();
  return list;
}

at::Tensor gradient_of(PyObject* value, size_t place, const std::string& name) {
  if (value == Py_None) return {};
  if (is_tensor(value)) return tensor_in(value);
  PyErr_Format(PyExc_TypeError, "%s: gradient %zu is a tensor or None, not %.200s", name.c_str(), place,
               Py_TYPE(value)->tp_name);
  raise();
}

variable_list gradients_of(PyObject* result, size_t count, const std::string& name) {
  Owned sequence(PySequence_Fast(result, "a backward returns a sequence of gradients"));
  if (!sequence) raise();
  auto given = static_cast<size_t>(PySequence_Fast_GET_SIZE(sequence.get()));
  if (given != count) {
    PyErr_Format(PyExc_RuntimeError, "%s: %zu gradients expected, %zu returned", name.c_str(), count, given);
    raise();
  }
  variable_list gradients;
  gradients.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    gradients.push_back(gradient_of(PySequence_Fast_GET_ITEM(sequence.get(), i), i, name));
  }
  return gradients;
}

Owned call(PyObject* callable, PyObject* defined, PyObject* needed, PyObject* values, PyObject* gradients,
           PyObject* context) {
  PyObject* arguments[] = {nullptr, defined, needed, values, gradients, context};
  Owned result(is_hooked() ? call_unseen(callable, arguments + 1, 5, nullptr)
                           : PyObject_Vectorcall(callable, arguments + 1, 5 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
  if (!result) raise();
  return result;
}

// Hands the gradient of a view that was replaced to the node that computed its new value. None of it goes to what the
// base was before, to which torch lets the first edge of such a node lead.
struct ReplacedView : KeepsNothing {
  ReplacedView(Edge base, Edge computed) : KeepsNothing(edge_list{std::move(base), std::move(computed)}) {}
  std::string name() const override { return "KilnReplacedView"; }
  variable_list apply(variable_list&& gradients) override {
    at::Tensor& gradient = gradients[0];
    return {gradient.defined() ? at::zeros_like(gradient) : at::Tensor(), gradient};
  }
};

}  // namespace

Recipe::Recipe(std::string name, PyObject* backward, PyObject* higher)
    : name(std::move(name)), backward(Py_NewRef(backward)), higher(Py_NewRef(higher)) {}

Recipe::~Recipe() {
  if (!Py_IsInitialized()) return;
  Gil gil;
  Py_DECREF(backward);
  Py_DECREF(higher);
}

GradNode::GradNode(std::shared_ptr<const Recipe> recipe, PyObject* context, std::shared_ptr<const HeldInputs> held,
                   edge_list&& edges)
    : Node(std::move(edges)), recipe_(std::move(recipe)), context_(Py_NewRef(context)), held_(std::move(held)) {}

GradNode::~GradNode() {
  if (!Py_IsInitialized()) return;
  Gil gil;
  forget();
}

void GradNode::forget() {
  // Taken out first: what dies here may run code that looks at this node again.
  auto saved = std::move(saved_);
  auto held = std::move(held_);
  Py_CLEAR(context_);
}

// Where nothing was saved backward can run again, as through eager's nodes that save nothing.
void GradNode::release_variables() {
  if (!saved_something_ || !Py_IsInitialized()) return;
  Gil gil;
  forget();
}

// ---- outputs -------------------------------------------------------------------------------------------------------

uint32_t GradNode::add_output(const at::Tensor& tensor) {
  TORCH_CHECK(platform::isDifferentiableType(tensor.scalar_type()), std::string("Autograd not support dtype: ") +
                                                                            c10::toString(tensor.scalar_type()));
  uint32_t number = add_input_metadata(tensor);
  platform::set_gradient_edge(tensor, Edge(getptr(), number));
  return number;
}

uint32_t GradNode::add_replaced(const at::Tensor& tensor) {
  uint32_t number = add_input_metadata(tensor);
  Edge edge(getptr(), number);
  if (auto* view = platform::get_view_autograd_meta(tensor); view && view->has_bw_view()) {
    // torch puts a node on a view only if that is the node's one output.
    Edge base = platform::gradient_edge(view->get_backward_view().base_);
    NodePointer single = make_node<ReplacedView>(std::move(base), std::move(edge));
    edge = Edge(single, single->add_input_metadata(tensor));
    // Whoever read the view's history since the change has renewed it too early.
    view->set_attr_version(tensor._version() - 1);
  }
  platform::rebase_history(tensor, std::move(edge));
  return number;
}

// ---- saved tensors -------------------------------------------------------------------------------------------------

// Made by this thread no earlier than this node, so that it may lead here. Leaves' accumulators have the largest number.
bool GradNode::comes_after(const Node* other) const {
  return other && other->sequence_nr() >= sequence_nr() && other->sequence_nr() != UINT64_MAX;
}

// As eager saves a tensor, unless that would make a cycle which eager has other ways to avoid: a view of an output, or a
// tensor changed in place whose history leads here.
SavedVariable GradNode::kept(const at::Tensor& tensor) {
  const Node* origin = platform::grad_fn_unsafe(tensor);
  if (origin == this) return SavedVariable(tensor, /*is_output=*/true);
  auto* view = platform::get_view_autograd_meta(tensor);
  bool leads_here = comes_after(origin) ||
                    (view && view->has_bw_view() &&
                     comes_after(platform::grad_fn_unsafe(view->get_backward_view().base_)));
  return SavedVariable(leads_here ? without_history(tensor) : tensor, /*is_output=*/false);
}

void GradNode::save(PyObject* const* values, size_t count) {
  auto saved = std::make_shared<Saved>();
  saved->reserve(count);
  bool something = false;
  for (size_t i = 0; i < count; ++i) {
    if (values[i] == Py_None) {
      saved->emplace_back();
      continue;
    }
    TORCH_CHECK_TYPE(is_tensor(values[i]),
                     std::string("save() takes tensors and None, not ") + Py_TYPE(values[i])->tp_name);
    saved->push_back(kept(tensor_in(values[i])));
    something = true;
  }
  saved_ = std::move(saved);
  saved_something_ = something;
}

void GradNode::check_not_freed() const { TORCH_CHECK(context_, platform::ERR_BACKWARD_TWICE); }

Owned GradNode::unpack_saved() {
  check_not_freed();
  auto saved = saved_;
  size_t count = saved ? saved->size() : 0;
  Owned list(PyList_New(static_cast<Py_ssize_t>(count)));
  if (!list) raise();
  for (size_t i = 0; i < count; ++i) {
    PyObject* tensor = tensor_object((*saved)[i].unpack(getptr()));
    if (!tensor) raise();
    PyList_SET_ITEM(list.get(), i, tensor);
  }
  return list;
}

Owned GradNode::rerun_inputs() {
  check_not_freed();
  auto held = held_;
  return held->linked(next_edges());
}

// ---- backward ------------------------------------------------------------------------------------------------------

Owned GradNode::mask_of_needed() const {
  const auto* tasks = platform::get_current_graph_task_exec_info();
  if (tasks && tasks->empty()) tasks = nullptr;
  return mask(num_outputs(), [&](size_t i) {
    Node* following = next_edges_[i].function.get();
    if (!following || !tasks) return following != nullptr;
    auto task = tasks->find(following);
    return task != tasks->end() && task->second.should_execute();
  });
}

Owned GradNode::call_higher(const HeldInputs& held, PyObject* context, PyObject* defined, PyObject* needed,
                            PyObject* gradients) const {
  Owned inputs = held.linked(next_edges());
  return call(recipe_->higher, defined, needed, inputs.get(), gradients, context);
}

// Nothing here refers to a saved tensor while the backward runs, unless the graph is kept.
Owned GradNode::call_backward(PyObject* defined, PyObject* needed, PyObject* gradients) {
  Owned saved = unpack_saved();
  Owned context = share(context_);
  auto held = held_;
  auto recipe = recipe_;
  if (!platform::get_current_graph_task_keep_graph()) release_variables();
  Owned result = call(recipe->backward, defined, needed, saved.get(), gradients, context.get());
  if (result.get() != Py_NotImplemented) return result;
  return call_higher(*held, context.get(), defined, needed, gradients);
}

variable_list GradNode::apply(variable_list&& gradients) {
  Gil gil;
  Owned defined = mask(gradients.size(), [&](size_t i) { return gradients[i].defined(); });
  Owned needed = mask_of_needed();
  if (!defined || !needed) raise();
  Owned list = list_of(gradients);
  Owned result;
  if (at::GradMode::is_enabled()) {
    check_not_freed();
    auto held = held_;
    Owned context = share(context_);
    result = call_higher(*held, context.get(), defined.get(), needed.get(), list.get());
  } else {
    result = call_backward(defined.get(), needed.get(), list.get());
  }
  return gradients_of(result.get(), num_outputs(), recipe_->name);
}

}  // namespace kiln
