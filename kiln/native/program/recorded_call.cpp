// RecordedCall: one recording of a program (a CUDA graph), and whether it may run for a call. RecordedMemory: the
// results of all recordings that share memory for their intermediate values.
//
//     recorded = RecordedCall(arguments, copied, results, given_out, replay, memory)
//     recorded(arguments) -> results, or None where the recording does not fit or its results are still in use
//
// A recording reads and writes fixed addresses. An argument is at its address, which each call checks, or is copied to
// it. The results of a call are new tensors over the recording's memory, or copies of it (`given_out`). Who still uses
// results of an earlier call is known by the references to their storages. No header of CUDA is needed: `replay` is a
// callable.
#include "program/program.h"

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace kiln {
namespace {

PyTypeObject RecordedMemoryType = {PyVarObject_HEAD_INIT(nullptr, 0)};
PyTypeObject RecordedCallType = {PyVarObject_HEAD_INIT(nullptr, 0)};

// ---- memory --------------------------------------------------------------------------------------------------------

// The storage of results. It must be as it was when it was recorded: users can resize a storage, or hand it to another
// process, which exchanges its context.
struct HeldStorage {
  c10::Storage storage;
  size_t references;  // that recordings themselves have
  const void* data;
  void* context;

  bool is_used() const { return storage && uses_of(storage) > references; }
  bool is_intact() const {
    return !storage || (storage.data() == data && storage.data_ptr().get_context() == context);
  }
};

// In the order in which they were recorded. A recording may write to the memory of results of later ones, which lie
// where its intermediate values are, but not to that of earlier ones.
struct RecordedMemory {
  PyObject_HEAD
  std::vector<HeldStorage> held;
};

RecordedMemory* memory_in(PyObject* object) { return reinterpret_cast<RecordedMemory*>(object); }

bool is_free_from(const RecordedMemory& memory, size_t first) {
  for (size_t i = first; i < memory.held.size(); ++i) {
    if (memory.held[i].is_used() || !memory.held[i].is_intact()) return false;
  }
  return true;
}

// ---- settings ------------------------------------------------------------------------------------------------------

using LibrarySettings = std::array<uint64_t, 17>;

// What decides how operators call libraries. Recorded calls are those for the settings of then.
LibrarySettings library_settings() {
  auto& context = at::globalContext();
  auto precision = [&](at::Float32Op op) { return uint64_t(context.float32Precision(at::Float32Backend::CUDA, op)); };
  return {precision(at::Float32Op::MATMUL),
          precision(at::Float32Op::CONV),
          precision(at::Float32Op::RNN),
          uint64_t(context.allowFP16ReductionCuBLAS()),
          uint64_t(context.allowBF16ReductionCuBLAS()),
          context.allowFP16AccumulationCuBLAS(),
          context.deterministicAlgorithms(),
          context.deterministicCuDNN(),
          context.userEnabledCuDNN(),
          context.benchmarkCuDNN(),
          context.userEnabledFlashSDP(),
          context.userEnabledMathSDP(),
          context.userEnabledMemEfficientSDP(),
          context.userEnabledCuDNNSDP(),
          context.allowFP16BF16ReductionMathSDP(),
          uint64_t(context.linalgPreferredBackend()),
          uint64_t(context.blasPreferredBackend())};
}

// ---- arguments and results -----------------------------------------------------------------------------------------

// The keys that say more of a tensor than who differentiates it.
c10::DispatchKeySet own_keys(const at::Tensor& tensor) {
  return tensor.key_set() - c10::autograd_dispatch_keyset_with_ADInplaceOrView;
}

bool is_dual(const at::Tensor& tensor) {
  auto* meta = platform::get_autograd_meta(tensor);
  return meta && meta->fw_grad_;
}

const void* address_in(const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl()->data(); }

bool is_without_memory(const at::Tensor& tensor) { return tensor.numel() != 0 && tensor.storage().nbytes() == 0; }

struct RecordedInput {
  Owned value;  // what is no tensor has to be equal to this
  at::Tensor copy;  // where the argument is copied to; undefined for one that is at its address
  const void* address = nullptr;
  std::vector<int64_t> sizes, strides;
  c10::DispatchKeySet keys;
  at::ScalarType dtype = at::ScalarType::Undefined;
  c10::Device device{c10::DeviceType::CPU};

  bool is_alike(const at::Tensor& tensor) const {
    return tensor.defined() && own_keys(tensor) == keys && tensor.scalar_type() == dtype && tensor.device() == device &&
           tensor.sizes() == sizes && tensor.strides() == strides && !is_dual(tensor) && !is_without_memory(tensor);
  }
};

// How a result is made when a recording has run.
enum class Source : uint8_t { value, argument, view_of_argument, memory, copy };

struct RecordedResult {
  Source source = Source::value;
  Owned value;
  at::Tensor tensor;  // over the recording's memory
  size_t place = 0;  // of the argument; or of the first result with the same tensor
  size_t counter = 0;  // the first result that has the same storage: they share a version counter
  int64_t offset = 0;  // of a view, in bytes from where the argument begins
};

struct RecordedCall {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  std::vector<RecordedInput> inputs;
  std::vector<RecordedResult> results;
  Owned replay;
  Owned memory;
  size_t first;  // of its own storages in the memory
  size_t last;  // one after them
  bool is_running;
  bool is_inference;
  LibrarySettings settings;
};

RecordedCall* recording_in(PyObject* object) { return reinterpret_cast<RecordedCall*>(object); }

// ---- does it fit? --------------------------------------------------------------------------------------------------

bool is_equal_number(PyObject* given, PyObject* recorded) {
  if (given == recorded) return true;
  if (Py_TYPE(given) != Py_TYPE(recorded)) return false;
  if (PyFloat_CheckExact(given)) {  // 0.0 is not -0.0
    double one = PyFloat_AS_DOUBLE(given), other = PyFloat_AS_DOUBLE(recorded);
    return std::memcmp(&one, &other, sizeof one) == 0;
  }
  int found = PyObject_RichCompareBool(given, recorded, Py_EQ);
  if (found < 0) raise();
  return found == 1;
}

bool is_alike(const RecordedInput& input, PyObject* given) {
  if (input.value) return !is_tensor(given) && is_equal_number(given, input.value.get());
  return is_exact_tensor(given) && input.is_alike(tensor_in(given));
}

bool is_at_address(const RecordedInput& input, PyObject* given) {
  return input.value || input.copy.defined() || address_in(tensor_in(given)) == input.address;
}

bool is_of_kind(const RecordedCall& recording, PyObject* list) {
  if (PyList_GET_SIZE(list) != static_cast<Py_ssize_t>(recording.inputs.size())) return false;
  if (recording.is_inference != c10::InferenceMode::is_enabled() || recording.settings != library_settings()) {
    return false;
  }
  for (size_t i = 0; i < recording.inputs.size(); ++i) {
    if (!is_alike(recording.inputs[i], PyList_GET_ITEM(list, i))) return false;
  }
  return true;
}

// Modes see the operations of a program, but not those of a recording.
bool any_modes() { return platform::torch_function_mode_enabled() || platform::DispatchModes::any_modes_set(); }

bool fits(const RecordedCall& recording, PyObject* list) {
  if (any_modes()) return false;
  if (!is_of_kind(recording, list)) return false;
  for (size_t i = 0; i < recording.inputs.size(); ++i) {
    if (!is_at_address(recording.inputs[i], PyList_GET_ITEM(list, i))) return false;
  }
  return true;
}

// ---- a call --------------------------------------------------------------------------------------------------------

void copy_inputs(const RecordedCall& recording, const std::vector<at::Tensor>& given) {
  WithoutGil no_gil;
  at::AutoDispatchBelowADInplaceOrView below;
  size_t next = 0;
  for (const RecordedInput& input : recording.inputs) {
    if (input.copy.defined()) input.copy.copy_(given[next++], /*non_blocking=*/true);
  }
}

// Another tensor over the same memory.
at::Tensor with_counter(const at::Tensor& tensor, const c10::VariableVersion& counter) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(counter, /*allow_tensor_metadata_change=*/true));
}

at::Tensor view_in(const RecordedResult& result, const at::Tensor& argument) {
  c10::VariableVersion counter(0);
  if (!argument.is_inference()) counter = argument.unsafeGetTensorImpl()->version_counter();
  at::Tensor made = with_counter(result.tensor, counter);
  c10::TensorImpl* impl = made.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(argument.storage());
  int64_t begins = argument.storage_offset() * static_cast<int64_t>(argument.element_size());
  impl->set_storage_offset((begins + result.offset) / static_cast<int64_t>(made.element_size()));
  return made;
}

// Results that need not wait for the recording: from now on their memory is in use.
void make_results(const RecordedCall& recording, PyObject* list, std::vector<at::Tensor>& made) {
  for (size_t i = 0; i < recording.results.size(); ++i) {
    const RecordedResult& result = recording.results[i];
    if (result.source == Source::view_of_argument) {
      made[i] = view_in(result, tensor_in(PyList_GET_ITEM(list, result.place)));
    } else if (result.source == Source::memory && result.place != i) {
      made[i] = made[result.place];
    } else if (result.source == Source::memory) {
      bool is_shared = result.counter != i && !recording.is_inference;
      made[i] = with_counter(result.tensor, is_shared ? made[result.counter].unsafeGetTensorImpl()->version_counter()
                                                      : c10::VariableVersion(0));
    }
  }
}

void copy_results(const RecordedCall& recording, std::vector<at::Tensor>& made) {
  WithoutGil no_gil;
  at::AutoDispatchBelowADInplaceOrView below;
  for (size_t i = 0; i < recording.results.size(); ++i) {
    if (recording.results[i].source == Source::copy) made[i] = recording.results[i].tensor.clone();
  }
}

Owned result_object(const RecordedResult& result, PyObject* list, at::Tensor& made) {
  if (result.source == Source::value) return share(result.value.get());
  if (result.source == Source::argument) return share(PyList_GET_ITEM(list, result.place));
  return Owned(tensor_object(made));
}

PyObject* replayed(RecordedCall& recording, PyObject* list) {
  std::vector<at::Tensor> given;
  for (size_t i = 0; i < recording.inputs.size(); ++i) {
    if (recording.inputs[i].copy.defined()) given.push_back(tensor_in(PyList_GET_ITEM(list, i)));
  }
  std::vector<at::Tensor> made(recording.results.size());
  make_results(recording, list, made);
  if (!given.empty()) copy_inputs(recording, given);
  Owned done(PyObject_CallNoArgs(recording.replay.get()));
  if (!done) raise();
  copy_results(recording, made);
  Owned results(PyTuple_New(static_cast<Py_ssize_t>(made.size())));
  for (size_t i = 0; results && i < made.size(); ++i) {
    Owned value = result_object(recording.results[i], list, made[i]);
    if (!value) return nullptr;
    PyTuple_SET_ITEM(results.get(), i, value.release());
  }
  if (!results || PyList_SetSlice(list, 0, PyList_GET_SIZE(list), nullptr) < 0) return nullptr;
  return results.release();
}

struct Running {
  explicit Running(RecordedCall& recording) : recording(recording) { recording.is_running = true; }
  ~Running() { recording.is_running = false; }
  RecordedCall& recording;
};

PyObject* call_recording(PyObject* self, PyObject* const* arguments, size_t flagged, PyObject* names) {
  if (PyVectorcall_NARGS(flagged) != 1 || names || !PyList_Check(arguments[0])) {
    PyErr_SetString(PyExc_TypeError, "a recording takes one list");
    return nullptr;
  }
  RecordedCall& recording = *recording_in(self);
  return guarded([&]() -> PyObject* {
    if (recording.is_running || !fits(recording, arguments[0])) Py_RETURN_NONE;
    if (!is_free_from(*memory_in(recording.memory.get()), recording.first)) Py_RETURN_NONE;
    Owned kept = share(self);
    Running running(recording);
    return replayed(recording, arguments[0]);
  });
}

// ---- making --------------------------------------------------------------------------------------------------------

RecordedInput recorded_input(PyObject* given, bool is_copied) {
  RecordedInput input;
  if (!is_tensor(given)) {
    input.value = share(given);
    return input;
  }
  const at::Tensor& tensor = tensor_in(given);
  if (is_copied) input.copy = tensor;
  input.address = address_in(tensor);
  input.sizes = tensor.sizes().vec();
  input.strides = tensor.strides().vec();
  input.keys = own_keys(tensor);
  input.dtype = tensor.scalar_type();
  input.device = tensor.device();
  return input;
}

bool has_same_storage(const at::Tensor& one, const at::Tensor& other) {
  return one.has_storage() && other.has_storage() && one.storage().is_alias_of(other.storage());
}

// A result that is an argument, or a view of one.
bool find_argument(RecordedResult& result, PyObject* given, PyObject* arguments) {
  const at::Tensor& tensor = tensor_in(given);
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(arguments); ++i) {
    PyObject* argument = PyList_GET_ITEM(arguments, i);
    if (!is_tensor(argument)) continue;
    const at::Tensor& other = tensor_in(argument);
    result.place = static_cast<size_t>(i);
    if (tensor.unsafeGetTensorImpl() == other.unsafeGetTensorImpl()) {
      result.source = Source::argument;
      return true;
    }
    if (has_same_storage(tensor, other)) {
      result.source = Source::view_of_argument;
      // Its own storage is not needed, and must not be held: it is the argument's.
      result.tensor = without_history(tensor);
      result.offset = tensor.storage_offset() * static_cast<int64_t>(tensor.element_size()) -
                      other.storage_offset() * static_cast<int64_t>(other.element_size());
      result.tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(
          c10::Storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, tensor.device()), nullptr, false));
      return true;
    }
  }
  return false;
}

bool is_same_view(const at::Tensor& one, const at::Tensor& other) {
  return one.sizes() == other.sizes() && one.strides() == other.strides() &&
         one.storage_offset() == other.storage_offset() && one.scalar_type() == other.scalar_type() &&
         own_keys(one) == own_keys(other);
}

// The first result over the recording's memory that has the storage of a tensor.
size_t first_with_storage(const std::vector<RecordedResult>& results, const at::Tensor& tensor) {
  for (size_t i = 0; i < results.size(); ++i) {
    bool is_own = results[i].source == Source::memory && results[i].tensor.defined();
    if (is_own && has_same_storage(results[i].tensor, tensor)) return i;
  }
  return results.size();
}

void hold_storage(std::vector<HeldStorage>& held, size_t first, const at::Tensor& tensor) {
  for (size_t i = first; i < held.size(); ++i) {
    if (held[i].storage.is_alias_of(tensor.storage())) {
      held[i].references += 1;
      return;
    }
  }
  const c10::Storage& storage = tensor.storage();
  held.push_back({storage, 2, storage.data(), storage.data_ptr().get_context()});
}

// A result over the recording's memory, which is not an earlier one of the same form.
void share_counter(RecordedResult& result, const std::vector<RecordedResult>& results, const at::Tensor& tensor) {
  result.counter = first_with_storage(results, tensor);
  for (size_t i = result.counter; i < results.size(); ++i) {
    const RecordedResult& other = results[i];
    bool is_own = other.source == Source::memory && other.tensor.defined();
    if (is_own && has_same_storage(other.tensor, tensor) && is_same_view(other.tensor, tensor)) {
      result.place = i;
      return;
    }
  }
}

RecordedResult recorded_result(RecordedCall& recording, PyObject* given, PyObject* arguments, bool is_given_out) {
  RecordedResult result;
  if (!is_tensor(given)) {
    result.value = share(given);
    return result;
  }
  if (find_argument(result, given, arguments)) return result;
  const at::Tensor& tensor = tensor_in(given);
  size_t place = result.place = result.counter = recording.results.size();
  result.source = is_given_out ? Source::copy : Source::memory;
  if (!is_given_out) share_counter(result, recording.results, tensor);
  if (result.place != place) return result;
  result.tensor = with_counter(tensor, c10::VariableVersion(0));  // that nobody else knows
  hold_storage(memory_in(recording.memory.get())->held, recording.first, result.tensor);
  return result;
}

// What recordings have left behind, and nobody uses any more.
void give_up_unused(std::vector<HeldStorage>& held) {
  for (HeldStorage& one : held) {
    if (one.references == 1 && !one.is_used()) one.storage = c10::Storage();
  }
}

void construct_recording(RecordedCall* self) {
  self->vectorcall = call_recording;
  new (&self->inputs) std::vector<RecordedInput>();
  new (&self->results) std::vector<RecordedResult>();
  new (&self->replay) Owned();
  new (&self->memory) Owned();
  self->first = self->last = 0;
  self->is_running = false;
  self->is_inference = c10::InferenceMode::is_enabled();
  self->settings = library_settings();
}

PyObject* make_recording(PyTypeObject* type, PyObject* args, PyObject*) {
  PyObject *arguments, *copied, *results, *given_out, *replay, *memory;
  if (!PyArg_ParseTuple(args, "O!O!O!O!OO!", &PyList_Type, &arguments, &PyFrozenSet_Type, &copied, &PyTuple_Type,
                        &results, &PyFrozenSet_Type, &given_out, &replay, &RecordedMemoryType, &memory)) {
    return nullptr;
  }
  Owned object(type->tp_alloc(type, 0));
  if (!object) return nullptr;
  RecordedCall* self = recording_in(object.get());
  construct_recording(self);
  self->replay = share(replay);
  self->memory = share(memory);
  give_up_unused(memory_in(memory)->held);
  self->first = self->last = memory_in(memory)->held.size();
  auto has = [](PyObject* set, Py_ssize_t place) {
    Owned number(PyLong_FromSsize_t(place));
    int found = number ? PySet_Contains(set, number.get()) : -1;
    if (found < 0) raise();
    return found == 1;
  };
  try {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(arguments); ++i) {
      self->inputs.push_back(recorded_input(PyList_GET_ITEM(arguments, i), has(copied, i)));
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(results); ++i) {
      self->results.push_back(recorded_result(*self, PyTuple_GET_ITEM(results, i), arguments, has(given_out, i)));
    }
  } catch (...) {
    return translated();
  }
  self->last = memory_in(memory)->held.size();
  return object.release();
}

// ---- looking in ----------------------------------------------------------------------------------------------------

Owned list_of_places(const std::vector<size_t>& places) {
  Owned list(PyList_New(static_cast<Py_ssize_t>(places.size())));
  for (size_t i = 0; list && i < places.size(); ++i) {
    PyObject* number = PyLong_FromSize_t(places[i]);
    if (!number) return nullptr;
    PyList_SET_ITEM(list.get(), i, number);
  }
  return list;
}

PyObject* is_alike_method(PyObject* self, PyObject* list) {
  if (!PyList_Check(list)) return PyErr_Format(PyExc_TypeError, "is_alike() takes a list");
  return guarded([&]() -> PyObject* {
    return PyBool_FromLong(is_of_kind(*recording_in(self), list));
  });
}

PyObject* moved(PyObject* self, PyObject* list) {
  if (!PyList_Check(list)) return PyErr_Format(PyExc_TypeError, "moved() takes a list");
  return guarded([&]() -> PyObject* {
    const RecordedCall& recording = *recording_in(self);
    TORCH_CHECK(is_of_kind(recording, list), "moved() takes arguments that are alike");
    std::vector<size_t> places;
    for (size_t i = 0; i < recording.inputs.size(); ++i) {
      if (!is_at_address(recording.inputs[i], PyList_GET_ITEM(list, i))) places.push_back(i);
    }
    return list_of_places(places).release();
  });
}

PyObject* is_free(PyObject* self, PyObject*) {
  const RecordedCall& recording = *recording_in(self);
  return PyBool_FromLong(!recording.is_running && is_free_from(*memory_in(recording.memory.get()), recording.first));
}

PyObject* is_intact(PyObject* self, PyObject*) {
  const RecordedCall& recording = *recording_in(self);
  const std::vector<HeldStorage>& held = memory_in(recording.memory.get())->held;
  return PyBool_FromLong(std::all_of(held.begin() + recording.first, held.begin() + recording.last,
                                     [](const HeldStorage& one) { return one.is_intact(); }));
}

PyObject* count_used(PyObject* self, PyObject*) {
  const std::vector<HeldStorage>& held = memory_in(self)->held;
  return PyLong_FromSsize_t(
      std::count_if(held.begin(), held.end(), [](const HeldStorage& one) { return one.is_used(); }));
}

// ---- the types -----------------------------------------------------------------------------------------------------

PyObject* make_memory(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* object = type->tp_alloc(type, 0);
  if (object) new (&memory_in(object)->held) std::vector<HeldStorage>();
  return object;
}

void dealloc_memory(PyObject* object) {
  memory_in(object)->held.~vector();
  Py_TYPE(object)->tp_free(object);
}

// Results that are still in use stay known, so that earlier recordings leave them alone; the others are given up.
void leave_memory(RecordedCall& recording) {
  if (!recording.memory) return;
  std::vector<HeldStorage>& held = memory_in(recording.memory.get())->held;
  for (size_t i = recording.first; i < recording.last; ++i) {
    held[i].references = 1;
    if (!held[i].is_used()) held[i].storage = c10::Storage();
  }
}

int traverse_recording(PyObject* object, visitproc visit, void* arg) {
  Py_VISIT(recording_in(object)->replay.get());
  return 0;
}

void dealloc_recording(PyObject* object) {
  PyObject_GC_UnTrack(object);
  RecordedCall* self = recording_in(object);
  self->inputs.~vector();
  self->results.~vector();
  leave_memory(*self);
  self->memory.~Owned();
  self->replay.~Owned();  // the graph goes after the tensors over its memory
  Py_TYPE(object)->tp_free(object);
}

PyObject* any_modes_function(PyObject*, PyObject*) { return PyBool_FromLong(any_modes()); }

PyMethodDef mode_functions[] = {
    {"any_modes", any_modes_function, METH_NOARGS,
     "any_modes() -> bool: modes want to see this thread's functions or operators."},
    {nullptr, nullptr, 0, nullptr}};

PyMethodDef recording_methods[] = {
    {"is_alike", is_alike_method, METH_O, "is_alike(arguments) -> bool: in all but addresses."},
    {"moved", moved, METH_O, "moved(arguments) -> list: the places of those that are at other addresses."},
    {"is_free", is_free, METH_NOARGS, "is_free() -> bool: nobody uses memory that the recording writes."},
    {"is_intact", is_intact, METH_NOARGS, "is_intact() -> bool: the memory of its results is where it was."},
    {nullptr, nullptr, 0, nullptr}};

PyMethodDef memory_methods[] = {
    {"count_used", count_used, METH_NOARGS, "count_used() -> int: storages of results that somebody uses."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_recorded_call(PyObject* module) {
  RecordedMemoryType.tp_name = "kiln._native.RecordedMemory";
  RecordedMemoryType.tp_doc = "RecordedMemory(): the results of recordings that share memory.";
  RecordedMemoryType.tp_basicsize = sizeof(RecordedMemory);
  RecordedMemoryType.tp_flags = Py_TPFLAGS_DEFAULT;
  RecordedMemoryType.tp_new = make_memory;
  RecordedMemoryType.tp_dealloc = dealloc_memory;
  RecordedMemoryType.tp_methods = memory_methods;
  RecordedCallType.tp_name = "kiln._native.RecordedCall";
  RecordedCallType.tp_doc = "RecordedCall(arguments, copied, results, given_out, replay, memory): a recorded program.";
  RecordedCallType.tp_basicsize = sizeof(RecordedCall);
  RecordedCallType.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  RecordedCallType.tp_vectorcall_offset = offsetof(RecordedCall, vectorcall);
  RecordedCallType.tp_call = PyVectorcall_Call;
  RecordedCallType.tp_new = make_recording;
  RecordedCallType.tp_dealloc = dealloc_recording;
  RecordedCallType.tp_traverse = traverse_recording;
  RecordedCallType.tp_methods = recording_methods;
  if (PyModule_AddFunctions(module, mode_functions) < 0) return -1;
  if (PyModule_AddType(module, &RecordedMemoryType) < 0) return -1;
  return PyModule_AddType(module, &RecordedCallType);
}

}  // namespace kiln
