// RecordedCall and RecordedMemory as Python sees them: made of what a program was recorded with.
#include "program/recorded_call.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>

namespace kiln {
namespace {

PyTypeObject RecordedMemoryType = {PyVarObject_HEAD_INIT(nullptr, 0)};
PyTypeObject RecordedCallType = {PyVarObject_HEAD_INIT(nullptr, 0)};

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
