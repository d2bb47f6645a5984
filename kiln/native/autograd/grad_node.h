// GradNode: one compiled backward in torch's autograd graph. What the files of this folder share.
#pragma once

#include "platform/autograd.h"

#include <memory>
#include <string>
#include <vector>

namespace kiln {

// Holds the GIL, which costs little where the thread has it already.
class Gil {
 public:
  Gil() : state_(PyGILState_Ensure()) {}
  ~Gil() { PyGILState_Release(state_); }
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;

 private:
  PyGILState_STATE state_;
};

// The same data and version counter in a tensor of its own, without history.
at::Tensor without_history(const at::Tensor& tensor);

// A node of Kiln's that keeps nothing but its edges: calling it is all there is to know of it.
struct KeepsNothing : Node {
  using Node::Node;
};

// Hands its gradients on, by default the i-th to the i-th edge. It gives a tensor one edge of an existing node as history.
struct Passage : KeepsNothing {
  explicit Passage(edge_list&& edges) : KeepsNothing(std::move(edges)) {}
  variable_list apply(variable_list&& gradients) override { return std::move(gradients); }
  std::string name() const override { return "KilnPassage"; }
};

// The inputs of a graph, kept to run it again: their data and where their gradients go. A tensor that has, or by an
// in-place operation could get, a history is kept as a copy without one, so that a later `input.add_(output)` makes no
// cycle of references.
class HeldInputs {
 public:
  // Takes a tuple, and the edges of the node that holds it. With the GIL held, as for all of it.
  HeldInputs(PyObject* inputs, const edge_list& edges);
  ~HeldInputs();
  HeldInputs(const HeldInputs&) = delete;
  HeldInputs& operator=(const HeldInputs&) = delete;

  // A new list: tensors that had a gradient edge as fresh tensors whose history is a Passage to it, the rest as it is.
  // Throws eager's error when a tensor was changed since. Takes the edges again.
  Owned linked(const edge_list& edges) const;

 private:
  enum class Kind : uint8_t { object, constant, leaf, copy };
  struct Record {
    uint32_t version = 0;
    Kind kind = Kind::object;
  };
  // The edge is one of the node's, where that has it: a chain of nodes dies without recursion only if nothing but their
  // own edges holds them together.
  struct Copy {
    at::Tensor data;
    int shared_edge;
    Edge own_edge;

    const Edge& edge(const edge_list& edges) const { return shared_edge < 0 ? own_edge : edges[shared_edge]; }
  };

  Record hold(PyObject* value, const edge_list& edges);
  void hold_copy(const at::Tensor& tensor, Edge edge, const edge_list& edges);
  Owned linked_at(size_t place, const Copy* copy, const edge_list& edges) const;

  // The tuple given, or one with None in place of what `copies_` holds.
  PyObject* values_;
  std::vector<Record> records_;
  std::vector<Copy> copies_;
};

// What all nodes made by one compiled graph have in common.
struct Recipe {
  Recipe(std::string name, PyObject* backward, PyObject* higher);
  ~Recipe();
  Recipe(const Recipe&) = delete;
  Recipe& operator=(const Recipe&) = delete;

  const std::string name;
  PyObject* const backward;
  PyObject* const higher;
};

// The state below is read and changed with the GIL held. What a running backward uses it owns jointly, so that another
// thread that frees the node in the meantime does no harm.
class GradNode : public Node {
 public:
  GradNode(std::shared_ptr<const Recipe> recipe, PyObject* context, std::shared_ptr<const HeldInputs> held,
           edge_list&& edges);
  ~GradNode() override;

  std::string name() const override { return recipe_->name; }
  void release_variables() override;

  // Gives the tensor this node as history; its gradient is the next one of this node.
  uint32_t add_output(const at::Tensor& tensor);
  // The same for a tensor that was changed in place.
  uint32_t add_replaced(const at::Tensor& tensor);

  // Keeps these objects, tensors or None, for the backward. After all outputs were added: a saved output is known by its
  // history.
  void save(PyObject* const* values, size_t count);

  using Saved = std::vector<SavedVariable>;

  // For walks over the graph; the GIL is held. The context is null once this was freed, `saved` also if nothing was saved.
  PyObject* backward() const { return recipe_->backward; }
  PyObject* context() const { return context_; }
  std::shared_ptr<const Saved> saved() const { return saved_; }

  // New lists. Each throws eager's error when this was freed.
  Owned unpack_saved();
  Owned rerun_inputs();

 protected:
  variable_list apply(variable_list&& gradients) override;

 private:
  SavedVariable kept(const at::Tensor& tensor);
  bool comes_after(const Node* other) const;
  void check_not_freed() const;
  void forget();
  Owned mask_of_needed() const;
  Owned call_backward(PyObject* defined, PyObject* needed, PyObject* gradients);
  Owned call_higher(const HeldInputs& held, PyObject* context, PyObject* defined, PyObject* needed,
                    PyObject* gradients) const;

  std::shared_ptr<const Recipe> recipe_;
  PyObject* context_;
  std::shared_ptr<const HeldInputs> held_;
  std::shared_ptr<const Saved> saved_;
  bool saved_something_ = false;
};

}  // namespace kiln
