// New contents of tensors that a program changed, but did not write itself: many at once.
#include "program/program.h"
#include "program/recorded_call.h"

#include <ATen/ops/_foreach_copy.h>

#include <cstring>
#include <vector>

namespace kiln {
namespace {

constexpr size_t most_bytes_at_once = 1 << 14;  // of a tensor that one thread copies

// Whether a tensor on the CPU is nothing but its elements, all of which are in its storage, without holes.
bool is_plain_block(const at::Tensor& tensor) {
  constexpr c10::DispatchKeySet plain({c10::DispatchKey::CPU, c10::DispatchKey::ADInplaceOrView,
                                       c10::DispatchKey::AutogradCPU, c10::DispatchKey::AutocastCPU});
  if ((tensor.key_set() | plain) != plain || !tensor.is_cpu() || tensor.layout() != at::kStrided) return false;
  if (!tensor.has_storage() || !tensor.is_non_overlapping_and_dense()) return false;
  const size_t end = static_cast<size_t>(tensor.storage_offset() + tensor.numel()) * tensor.element_size();
  return tensor.nbytes() <= most_bytes_at_once && end <= tensor.storage().nbytes();
}

bool is_same_block(const at::Tensor& target, const at::Tensor& content) {
  return target.scalar_type() == content.scalar_type() && target.sizes() == content.sizes() &&
         target.strides() == content.strides() && is_plain_block(target) && is_plain_block(content);
}

// Copies what needs more than moving a few bytes.
class Copies {
 public:
  void add(const at::Tensor& target, const at::Tensor& content) {
    const bool on_one_gpu = target.is_cuda() && content.is_cuda() && target.device() == content.device();
    auto& [targets, contents] = on_one_gpu ? on_gpu_ : others_;
    targets.push_back(target.variable_data());
    contents.push_back(content);
  }

  void run() {
    if (on_gpu_.first.empty() && others_.first.empty()) return;
    WithoutGil no_gil;
    for (size_t i = 0; i < others_.first.size(); ++i) others_.first[i].copy_(others_.second[i]);
    if (on_gpu_.first.size() == 1) {
      on_gpu_.first[0].copy_(on_gpu_.second[0]);
    } else if (!on_gpu_.first.empty()) {
      at::_foreach_copy_(on_gpu_.first, on_gpu_.second);
    }
  }

 private:
  using Pairs = std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>>;
  Pairs on_gpu_, others_;
};

PyObject* set_contents(PyObject*, PyObject* const* given, Py_ssize_t count) {
  if (count != 2 || !PyTuple_Check(given[0]) || !PyTuple_Check(given[1]) ||
      PyTuple_GET_SIZE(given[0]) != PyTuple_GET_SIZE(given[1])) {
    PyErr_SetString(PyExc_TypeError, "set_contents(tensors, contents): two tuples of one length expected");
    return nullptr;
  }
  return guarded([&]() -> PyObject* {
    const bool watched = any_modes();
    Copies copies;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(given[0]); ++i) {
      PyObject *first = PyTuple_GET_ITEM(given[0], i), *second = PyTuple_GET_ITEM(given[1], i);
      TORCH_CHECK_TYPE(is_tensor(first) && is_tensor(second), "set_contents: tensors expected");
      const at::Tensor &target = tensor_in(first), &content = tensor_in(second);
      if (watched || !is_same_block(target, content)) {
        copies.add(target, content);
      } else if (target.numel() != 0) {
        std::memmove(target.mutable_data_ptr(), content.const_data_ptr(), target.nbytes());
      }
    }
    copies.run();
    Py_RETURN_NONE;
  });
}

PyMethodDef contents_functions[] = {
    {"set_contents", method(set_contents), METH_FASTCALL,
     "set_contents(tensors, contents): what each tensor of a tuple holds, without its version being counted."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_contents(PyObject* module) { return PyModule_AddFunctions(module, contents_functions); }

}  // namespace kiln
