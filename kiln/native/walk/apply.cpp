// Calls one node of a walk: with what it keeps as it is, or with stand-ins in its place.
#include "autograd/saved_values.h"
#include "walk/walk.h"

#include <ATen/SavedTensorHooks.h>

#include <optional>

namespace kiln {
namespace {

// Saved tensors are made without the hooks that the program may have set for its own.
class WithoutPackHooks {
 public:
  WithoutPackHooks() : before_(at::SavedTensorDefaultHooks::set_tracing(true)) {}
  ~WithoutPackHooks() { at::SavedTensorDefaultHooks::set_tracing(before_); }
  WithoutPackHooks(const WithoutPackHooks&) = delete;
  WithoutPackHooks& operator=(const WithoutPackHooks&) = delete;

 private:
  bool before_;
};

// Puts stand-ins in a node, and at the end what was there back. Each visit shows the fields in the same order; one that
// failed half-way is undone as far as it came. With the GIL held.
class Exchange : public SavedVisitor {
 public:
  Exchange(const Walk& walk, const Call& call, const variable_list* saved, const std::vector<c10::SymInt>* sizes)
      : walk_(walk), call_(call), saved_(saved), given_sizes_(sizes) {
    if (!saved_ && !given_sizes_) return;
    try {
      WithoutPackHooks without;
      visit_saved(*call_.node, *this);
    } catch (...) {
      restore();
      throw;
    }
  }
  ~Exchange() override {
    if (saved_ || given_sizes_) restore();
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  void variable(SavedVariable& variable) override {
    if (!saved_) return;
    if (!restoring_) variables_.emplace_back(next_saved(), /*is_output=*/false);
    exchange(variable, variables_, variable_count_);
  }
  void tensor(at::Tensor& tensor) override {
    if (!saved_) return;
    if (!restoring_) tensors_.push_back(next_saved());
    exchange(tensor, tensors_, tensor_count_);
  }
  void size(c10::SymInt& size) override {
    if (!given_sizes_) return;
    if (!restoring_) sizes_.push_back(given_sizes_->at(walk_.saved_sizes.at(call_.saved_sizes.first + sizes_.size())));
    exchange(size, sizes_, size_count_);
  }
  void constant(std::string_view) override {}

 private:
  const at::Tensor& next_saved() { return saved_->at(variables_.size() + tensors_.size()); }

  template <class Value>
  void exchange(Value& field, std::vector<Value>& others, size_t& count) {
    if (count < others.size()) std::swap(field, others[count++]);
  }

  void restore() {
    restoring_ = true;
    variable_count_ = tensor_count_ = size_count_ = 0;
    visit_saved(*call_.node, *this);
  }

  const Walk& walk_;
  const Call& call_;
  const variable_list* saved_;
  const std::vector<c10::SymInt>* given_sizes_;
  bool restoring_ = false;
  std::vector<SavedVariable> variables_;
  std::vector<at::Tensor> tensors_;
  std::vector<c10::SymInt> sizes_;
  size_t variable_count_ = 0, tensor_count_ = 0, size_count_ = 0;
};

// Takes away the edges that lead to what does not run, so that the node computes nothing for them; puts them back.
class Masked {
 public:
  Masked(const Walk& walk, const Call& call) : node_(*call.node) {
    for (uint32_t i = 0; i < call.edges.count; ++i) {
      const Edge& edge = node_.next_edge(i);
      if (!edge.function || walk.edges[call.edges.first + i].call != kNone) continue;
      taken_.emplace_back(i, edge);
      set(i, Edge());
    }
  }
  ~Masked() {
    for (auto& [place, edge] : taken_) set(place, std::move(edge));
  }
  Masked(const Masked&) = delete;
  Masked& operator=(const Masked&) = delete;

 private:
  // The node of an operation in place on a view holds that operation's own node, and wants its edges to be the same.
  void set(uint32_t place, Edge edge) {
    auto* slices = dynamic_cast<platform::CopySlices*>(&node_);
    if (slices && place > 0) slices->fn->next_edges().at(place) = edge;
    node_.next_edges().at(place) = std::move(edge);
  }

  Node& node_;
  std::vector<std::pair<uint32_t, Edge>> taken_;
};

// What torch knows of the gradients that a node gives, with other sizes.
std::vector<std::optional<platform::InputMetadata>> metadata_of(const Walk& walk, const Call& call,
                                                                const std::vector<c10::SymInt>& sizes) {
  auto metadata = platform::collect_input_metadata(call.node->next_edges());
  for (size_t i = 0; i < metadata.size(); ++i) {
    const CallEdge& edge = walk.edges[call.edges.first + i];
    if (!metadata[i] || metadata[i]->was_default_constructed() || edge.call == kNone) continue;
    size_t place = first_size_of(walk.calls[edge.call], edge.input);
    for (c10::SymInt& size : metadata[i]->mutable_shape_as_dim_vector()) size = sizes.at(place++);
  }
  return metadata;
}

variable_list call_node(const Walk& walk, const Call& call, variable_list gradients,
                        const std::vector<c10::SymInt>* sizes) {
  WithoutGil without_gil;
  platform::AutoGradMode without_grad(false);
  Node& node = *call.node;
  variable_list results = node(std::move(gradients));
  auto told = [&](const std::string& what) { return "Function " + node.name() + " returned an " + what; };
  if (sizes) {
    platform::validate_outputs(metadata_of(walk, call, *sizes), results, told);
  } else {
    platform::validate_outputs(node.next_edges(), results, told);
  }
  return results;
}

// Nodes ask the task that runs in this thread, which may be another backward pass, what they need not compute.
bool in_task_with_outputs() {
  const auto* tasks = platform::get_current_graph_task_exec_info();
  return tasks && !tasks->empty();
}

}  // namespace

size_t first_size_of(const Call& call, uint32_t input) {
  size_t place = call.first_size;
  for (uint32_t i = 0; i < input; ++i) {
    const auto& metadata = call.node->input_metadata(i);
    if (!metadata.was_default_constructed()) place += metadata.shape_as_dim_vector().size();
  }
  return place;
}

const Call& call_at(const Walk& walk, size_t index) {
  if (index == 0 || index >= walk.calls.size()) {
    fail(PyExc_IndexError, "the walk has no call " + std::to_string(index) + " of a node");
  }
  return walk.calls[index];
}

variable_list apply_call(const Walk& walk, uint32_t index, variable_list gradients, const variable_list* saved,
                         const std::vector<c10::SymInt>* sizes) {
  const Call& call = call_at(walk, index);
  if (saved && !call.known) fail(PyExc_ValueError, "what this node keeps cannot be replaced");
  if (saved && saved->size() != call.saved.count) {
    fail(PyExc_ValueError, std::to_string(call.saved.count) + " saved tensors expected, not " +
                               std::to_string(saved->size()));
  }
  if (sizes && sizes->size() != walk.sizes.size()) {
    fail(PyExc_ValueError, std::to_string(walk.sizes.size()) + " sizes expected");
  }
  gradients.resize(call.node->num_inputs());
  Exchange exchange(walk, call, saved, call.known ? sizes : nullptr);
  Masked masked(walk, call);
  if (!in_task_with_outputs()) return call_node(walk, call, std::move(gradients), sizes);
  variable_list results;
  run_in_task([&] { results = call_node(walk, call, std::move(gradients), sizes); },
              platform::get_current_graph_task_keep_graph());
  return results;
}

}  // namespace kiln
