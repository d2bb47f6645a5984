// torch's Python objects (tensors, dtypes, devices), its exceptions between C++ and Python, and conversions between the
// two sides. Known for torch 2.11 to 2.15.
#pragma once

#include "native.h"

#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/version.h>

#include <optional>
#include <string>

// The header that declares these brings in the headers of torch's scripting compiler.
namespace torch::jit {
c10::IValue toIValue(py::handle object, const c10::TypePtr& type, std::optional<int32_t> count);
py::object toPyObject(c10::IValue value);
}  // namespace torch::jit

namespace kiln {

// ---- tensors --------------------------------------------------------------------------------------------------------

// A torch.Tensor or a torch.nn.Parameter, no other subclass.
inline bool is_exact_tensor(PyObject* object) { return THPVariable_CheckExact(object); }

inline bool is_tensor(PyObject* object) {
  return is_exact_tensor(object) ||
         PyType_IsSubtype(Py_TYPE(object), reinterpret_cast<PyTypeObject*>(THPVariableClass));
}

// The tensor of an object that is_tensor().
inline const at::Tensor& tensor_in(PyObject* object) { return THPVariable_Unpack(object); }

// A new reference to the tensor's object, None for an undefined one; null with an error set on failure.
inline PyObject* tensor_object(const at::Tensor& tensor) { return THPVariable_Wrap(tensor); }
inline PyObject* tensor_object(at::Tensor&& tensor) { return THPVariable_Wrap(std::move(tensor)); }

// The references to a storage, without that of a Python object which nothing but the storage itself holds.
inline size_t uses_of(const c10::Storage& storage) {
  return storage.use_count() - (storage.unsafeGetStorageImpl()->pyobj_slot()->has_unique_reference() ? 1 : 0);
}

// ---- dtypes and devices ---------------------------------------------------------------------------------------------

inline bool is_dtype(PyObject* object) { return THPDtype_Check(object); }
inline at::ScalarType dtype_in(PyObject* object) { return reinterpret_cast<THPDtype*>(object)->scalar_type; }
// Borrowed. Throws for a type that Python has no name for.
inline PyObject* dtype_object(at::ScalarType type) { return reinterpret_cast<PyObject*>(torch::getTHPDtype(type)); }
// "float32", as a user writes it after `torch.`. Throws likewise.
inline std::string dtype_python_name(at::ScalarType type) { return torch::getTHPDtype(type)->name; }

inline bool is_device(PyObject* object) { return THPDevice_Check(object); }
inline at::Device device_in(PyObject* object) { return reinterpret_cast<THPDevice*>(object)->device; }
// A new reference; null with an error set on failure.
inline PyObject* device_object(at::Device device) { return THPDevice_New(device); }

// ---- exceptions -----------------------------------------------------------------------------------------------------

// Functions called from Python also use torch's HANDLE_TH_ERRORS and END_HANDLE_TH_ERRORS: they return null with the error
// set for an exception, and turn warnings of C++ into Python's.

// Thrown with a Python error set; torch leaves that as it is.
using PythonError = python_error;

// The Python error now set, as the C++ exception that torch turns back into it, on whichever thread.
[[noreturn]] inline void raise() {
  python_error error;
  error.persist();
  throw error;
}

// What a function called from Python does with an exception.
inline PyObject* translated() {
  torch::translate_exception_to_python(std::current_exception());
  return nullptr;
}

// Calls a function that returns a new reference or null; what Python calls must not throw.
template <class Body>
PyObject* guarded(Body body) {
  try {
    return body();
  } catch (...) {
    return translated();
  }
}

// In a catch block: sets the Python error again that the exception carries; false where it is C++'s own.
inline bool restore_python_error() {
  try {
    throw;
  } catch (python_error& error) {
    error.restore();
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (const std::exception&) {
  }
  return PyErr_Occurred() != nullptr;
}

// Lets other threads run Python while it lives.
using WithoutGil = pybind11::gil_scoped_release;

// ---- values ---------------------------------------------------------------------------------------------------------

// The value of an object as an argument of this type; `count` is the length that a list of one number is extended to.
inline c10::IValue value_in(PyObject* object, const c10::TypePtr& type, std::optional<int32_t> count = std::nullopt) {
  return torch::jit::toIValue(object, type, count);
}

// A new reference.
inline PyObject* value_object(const c10::IValue& value) { return torch::jit::toPyObject(value).release().ptr(); }

// An int or a torch.SymInt.
inline c10::SymInt size_in(PyObject* object) { return pybind11::cast<c10::SymInt>(pybind11::handle(object)); }

namespace platform {

// The release that this was compiled for, as text. Structures of others lie otherwise in memory: before the module is
// loaded, kiln/platform/support/native_module.py compares what the build has noted beside it.
inline constexpr const char* kTorchVersion = TORCH_VERSION;

}  // namespace platform
}  // namespace kiln
