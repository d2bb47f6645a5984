// What each call of a walk depends on: the key, the sizes and the tensors.
#include "autograd/saved_values.h"
#include "platform/dispatch.h"
#include "platform/saved_variable.h"
#include "walk/walk.h"

#include <algorithm>
#include <typeinfo>

namespace kiln {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

// Dense tensors on a CPU or a CUDA device that nothing else wants to see.
uint64_t plain_keys() {
  DispatchKeySet keys;
  for (DispatchKey key : {DispatchKey::CPU, DispatchKey::CUDA, DispatchKey::AutogradCPU, DispatchKey::AutogradCUDA,
                          DispatchKey::AutocastCPU, DispatchKey::AutocastCUDA, DispatchKey::ADInplaceOrView}) {
    keys = keys | DispatchKeySet(key);
  }
  return keys.raw_repr();
}

bool has_tangent(const at::Tensor& tensor) {
  auto* meta = platform::get_autograd_meta(tensor);
  return meta && meta->fw_grad_ && !meta->fw_grad_->empty();
}

void check_plain(const at::Tensor& tensor) {
  static const uint64_t plain = plain_keys();
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  if (impl->key_set().raw_repr() & ~plain) throw Refused{"a tensor that is not a plain dense one"};
  if (impl->is_inference()) throw Refused{"an inference tensor"};
  if (!impl->has_storage() || impl->has_symbolic_sizes_strides()) {
    throw Refused{"a tensor without storage or with symbolic sizes"};
  }
  if (has_tangent(tensor)) throw Refused{"a tensor with a forward-mode gradient"};
}

// The strides of torch.empty(sizes).
bool is_exactly_contiguous(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  int64_t expected = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (strides[i] != expected) return false;
    expected *= std::max<int64_t>(sizes[i], 1);
  }
  return true;
}

// From the outermost to the innermost dimension, where the strides are exactly those of a tensor transposed so.
bool find_permutation(c10::IntArrayRef sizes, c10::IntArrayRef strides, uint8_t* order) {
  size_t count = sizes.size();
  for (size_t i = 0; i < count; ++i) order[i] = static_cast<uint8_t>(i);
  // Of two with one stride, the inner one has size 1.
  std::stable_sort(order, order + count, [&](uint8_t left, uint8_t right) {
    return strides[left] != strides[right] ? strides[left] > strides[right] : sizes[left] > sizes[right];
  });
  int64_t expected = 1;
  for (size_t i = count; i-- > 0;) {
    if (strides[order[i]] != expected) return false;
    expected *= std::max<int64_t>(sizes[order[i]], 1);
  }
  return true;
}

// Whether hooks of the program's packed something that a node keeps. Throws Refused for hooks that must see the engine.
class PackedFinder : public SavedVisitor {
 public:
  explicit PackedFinder(const Walk& walk) : walk_(walk) {}

  bool has_packed(const Call& call) {
    if (call.kind == CallKind::builtin) {
      visit_saved(*call.node, *this);
    } else if (call.kind == CallKind::kiln) {
      auto saved = static_cast<GradNode&>(*call.node).saved();
      for (size_t i = 0; saved && i < saved->size(); ++i) look_at((*saved)[i]);
    }
    return found_;
  }

  void variable(SavedVariable& variable) override { look_at(variable); }
  void tensor(at::Tensor&) override {}
  void size(c10::SymInt&) override {}
  void constant(std::string_view) override {}

 private:
  void look_at(const SavedVariable& variable) {
    if (!variable.has_hooks()) return;
    found_ = true;
    auto hook = variable.retrieve_unpack_hook_data();
    if (hook) check_function(walk_, hook->first.ptr(&hook->first.pyinterpreter()));
  }

  const Walk& walk_;
  bool found_ = false;
};

// A tensor that was an input of the operation, and whose history is gone since: a node refuses to use it.
void check_attached(const SavedVariable& variable, const at::Tensor& tensor) {
  bool is_input = tensor.defined() && platform::keeps_original(variable) && !platform::was_leaf(variable);
  if (is_input && !tensor.grad_fn()) throw Refused{"a saved tensor was detached in place"};
}

class Collector : public SavedVisitor {
 public:
  Collector(const Request& request, Walk& walk, PointerMap& tensors, PointerMap& storages)
      : request_(request), walk_(walk), key_(walk.key), tensors_(tensors), storages_(storages) {
    tensors_.clear();
    storages_.clear();
    key_.reserve(64 * walk.calls.size());
    walk_.sizes.reserve(6 * walk.calls.size());
    walk_.saved.reserve(walk.calls.size());
  }

  void run() {
    walk_.is_partial = !request_.outputs.empty();
    key_.byte(request_.accumulate);
    for (Call& call : walk_.calls) collect_call(call);
    for (const void* storage : grad_storages_) {
      if (!storages_.insert(storage).second) throw Refused{"a gradient shares memory with another tensor"};
    }
  }

  // ---- what a node keeps ----

  void variable(SavedVariable& variable) override {
    if (variable.has_hooks()) {
      walk_.has_saved_tensor_hooks = true;
      throw Refused{"saved-tensor hooks"};
    }
    at::Tensor tensor = variable.unpack(call_->node);
    check_attached(variable, tensor);
    add_saved(tensor);
  }
  void tensor(at::Tensor& tensor) override { add_saved(tensor); }
  void size(c10::SymInt& size) override {
    key_.byte('s');
    walk_.saved_sizes.push_back(static_cast<uint32_t>(walk_.sizes.size()));
    add_size(size);
  }
  void constant(std::string_view bytes) override {
    key_.byte('c');
    key_.text(bytes);
  }

 private:
  void collect_call(Call& call) {
    call_ = &call;
    // Unpacked when it runs, as in eager: what comes of that is not known before.
    if (walk_.has_saved_tensor_hooks && call.needed && PackedFinder(walk_).has_packed(call)) call.kind = CallKind::custom;
    key_.byte(static_cast<uint8_t>(static_cast<uint8_t>(call.kind) | call.needed << 3 | call.captured << 4));
    collect_edges(call);
    call.saved.first = static_cast<uint32_t>(walk_.saved.size());
    call.saved_sizes.first = static_cast<uint32_t>(walk_.saved_sizes.size());
    if (call.kind == CallKind::root) {
      for (const at::Tensor& gradient : request_.gradients) add_saved(gradient);
    } else {
      key_.pointer(&typeid(*call.node));
      collect_metadata(call);
      collect_hooks(walk_, call);
      if (call.captured) collect_captures(call);
      if (call.needed) collect_kept(call);
    }
    call.saved.count = static_cast<uint32_t>(walk_.saved.size()) - call.saved.first;
    call.saved_sizes.count = static_cast<uint32_t>(walk_.saved_sizes.size()) - call.saved_sizes.first;
  }

  void collect_edges(const Call& call) {
    key_.number(call.edges.count);
    for (uint32_t i = 0; i < call.edges.count; ++i) {
      const CallEdge& edge = walk_.edges[call.edges.first + i];
      key_.number(edge.call == kNone ? 0 : edge.call);
      if (edge.call != kNone) key_.number(edge.input);
    }
  }

  void collect_captures(const Call& call) {
    auto index = static_cast<uint32_t>(&call - walk_.calls.data());
    for (const Capture& capture : walk_.captures) {
      if (capture.call != index) continue;
      key_.number(capture.input + 1);
      key_.number(capture.output);
    }
    key_.number(0);
  }

  void collect_metadata(Call& call) {
    call.first_size = static_cast<uint32_t>(walk_.sizes.size());
    uint32_t count = call.node->num_inputs();
    key_.number(count);
    for (uint32_t i = 0; i < count; ++i) {
      const auto& metadata = call.node->input_metadata(i);
      if (metadata.was_default_constructed()) {
        key_.byte(0xff);
        continue;
      }
      if (metadata.is_tensor_subclass() || metadata.is_nested_tensor() || metadata.layout() != at::kStrided) {
        throw Refused{"a gradient that is not a plain dense tensor"};
      }
      if (!metadata.device().is_cpu()) check_stream(metadata.stream());
      auto shape = metadata.shape_as_dim_vector();
      key_.byte(static_cast<uint8_t>(shape.size()));
      auto cast_to = metadata.grad_dtype();
      add_kind(c10::typeMetaToScalarType(metadata.dtype()), metadata.device());
      key_.byte(cast_to ? static_cast<uint8_t>(*cast_to) : 0xff);
      for (const c10::SymInt& size : shape) add_size(size);
    }
  }

  // The engine runs each node in the stream that its forward ran in.
  static void check_stream(c10::Stream stream) {
    platform::DeviceGuard guard(stream.device_type());
    if (guard.getStream(stream.device()) != stream) throw Refused{"a stream that is not the current one"};
  }

  void collect_kept(Call& call) {
    Node& node = *call.node;
    switch (call.kind) {
      case CallKind::accumulate:
        collect_variable(call, static_cast<platform::AccumulateGrad&>(node));
        break;
      case CallKind::python: {
        Owned object(platform::node_object(call.node));
        if (!object) raise();
        check_backward(object.get());
        key_.pointer(Py_TYPE(object.get()));
        walk_.classes.push_back(share(reinterpret_cast<PyObject*>(Py_TYPE(object.get()))));
        break;
      }
      case CallKind::kiln: {
        collect_compiled(static_cast<GradNode&>(node));
        break;
      }
      case CallKind::custom:
        // Called as it is, whatever it keeps.
        break;
      default:
        call.known = visit_saved(node, *this) || dynamic_cast<KeepsNothing*>(&node);
        if (!call.known) throw Refused{"what " + node.name() + " keeps is not known"};
    }
  }

  void collect_compiled(const GradNode& node) {
    if (!node.context()) throw Refused{"a freed node"};
    key_.pointer(node.backward());
    walk_.classes.push_back(share(node.backward()));
    auto saved = node.saved();
    key_.number(saved ? saved->size() : 0);
    for (size_t i = 0; saved && i < saved->size(); ++i) variable(const_cast<SavedVariable&>((*saved)[i]));
    Owned numbers(PyObject_GetAttrString(node.context(), "numbers"));
    if (!numbers || !PyTuple_Check(numbers.get())) throw Refused{"a node of Kiln's without numbers"};
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(numbers.get()); ++i) {
      PyObject* number = PyTuple_GET_ITEM(numbers.get(), i);
      if (!PyLong_CheckExact(number)) throw Refused{"a saved number that is no int"};
      int64_t value = PyLong_AsLongLong(number);
      if (PyErr_Occurred()) raise();
      c10::SymInt symbol(value);
      size(symbol);
    }
  }

  void collect_variable(Call& call, platform::AccumulateGrad& node) {
    const at::Tensor& variable = node.variable;
    if (!variable.defined() || !variable.is_leaf()) throw Refused{"a leaf that is no leaf any more"};
    if (!is_like(variable, node.input_metadata(0))) throw Refused{"a leaf changed its shape or dtype"};
    call.variable = slot_of(variable);
    const at::Tensor& grad = variable.grad();
    call.has_grad = grad.defined();
    key_.byte(call.has_grad);
    if (!call.has_grad) return;
    check_plain(grad);
    check_class(grad);
    describe(grad);
    grad_storages_.push_back(storage_of(grad));
  }

  void check_backward(PyObject* context) const {
    static PyObject* names[] = {PyUnicode_InternFromString("_forward_cls"), PyUnicode_InternFromString("backward"),
                                PyUnicode_InternFromString("vjp")};
    Owned forward(PyObject_GetAttr(reinterpret_cast<PyObject*>(Py_TYPE(context)), names[0]));
    for (PyObject* name : {names[1], names[2]}) {
      Owned function(forward ? PyObject_GetAttr(forward.get(), name) : nullptr);
      if (function) check_function(walk_, function.get());
    }
    PyErr_Clear();
  }

  static void check_class(const at::Tensor& grad) {
    Owned object(tensor_object(grad));
    if (!object) raise();
    if (!is_exact_tensor(object.get())) throw Refused{"a gradient of a tensor subclass"};
  }

  static bool is_like(const at::Tensor& variable, const platform::InputMetadata& metadata) {
    return metadata.is_same_shape(variable) && metadata.dtype() == variable.dtype() &&
           metadata.grad_dtype() == variable.scalar_type() && metadata.device() == variable.device();
  }

  // ---- tensors and sizes ----

  void add_size(const c10::SymInt& size) {
    auto value = size.maybe_as_int();
    if (!value) throw Refused{"a symbolic size"};
    walk_.sizes.push_back(*value);
  }

  void add_saved(const at::Tensor& tensor) {
    if (!tensor.defined()) {
      walk_.saved.push_back(kNone);
      return key_.byte(0);
    }
    uint32_t slot = slot_of(tensor);
    walk_.saved.push_back(slot);
    walk_.watched[slot].last_use = static_cast<uint32_t>(call_ - walk_.calls.data());
  }

  uint32_t slot_of(const at::Tensor& tensor) {
    auto [slot, is_new] = tensors_.insert(tensor.unsafeGetTensorImpl());
    key_.number(slot + 1);
    if (!is_new) return slot;
    check_plain(tensor);
    // Which tensors share memory decides what a change in place means.
    key_.number(storages_.insert(storage_of(tensor)).first);
    walk_.slots.push_back(describe(tensor));
    if (walk_.slots.back().is_number) add_number(walk_.slots.back(), tensor);
    walk_.tensors.push_back(tensor);
    const c10::VariableVersion& version = tensor.unsafeGetTensorImpl()->version_counter();
    walk_.watched.push_back({WeakTensor(tensor.getIntrusivePtr()), version, version.current_version()});
    return slot;
  }

  static int64_t bits_of(double value) {
    int64_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
  }

  static const void* storage_of(const at::Tensor& tensor) {
    return tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  }

  void add_kind(at::ScalarType dtype, at::Device device) {
    key_.byte(static_cast<uint8_t>(dtype));
    key_.byte(static_cast<uint8_t>(device.type()));
    key_.byte(static_cast<uint8_t>(device.index()));
  }

  Slot describe(const at::Tensor& tensor) {
    const c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    auto sizes = impl->sizes();
    auto strides = impl->strides();
    if (sizes.size() > 64) throw Refused{"a tensor of more than 64 dimensions"};
    Slot slot{tensor.scalar_type(),
              tensor.device(),
              static_cast<uint8_t>(sizes.size()),
              tensor.requires_grad(),
              tensor.is_leaf(),
              impl->is_wrapped_number(),
              Slot::Layout::contiguous,
              static_cast<uint32_t>(walk_.sizes.size()),
              0};
    add_kind(slot.dtype, slot.device);
    key_.byte(slot.dimensions);
    walk_.sizes.insert(walk_.sizes.end(), sizes.begin(), sizes.end());
    if (!is_exactly_contiguous(sizes, strides)) describe_strides(slot, sizes, strides);
    key_.byte(static_cast<uint8_t>(static_cast<uint8_t>(slot.layout) | slot.requires_grad << 2 | slot.is_leaf << 3 |
                                   slot.is_number << 4));
    if (slot.layout == Slot::Layout::permuted) {
      key_.text({reinterpret_cast<const char*>(&walk_.permutations[slot.first_stride]), sizes.size()});
    }
    return slot;
  }

  void describe_strides(Slot& slot, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
    uint8_t order[64];
    if (find_permutation(sizes, strides, order)) {
      slot.layout = Slot::Layout::permuted;
      slot.first_stride = static_cast<uint32_t>(walk_.permutations.size());
      walk_.permutations.insert(walk_.permutations.end(), order, order + sizes.size());
    } else {
      slot.layout = Slot::Layout::strided;
      slot.first_stride = static_cast<uint32_t>(walk_.sizes.size());
      walk_.sizes.insert(walk_.sizes.end(), strides.begin(), strides.end());
    }
  }

  // What operators make of a wrapped number depends on its being one, which a graph of tensors does not show: it is a
  // number that may vary, like a size, or a constant.
  void add_number(Slot& slot, const at::Tensor& tensor) {
    if (!tensor.is_cpu()) throw Refused{"a number on a device"};
    slot.number = tensor.item();
    if (slot.number.isComplex()) {
      key_.text({static_cast<const char*>(tensor.const_data_ptr()), static_cast<size_t>(tensor.element_size())});
      return;
    }
    slot.number_place = static_cast<uint32_t>(walk_.sizes.size());
    int64_t bits = slot.number.isFloatingPoint() ? bits_of(slot.number.toDouble()) : slot.number.toLong();
    walk_.sizes.push_back(bits);
  }

  const Request& request_;
  Walk& walk_;
  KeyBytes& key_;
  PointerMap& tensors_;
  PointerMap& storages_;
  std::vector<const void*> grad_storages_;
  const Call* call_ = nullptr;
};

}  // namespace

void collect(const Request& request, Walk& walk) {
  PointerMap tensors, storages;
  Collector(request, walk, tensors, storages).run();
}

}  // namespace kiln
