// TensorCheck: is each of these tensors, apart from its data, like the one that was compiled for?
#include "checks/words.h"

#include <algorithm>
#include <new>
#include <numeric>
#include <optional>
#include <vector>

namespace kiln {
namespace {

using Keys = uint64_t;

// What one dimension must look like.
struct Dimension {
  int64_t size = 0;
  int64_t stride = 0;
  bool check_size = true;
  bool check_stride = true;
  // When not -1: the stride is not `stride` but the size times the stride of this dimension. Only used where some size
  // may vary, since then the strides of the dimensions outside vary with it and yet the layout is the same.
  int inner = -1;
};

// What one tensor must look like. Holds no tensor.
struct Expectation {
  Owned type;
  Keys keys = 0;
  at::ScalarType dtype = at::ScalarType::Undefined;
  c10::Device device = c10::kCPU;
  at::Layout layout = at::kStrided;
  bool requires_grad = false;
  // False for tensors such as nested ones that have no sizes; nothing can be promised about those, so they never match.
  bool has_sizes = true;
  bool has_strides = true;
  std::vector<Dimension> dimensions;
};

struct TensorCheck {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  std::vector<Expectation> expectations;
};

PyTypeObject TensorCheckType = {PyVarObject_HEAD_INIT(nullptr, 0)};

TensorCheck* cast(PyObject* object) { return reinterpret_cast<TensorCheck*>(object); }

// ---- comparing ---------------------------------------------------------------------------------------------------

// Everything but sizes and strides. The Python type was compared before this: it is what makes unpacking safe.
bool same_kind(const Expectation& expected, const c10::TensorImpl& seen) {
  return seen.key_set().raw_repr() == expected.keys && c10::typeMetaToScalarType(seen.dtype()) == expected.dtype &&
         seen.requires_grad() == expected.requires_grad && seen.device() == expected.device &&
         seen.layout() == expected.layout;
}

// The stride a dimension must have, where it is known; symbolic sizes of a traced tensor are not.
std::optional<int64_t> wanted_stride(const Dimension& dimension, c10::SymIntArrayRef sizes,
                                     c10::SymIntArrayRef strides) {
  if (dimension.inner < 0) return dimension.stride;
  auto size = sizes[dimension.inner].maybe_as_int();
  auto stride = strides[dimension.inner].maybe_as_int();
  if (!size || !stride) return std::nullopt;
  return std::max<int64_t>(*size, 1) * *stride;
}

bool same_sizes(const Expectation& expected, c10::SymIntArrayRef sizes) {
  if (sizes.size() != expected.dimensions.size()) return false;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const Dimension& dimension = expected.dimensions[i];
    if (dimension.check_size && sizes[i].maybe_as_int() != dimension.size) return false;
  }
  return true;
}

// The first dimension whose stride is not as it must be, or -1.
int first_wrong_stride(const Expectation& expected, c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides) {
  for (size_t i = 0; i < strides.size(); ++i) {
    const Dimension& dimension = expected.dimensions[i];
    if (!dimension.check_stride) continue;
    auto wanted = wanted_stride(dimension, sizes, strides);
    if (!wanted || strides[i].maybe_as_int() != *wanted) return static_cast<int>(i);
  }
  return -1;
}

bool matches(const Expectation& expected, PyObject* object) {
  if (reinterpret_cast<PyObject*>(Py_TYPE(object)) != expected.type.get() || !expected.has_sizes) return false;
  const c10::TensorImpl& seen = *tensor_in(object).unsafeGetTensorImpl();
  if (!same_kind(expected, seen)) return false;
  c10::SymIntArrayRef sizes = seen.sym_sizes();
  if (!same_sizes(expected, sizes)) return false;
  return !expected.has_strides || first_wrong_stride(expected, sizes, seen.sym_strides()) < 0;
}

// Tensor subclasses may answer questions in Python and raise. An ordinary error means "no match"; true when it was one.
bool swallow_error() {
  if (!restore_python_error()) return true;
  if (!error_is_ordinary()) return false;
  PyErr_Clear();
  return true;
}

bool right_count(const TensorCheck* self, Py_ssize_t given) {
  if (given == static_cast<Py_ssize_t>(self->expectations.size())) return true;
  PyErr_Format(PyExc_TypeError, "%zu tensors are checked, %zd were given", self->expectations.size(), given);
  return false;
}

PyObject* call(PyObject* object, PyObject* const* arguments, size_t count, PyObject* names) {
  const TensorCheck* self = cast(object);
  if (names && PyTuple_GET_SIZE(names)) {
    PyErr_SetString(PyExc_TypeError, "a TensorCheck takes no keyword arguments");
    return nullptr;
  }
  if (!right_count(self, PyVectorcall_NARGS(count))) return nullptr;
  int answer = tensors_match(object, arguments, PyVectorcall_NARGS(count));
  return answer < 0 ? nullptr : PyBool_FromLong(answer);
}

// ---- explaining --------------------------------------------------------------------------------------------------

// Without C++ streams: an extension built with another libstdc++ than torch's crashes in them.
std::string print(const c10::SymInt& value) {
  auto number = value.maybe_as_int();
  return number ? std::to_string(*number) : "a symbolic number";
}

std::string type_name(PyObject* type) { return reinterpret_cast<PyTypeObject*>(type)->tp_name; }
std::string truth(bool value) { return value ? "True" : "False"; }

std::string layout_name(at::Layout layout) {
  switch (layout) {
    case at::kStrided: return "strided";
    case at::kSparse: return "sparse";
    case at::kSparseCsr: return "sparse_csr";
    case at::kSparseCsc: return "sparse_csc";
    case at::kSparseBsr: return "sparse_bsr";
    case at::kSparseBsc: return "sparse_bsc";
    case at::kMkldnn: return "mkldnn";
    case at::kJagged: return "jagged";
    default: return "layout " + std::to_string(static_cast<int>(layout));
  }
}

bool keys_of_inference(Keys keys) {
  auto set = c10::DispatchKeySet::from_raw_repr(keys);
  return !set.has_any(c10::autograd_dispatch_keyset) && !set.has(c10::DispatchKey::ADInplaceOrView);
}

// In the order of importance to a reader; empty when nothing differs.
std::string explain_kind(const Expectation& expected, const c10::TensorImpl& seen, const std::string& name) {
  auto dtype = c10::typeMetaToScalarType(seen.dtype());
  if (dtype != expected.dtype) return mismatch(name + " dtype", dtype_name(expected.dtype), dtype_name(dtype));
  if (seen.device() != expected.device) return mismatch(name + " device", expected.device.str(), seen.device().str());
  if (seen.layout() != expected.layout) {
    return mismatch(name + " layout", layout_name(expected.layout), layout_name(seen.layout()));
  }
  if (seen.requires_grad() != expected.requires_grad) {
    return mismatch(name + " requires_grad", truth(expected.requires_grad), truth(seen.requires_grad()));
  }
  Keys keys = seen.key_set().raw_repr();
  if (keys == expected.keys) return "";
  auto wanted_set = c10::DispatchKeySet::from_raw_repr(expected.keys);
  for (auto [key, word] : {std::pair{c10::DispatchKey::Conjugate, " is_conj"}, {c10::DispatchKey::Negative, " is_neg"}}) {
    bool wanted = wanted_set.has(key);
    if (seen.key_set().has(key) != wanted) return mismatch(name + word, truth(wanted), truth(!wanted));
  }
  bool inference = keys_of_inference(expected.keys);
  if (keys_of_inference(keys) != inference) {
    return mismatch(name + " is_inference", truth(inference), truth(!inference));
  }
  return mismatch(name + " dispatch keys", c10::toString(wanted_set), c10::toString(seen.key_set()));
}

std::string explain_shape(const Expectation& expected, const c10::TensorImpl& seen, const std::string& name) {
  c10::SymIntArrayRef sizes = seen.sym_sizes();
  if (sizes.size() != expected.dimensions.size()) {
    return mismatch(name + " rank", std::to_string(expected.dimensions.size()), std::to_string(sizes.size()));
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    const Dimension& dimension = expected.dimensions[i];
    if (!dimension.check_size || sizes[i].maybe_as_int() == dimension.size) continue;
    return mismatch(name + " size " + std::to_string(i), std::to_string(dimension.size), print(sizes[i]));
  }
  if (!expected.has_strides) return "";
  c10::SymIntArrayRef strides = seen.sym_strides();
  int wrong = first_wrong_stride(expected, sizes, strides);
  if (wrong < 0) return "";
  auto wanted = wanted_stride(expected.dimensions[wrong], sizes, strides);
  return mismatch(name + " stride " + std::to_string(wrong), wanted ? std::to_string(*wanted) : "a known number",
                  print(strides[wrong]));
}

std::string explain(const Expectation& expected, PyObject* object, const std::string& name) {
  auto* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
  if (type != expected.type.get()) {
    std::string wanted = type_name(expected.type.get());
    std::string seen = type_name(type);
    return mismatch(name + " type", wanted, seen == wanted ? "another class of that name" : seen);
  }
  try {
    const c10::TensorImpl& seen = *tensor_in(object).unsafeGetTensorImpl();
    std::string words = explain_kind(expected, seen, name);
    if (!words.empty()) return words;
    if (!expected.has_sizes) return name + " sizes: they cannot be read, so nothing can be compiled for them";
    return explain_shape(expected, seen, name);
  } catch (...) {
    if (!swallow_error()) throw PythonError();
    return name + ": its properties cannot be read";
  }
}

PyObject* reason(PyObject* object, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  const TensorCheck* self = cast(object);
  if (count < 1) return PyErr_Format(PyExc_TypeError, "reason(names, *tensors) needs the names");
  if (!right_count(self, count - 1)) return nullptr;
  Owned names(PySequence_Fast(arguments[0], "reason(names, *tensors): names must be a sequence of str"));
  if (!names) return nullptr;
  if (PySequence_Fast_GET_SIZE(names.get()) != count - 1) {
    return PyErr_Format(PyExc_TypeError, "reason(names, *tensors) needs one name for each tensor");
  }
  for (Py_ssize_t i = 0; i < count - 1; ++i) {
    const char* name = PyUnicode_AsUTF8(PySequence_Fast_GET_ITEM(names.get(), i));
    if (!name) return nullptr;
    std::string words = explain(self->expectations[i], arguments[i + 1], name);
    if (!words.empty()) return PyUnicode_FromString(words.c_str());
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// Adds (index, dimension) for each size of one tensor that differs, given that all else but the strides agrees.
bool add_mismatches(const Expectation& expected, PyObject* object, Py_ssize_t index, PyObject* found) {
  if (reinterpret_cast<PyObject*>(Py_TYPE(object)) != expected.type.get() || !expected.has_sizes) return true;
  const c10::TensorImpl& seen = *tensor_in(object).unsafeGetTensorImpl();
  if (!same_kind(expected, seen)) return true;
  c10::SymIntArrayRef sizes = seen.sym_sizes();
  if (sizes.size() != expected.dimensions.size()) return true;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const Dimension& dimension = expected.dimensions[i];
    if (!dimension.check_size || sizes[i].maybe_as_int() == dimension.size) continue;
    Owned pair(Py_BuildValue("nn", index, static_cast<Py_ssize_t>(i)));
    if (!pair || PyList_Append(found, pair.get()) < 0) return false;
  }
  return true;
}

PyObject* mismatches(PyObject* object, PyObject* const* arguments, Py_ssize_t count) {
  const TensorCheck* self = cast(object);
  if (!right_count(self, count)) return nullptr;
  Owned found(PyList_New(0));
  if (!found) return nullptr;
  for (Py_ssize_t i = 0; i < count; ++i) {
    try {
      if (!add_mismatches(self->expectations[i], arguments[i], i, found.get())) return nullptr;
    } catch (...) {
      if (!swallow_error()) return nullptr;
    }
  }
  return found.release();
}

// ---- construction ------------------------------------------------------------------------------------------------

void read_sizes(Expectation& expected, const c10::TensorImpl& tensor) {
  c10::SymIntArrayRef sizes = tensor.sym_sizes();
  expected.dimensions.resize(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    auto size = sizes[i].maybe_as_int();
    expected.dimensions[i].check_size = size.has_value();
    expected.dimensions[i].size = size.value_or(0);
  }
}

void read_strides(Expectation& expected, const c10::TensorImpl& tensor) {
  c10::SymIntArrayRef strides = tensor.sym_strides();
  for (size_t i = 0; i < strides.size(); ++i) {
    auto stride = strides[i].maybe_as_int();
    expected.dimensions[i].check_stride = stride.has_value();
    expected.dimensions[i].stride = stride.value_or(0);
  }
}

// Runs something that a kind of tensor may not support; false when it does not. Rethrows what is not an ordinary error.
template <class Action>
bool supports(Action action) {
  try {
    action();
    return true;
  } catch (...) {
    if (!swallow_error()) throw PythonError();
    return false;
  }
}

// The dimension that lies directly inside `outer`: walking outwards by stride, the nearest one that ends where `outer`
// starts. -1 when there is none, as for a slice.
int find_inner(const std::vector<Dimension>& dimensions, const std::vector<int>& outwards, size_t position) {
  int64_t stride = dimensions[outwards[position]].stride;
  for (size_t i = position; i-- > 0;) {
    const Dimension& candidate = dimensions[outwards[i]];
    if (std::max<int64_t>(candidate.size, 1) * candidate.stride == stride) return outwards[i];
  }
  return -1;
}

void relate_strides(std::vector<Dimension>& dimensions) {
  std::vector<int> outwards(dimensions.size());
  std::iota(outwards.rbegin(), outwards.rend(), 0);  // of equal strides, the last dimension is the inner one
  std::stable_sort(outwards.begin(), outwards.end(),
                   [&](int a, int b) { return dimensions[a].stride < dimensions[b].stride; });
  for (size_t i = 1; i < outwards.size(); ++i) {
    dimensions[outwards[i]].inner = find_inner(dimensions, outwards, i);
  }
}

// Marks the sizes that may vary; false with an error set when `dynamic` does not fit the tensor.
bool apply_dynamic(Expectation& expected, PyObject* dynamic) {
  if (dynamic == Py_None) return true;
  Owned flags(PySequence_Fast(dynamic, "dynamic_dims must be a sequence of bool or None"));
  if (!flags) return false;
  size_t rank = expected.dimensions.size();
  if (PySequence_Fast_GET_SIZE(flags.get()) != static_cast<Py_ssize_t>(rank)) {
    PyErr_Format(PyExc_TypeError, "dynamic_dims has %zd items for a tensor of rank %zu",
                 PySequence_Fast_GET_SIZE(flags.get()), rank);
    return false;
  }
  for (size_t i = 0; i < rank; ++i) {
    int flag = PyObject_IsTrue(PySequence_Fast_GET_ITEM(flags.get(), i));
    if (flag < 0) return false;
    if (flag) expected.dimensions[i].check_size = false;
  }
  return true;
}

std::optional<Expectation> describe(PyObject* object, PyObject* dynamic, bool check_strides) {
  const at::Tensor& tensor = tensor_in(object);
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  Expectation expected;
  expected.type = share(reinterpret_cast<PyObject*>(Py_TYPE(object)));
  expected.keys = impl.key_set().raw_repr();
  expected.dtype = c10::typeMetaToScalarType(impl.dtype());
  expected.device = impl.device();
  expected.layout = impl.layout();
  expected.requires_grad = impl.requires_grad();
  expected.has_sizes = supports([&] { read_sizes(expected, impl); });
  if (!expected.has_sizes) return expected;
  if (!apply_dynamic(expected, dynamic)) return std::nullopt;
  expected.has_strides = check_strides && expected.layout == at::kStrided &&
                         supports([&] { read_strides(expected, impl); });
  auto& dimensions = expected.dimensions;
  bool varies = std::any_of(dimensions.begin(), dimensions.end(), [](auto& each) { return !each.check_size; });
  if (expected.has_strides && varies) relate_strides(dimensions);
  return expected;
}

bool add_expectation(TensorCheck* self, PyObject* description) {
  PyObject *tensor, *dynamic;
  int check_strides;
  if (!PyTuple_Check(description)) {
    PyErr_SetString(PyExc_TypeError, "a description is a tuple (tensor, dynamic_dims, check_strides)");
    return false;
  }
  if (!PyArg_ParseTuple(description, "OOp:TensorCheck", &tensor, &dynamic, &check_strides)) return false;
  if (!is_tensor(tensor) || !tensor_in(tensor).defined()) {
    PyErr_Format(PyExc_TypeError, "a TensorCheck describes tensors, not %.200s", Py_TYPE(tensor)->tp_name);
    return false;
  }
  auto expected = describe(tensor, dynamic, check_strides);
  if (!expected) return false;
  self->expectations.push_back(std::move(*expected));
  return true;
}

PyObject* create(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  HANDLE_TH_ERRORS
  static const char* names[] = {"descriptions", nullptr};
  PyObject* descriptions;
  if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:TensorCheck", const_cast<char**>(names), &descriptions)) {
    return nullptr;
  }
  // A copy, since reading a subclass may run Python that changes the list.
  Owned items(PySequence_Tuple(descriptions));
  if (!items) return nullptr;
  Owned object(type->tp_alloc(type, 0));
  if (!object) return nullptr;
  TensorCheck* self = cast(object.get());
  self->vectorcall = call;
  new (&self->expectations) std::vector<Expectation>();
  self->expectations.reserve(static_cast<size_t>(PyTuple_GET_SIZE(items.get())));
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items.get()); ++i) {
    if (!add_expectation(self, PyTuple_GET_ITEM(items.get(), i))) return nullptr;
  }
  return object.release();
  END_HANDLE_TH_ERRORS
}

int traverse(PyObject* object, visitproc visit, void* arg) {
  for (const Expectation& expected : cast(object)->expectations) Py_VISIT(expected.type.get());
  return 0;
}

int clear(PyObject* object) {
  // Moved out first: releasing a class may run code that calls this check again.
  std::vector<Expectation> released = std::move(cast(object)->expectations);
  return 0;
}

void deallocate(PyObject* object) {
  PyObject_GC_UnTrack(object);
  cast(object)->expectations.~vector();
  Py_TYPE(object)->tp_free(object);
}

Py_ssize_t length(PyObject* object) { return static_cast<Py_ssize_t>(cast(object)->expectations.size()); }

PyMethodDef methods[] = {
    {"reason", method(reason), METH_FASTCALL,
     "reason(names, *tensors) -> str | None: the first difference, in words."},
    {"mismatches", method(mismatches), METH_FASTCALL,
     "mismatches(*tensors) -> list[tuple[int, int]]: (tensor, dimension) of each size that alone differs."},
    {nullptr, nullptr, 0, nullptr}};

PySequenceMethods sequence = {};

}  // namespace

PyObject* stored_gradient(PyObject* object) {
  if (!is_tensor(object)) return nullptr;
  const c10::TensorImpl* impl = tensor_in(object).unsafeGetTensorImpl();  // which does not warn, as a tensor does
  return guarded([&] { return tensor_object(impl->grad()); });
}

int tensors_match(PyObject* tensor_check, PyObject* const* objects, size_t count) {
  const auto& expectations = cast(tensor_check)->expectations;
  if (expectations.size() != count) return 0;  // the garbage collector has emptied it
  try {
    for (const Expectation& expected : expectations) {
      if (!matches(expected, *objects++)) return 0;
    }
  } catch (...) {
    return swallow_error() ? 0 : -1;
  }
  return 1;
}

int add_tensor_check(PyObject* module) {
  if (PyModule_AddStringConstant(module, "TORCH_VERSION", platform::kTorchVersion) < 0) return -1;
  PyTypeObject& type = TensorCheckType;
  sequence.sq_length = length;
  type.tp_name = "kiln._native.TensorCheck";
  type.tp_doc = "TensorCheck(descriptions): check(*tensors) tells whether they are like those described.";
  type.tp_basicsize = sizeof(TensorCheck);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  type.tp_vectorcall_offset = offsetof(TensorCheck, vectorcall);
  type.tp_new = create;
  type.tp_dealloc = deallocate;
  type.tp_traverse = traverse;
  type.tp_clear = clear;
  type.tp_call = PyVectorcall_Call;
  type.tp_as_sequence = &sequence;
  type.tp_methods = methods;
  return PyModule_AddType(module, &type);
}

}  // namespace kiln
