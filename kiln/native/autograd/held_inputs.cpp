// HeldInputs: what a GradNode keeps of its graph's inputs in order to run the graph again.
#include "autograd/grad_node.h"

#include <algorithm>

namespace kiln {
namespace {

// True where an in-place operation could give the tensor a history.
bool can_require_grad(const at::Tensor& tensor) {
  return platform::isDifferentiableType(c10::typeMetaToScalarType(tensor.unsafeGetTensorImpl()->dtype()));
}

at::Tensor with_edge(const at::Tensor& data, Edge edge) {
  at::Tensor result = without_history(data);
  platform::set_gradient_edge(result, std::move(edge));
  return result;
}

// eager's own error, made by eager: a saved copy that went from the one version to the other.
[[noreturn]] void raise_modified(const at::Tensor& data, const Edge& edge, uint32_t expected, uint32_t seen) {
  at::Tensor copy = edge.function ? with_edge(data, edge) : without_history(data);
  copy.unsafeGetTensorImpl()->set_version_counter(c10::VariableVersion(expected));
  SavedVariable saved(copy, /*is_output=*/false);
  while (expected++ != seen) copy.unsafeGetTensorImpl()->bump_version();
  saved.unpack();
  // With saved-tensor hooks active nothing is compared.
  TORCH_CHECK(false,
              "one of the variables needed for gradient computation has been modified by an inplace operation");
}

}  // namespace

at::Tensor without_history(const at::Tensor& tensor) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  auto copy = impl->shallow_copy_and_detach(impl->version_counter(), /*allow_tensor_metadata_change=*/true);
  copy->set_autograd_meta(nullptr);
  return at::Tensor(std::move(copy));
}

HeldInputs::HeldInputs(PyObject* inputs, const edge_list& edges)
    : values_(Py_NewRef(inputs)), records_(PyTuple_GET_SIZE(inputs)) {
  for (size_t i = 0; i < records_.size(); ++i) records_[i] = hold(PyTuple_GET_ITEM(inputs, i), edges);
  if (copies_.empty()) return;
  PyObject* values = PyTuple_New(PyTuple_GET_SIZE(inputs));
  if (!values) raise();
  for (size_t i = 0; i < records_.size(); ++i) {
    PyTuple_SET_ITEM(values, i, Py_NewRef(records_[i].kind == Kind::copy ? Py_None : PyTuple_GET_ITEM(inputs, i)));
  }
  Py_SETREF(values_, values);
}

HeldInputs::~HeldInputs() {
  if (!Py_IsInitialized()) return;
  Gil gil;
  Py_DECREF(values_);
}

void HeldInputs::hold_copy(const at::Tensor& tensor, Edge edge, const edge_list& edges) {
  auto found = edge.function ? std::find(edges.begin(), edges.end(), edge) : edges.end();
  if (found == edges.end()) {
    copies_.push_back({without_history(tensor), -1, std::move(edge)});
  } else {
    copies_.push_back({without_history(tensor), static_cast<int>(found - edges.begin()), Edge()});
  }
}

HeldInputs::Record HeldInputs::hold(PyObject* value, const edge_list& edges) {
  if (!is_tensor(value)) return {};
  const at::Tensor& tensor = tensor_in(value);
  if (tensor.is_inference()) return {};
  uint32_t version = tensor.unsafeGetTensorImpl()->version_counter().current_version();
  const auto* history = platform::autograd_meta_of(tensor);
  bool requires_grad = history && history->requires_grad();
  if (requires_grad && !history->grad_fn_ && !history->is_view_) return {version, Kind::leaf};
  if (!can_require_grad(tensor)) return {version, Kind::constant};
  hold_copy(tensor, requires_grad ? platform::gradient_edge(tensor) : Edge(), edges);
  return {version, Kind::copy};
}

Owned HeldInputs::linked_at(size_t place, const Copy* copy, const edge_list& edges) const {
  const Record& record = records_[place];
  PyObject* value = PyTuple_GET_ITEM(values_, place);
  if (record.kind == Kind::object) return share(value);
  const at::Tensor& tensor = copy ? copy->data : tensor_in(value);
  uint32_t version = tensor.unsafeGetTensorImpl()->version_counter().current_version();
  if (version != record.version) raise_modified(tensor, copy ? copy->edge(edges) : Edge(), record.version, version);
  if (record.kind == Kind::constant) return share(value);
  Edge edge = copy ? copy->edge(edges) : platform::gradient_edge(tensor);
  if (copy && !edge.function) return Owned(tensor_object(copy->data));
  NodePointer passage = make_node<Passage>(edge_list{std::move(edge)});
  passage->add_input_metadata(tensor);
  return Owned(tensor_object(with_edge(tensor, Edge(std::move(passage), 0))));
}

Owned HeldInputs::linked(const edge_list& edges) const {
  Owned list(PyList_New(static_cast<Py_ssize_t>(records_.size())));
  if (!list) raise();
  auto copy = copies_.begin();
  for (size_t i = 0; i < records_.size(); ++i) {
    Owned value = linked_at(i, records_[i].kind == Kind::copy ? &*copy++ : nullptr, edges);
    if (!value) raise();
    PyList_SET_ITEM(list.get(), i, value.release());
  }
  return list;
}

}  // namespace kiln
