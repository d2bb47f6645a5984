// The walk: what a backward pass would do, without doing it. What the files of this folder share.
//
// request.cpp reads what is asked for, order.cpp finds which nodes run and in which order, collect.cpp
// what each depends on (the key, the sizes, the tensors), hooks.cpp its hooks. apply.cpp calls one node,
// lend.cpp takes what nodes saved and puts it back, engine_call.cpp runs something in a task of torch's engine.
// type.cpp, views.cpp and actions.cpp are what Python sees of all that.
#pragma once

#include "autograd/grad_node.h"

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace kiln {

constexpr uint32_t kNone = UINT32_MAX;

// Why torch's own engine must do it.
struct Refused {
  std::string reason;
};

// A mistake of the caller's. With the GIL held.
[[noreturn]] inline void fail(PyObject* kind, const std::string& what) {
  PyErr_SetString(kind, what.c_str());
  raise();
}

// Bytes to compare: whatever is written says itself where it ends.
class KeyBytes {
 public:
  void byte(uint8_t value) { bytes_.push_back(static_cast<char>(value)); }
  void number(uint64_t value) {
    while (value >= 0x80) {
      byte(static_cast<uint8_t>(value) | 0x80);
      value >>= 7;
    }
    byte(static_cast<uint8_t>(value));
  }
  void pointer(const void* value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value)); }
  void text(std::string_view text) { bytes_.append(text); }
  const std::string& all() const { return bytes_; }
  void reserve(size_t size) { bytes_.reserve(size); }

 private:
  std::string bytes_;
};

// From pointers to numbers in order of insertion.
class PointerMap {
 public:
  PointerMap() : entries_(256) {}

  // The number of a pointer; a new one gets the next.
  std::pair<uint32_t, bool> insert(const void* pointer) {
    if (2 * (count_ + 1) > entries_.size()) grow();
    Entry& entry = find(pointer);
    if (entry.pointer) return {entry.number, false};
    entry = {pointer, count_};
    return {count_++, true};
  }

  bool contains(const void* pointer) { return find(pointer).pointer != nullptr; }

  void clear() {
    count_ = 0;
    std::memset(static_cast<void*>(entries_.data()), 0, entries_.size() * sizeof(Entry));
  }

 private:
  struct Entry {
    const void* pointer = nullptr;
    uint32_t number = 0;
  };

  Entry& find(const void* pointer) {
    size_t mask = entries_.size() - 1;
    auto place = (reinterpret_cast<uintptr_t>(pointer) * 0x9E3779B97F4A7C15u) >> 20 & mask;
    while (entries_[place].pointer && entries_[place].pointer != pointer) place = (place + 1) & mask;
    return entries_[place];
  }

  void grow() {
    std::vector<Entry> old(2 * entries_.size());
    old.swap(entries_);
    for (const Entry& entry : old) {
      if (entry.pointer) find(entry.pointer) = entry;
    }
  }

  std::vector<Entry> entries_;
  uint32_t count_ = 0;
};

enum class CallKind : uint8_t { root, builtin, accumulate, python, custom, kiln };

struct CallEdge {
  uint32_t call = kNone;
  uint32_t input = 0;
};

// A gradient to return: which input of a node, and where in the result.
struct Capture {
  uint32_t call;
  uint32_t input;
  uint32_t output;
};

struct Range {
  uint32_t first = 0;
  uint32_t count = 0;
};

// One step. The ranges are in the vectors of the Walk that have the same name.
struct Call {
  NodePointer node;
  CallKind kind = CallKind::root;
  bool needed = true;
  bool captured = false;
  // What it keeps can be replaced.
  bool known = false;
  bool has_grad = false;
  uint32_t first_size = 0;
  uint32_t variable = kNone;
  Range edges;
  Range saved;
  Range saved_sizes;
  Range hooks;
};

// A tensor among the inputs.
struct Slot {
  at::ScalarType dtype;
  at::Device device;
  uint8_t dimensions;
  bool requires_grad;
  bool is_leaf;
  bool is_number;
  enum class Layout : uint8_t { contiguous, permuted, strided } layout;
  uint32_t first_size;
  // Of the permutation in Walk::permutations, or of the strides in Walk::sizes.
  uint32_t first_stride;
  // The value of a wrapped number, and its place in Walk::sizes unless it is in the key.
  at::Scalar number;
  uint32_t number_place = kNone;
};

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

// A tensor among the inputs, while others hold it: what a node that still needs it may find changed.
struct Watched {
  WeakTensor tensor;
  c10::VariableVersion version;
  uint32_t seen;
  // The last call that uses it as something saved.
  uint32_t last_use = kNone;
};

// Something of Python's that a call needs: a hook, or the object of its node.
struct Hook {
  enum class Kind : uint8_t { tensor, retains, before, object, inner, accumulate, after } kind;
  // For tensor and retains: which of the node's inputs. For inner: the number of the registration.
  uint32_t input;
  // The user's function or the node's object; none for what Python has no object for yet.
  Owned object;
};

struct Walk {
  std::string refusal;
  bool refused = false;
  bool has_saved_tensor_hooks = false;
  // The pass is asked for some gradients only.
  bool is_partial = false;

  std::vector<Call> calls;
  std::vector<CallEdge> edges;
  std::vector<Capture> captures;
  std::vector<uint32_t> saved;
  std::vector<uint32_t> saved_sizes;
  std::vector<Hook> hooks;

  KeyBytes key;
  std::vector<int64_t> sizes;
  std::vector<Slot> slots;
  std::vector<uint8_t> permutations;
  std::vector<at::Tensor> tensors;
  std::vector<Watched> watched;
  std::vector<Owned> classes;
  // The tensors as Python objects.
  Owned input_list;
  // What `apply` was last given for the sizes, and that converted.
  Owned given_sizes;
  std::vector<c10::SymInt> given;
  // Made at the first access.
  Owned size_list;
  Owned call_list;
  Owned tensor_list;
};

// Where a backward pass starts and what it is asked for. The gradients fit the roots.
struct Request {
  edge_list roots;
  variable_list gradients;
  edge_list outputs;
  bool accumulate = true;
};

// Throws Refused, or what torch says of roots and gradients that do not fit.
Request request_of(PyObject* roots, PyObject* gradients, PyObject* inputs, bool accumulate);

// Where the gradients go that a call of `backward` or `grad` with these inputs is asked for. Throws as request_of.
edge_list outputs_of(PyObject* inputs, bool accumulate);

// Fills calls, edges and captures.
void find_order(const Request& request, Walk& walk);

// Fills the rest but the hooks' part of it, which it asks collect_hooks for. Throws Refused.
void collect(const Request& request, Walk& walk);

// Adds the hooks of a call to the walk, and what is to be known of them to its key. Throws Refused.
void collect_hooks(Walk& walk, Call& call);

// What makes Python's objects of hooks inside compiled functions, of (function, dictionary, key).
Owned& inner_hook_type();

// Throws Refused for a function of Python's that must see the engine at work: a hook or a backward.
void check_function(const Walk& walk, PyObject* function);

// What collect_hooks would see, in one number.
uint64_t hooks_signature(Node& node, CallKind kind, uint64_t seed);

// What `retain_grad()` left at an input of a node, as a callable that takes the gradient. New references; throw.
Owned new_retain_grad(const NodePointer& node, uint32_t input);
// A call of a walk, as a callable that takes the gradients. Keeps the walk's object.
Owned new_node_function(PyObject* walk, uint32_t index);

CallKind kind_of(Node& node);

// The node's saved tensors are only those of the inputs from now on, where these are used at this call or later: each
// has the number of the last call that does. And are the node's again.
void lend_saved(const Walk& walk, uint32_t index, const std::vector<int64_t>& last_uses);
void restore_saved(const Walk& walk, const Call& call);

// The call of a node; an IndexError where there is none.
const Call& call_at(const Walk& walk, size_t index);

// What Walk.apply does. Null for saved and sizes leaves those as they are.
variable_list apply_call(const Walk& walk, uint32_t index, variable_list gradients, const variable_list* saved,
                         const std::vector<c10::SymInt>* sizes);

// Where the sizes of one of a node's gradients begin.
size_t first_size_of(const Call& call, uint32_t input);

// Runs it, with the GIL held, as a node of a backward pass of its own, which keeps its graph or not. What it throws comes
// through.
void run_in_task(const std::function<void()>& work, bool keep_graph);

Walk& walk_of(PyObject* object);

// New lists of NodeCall and TensorDescription; throw.
Owned calls_view(const Walk& walk);
Owned tensors_view(const Walk& walk);

// Make the types ready; -1 with an error set on failure.
int ready_walk_views();
int ready_walk_actions();

// The gradients that Python gave, and the way back; throw.
variable_list tensors_of(PyObject* sequence);
Owned tuple_of(variable_list&& tensors);

}  // namespace kiln
