// Whether a recording may run for a call, and the call.
#include "program/recorded_call.h"

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <cstring>

namespace kiln {
namespace {

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

bool gives_copies(const RecordedCall& recording) {
  return std::any_of(recording.results.begin(), recording.results.end(),
                     [](const RecordedResult& result) { return result.source == Source::copy; });
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
  if (gives_copies(recording)) copy_results(recording, made);
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

}  // namespace

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

bool any_modes() { return platform::torch_function_mode_enabled() || platform::DispatchModes::any_modes_set(); }

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

at::Tensor with_counter(const at::Tensor& tensor, const c10::VariableVersion& counter) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(counter, /*allow_tensor_metadata_change=*/true));
}

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

}  // namespace kiln
