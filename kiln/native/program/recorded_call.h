// Recordings of programs (CUDA graphs), and the memory of their results: what the files about them share.
//
//     recorded = RecordedCall(arguments, copied, results, given_out, replay, memory)
//     recorded(arguments) -> results, or None where the recording does not fit or its results are still in use
//
// A recording reads and writes fixed addresses. An argument is at its address, which each call checks, or is copied to
// it. The results of a call are new tensors over the recording's memory, or copies of it (`given_out`). Who still uses
// results of an earlier call is known by the references to their storages. No header of CUDA is needed: `replay` is a
// callable.
#pragma once

#include "program/program.h"

#include <array>

namespace kiln {

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

inline RecordedMemory* memory_in(PyObject* object) { return reinterpret_cast<RecordedMemory*>(object); }

inline bool is_free_from(const RecordedMemory& memory, size_t first) {
  for (size_t i = first; i < memory.held.size(); ++i) {
    if (memory.held[i].is_used() || !memory.held[i].is_intact()) return false;
  }
  return true;
}

// ---- settings ------------------------------------------------------------------------------------------------------

using LibrarySettings = std::array<uint64_t, 17>;

// What decides how operators call libraries. Recorded calls are those for the settings of then.
LibrarySettings library_settings();

// ---- arguments and results -----------------------------------------------------------------------------------------

// The keys that say more of a tensor than who differentiates it.
inline c10::DispatchKeySet own_keys(const at::Tensor& tensor) {
  return tensor.key_set() - c10::autograd_dispatch_keyset_with_ADInplaceOrView;
}

inline bool is_dual(const at::Tensor& tensor) {
  auto* meta = platform::get_autograd_meta(tensor);
  return meta && meta->fw_grad_;
}

inline const void* address_in(const at::Tensor& tensor) { return tensor.unsafeGetTensorImpl()->data(); }

inline bool is_without_memory(const at::Tensor& tensor) { return tensor.numel() != 0 && tensor.storage().nbytes() == 0; }

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

inline RecordedCall* recording_in(PyObject* object) { return reinterpret_cast<RecordedCall*>(object); }

// ---- recorded_call.cpp ----------------------------------------------------------------------------------------------

// Modes see the operations of a program, but not those of a recording.
bool any_modes();
// Whether arguments are like the recorded ones in all but addresses.
bool is_of_kind(const RecordedCall& recording, PyObject* list);
bool is_at_address(const RecordedInput& input, PyObject* given);
// Another tensor over the same memory.
at::Tensor with_counter(const at::Tensor& tensor, const c10::VariableVersion& counter);
PyObject* call_recording(PyObject* self, PyObject* const* arguments, size_t flagged, PyObject* names);

}  // namespace kiln
