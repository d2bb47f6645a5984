// GlobalState: a snapshot of the torch-wide and thread-wide settings that change what a program means.
#include "checks/words.h"
#include "platform/autograd.h"
#include "platform/dispatch.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>

#include <array>
#include <iterator>

namespace kiln {
namespace {

using Value = uint64_t;

// One setting: how to read it, how to say it, and how to put it back (null: it cannot or need not be).
struct Setting {
  const char* name;
  Value (*read)();
  std::string (*say)(Value);
  void (*write)(Value);
};

std::string say_switch(Value value) { return value ? "enabled" : "disabled"; }
std::string say_number(Value value) { return std::to_string(value); }
std::string say_dtype(Value value) { return dtype_name(static_cast<at::ScalarType>(value)); }
std::string say_keys(Value value) { return c10::toString(c10::DispatchKeySet::from_raw_repr(value)); }

std::string say_precision(Value value) { return at::precision2str(static_cast<at::Float32Precision>(value)); }

std::string say_deterministic(Value value) {
  return value == 0 ? "off" : value == 1 ? "on" : "on (warnings only)";
}

std::string say_torch_function(Value value) {
  switch (static_cast<platform::FunctionDisabled>(value)) {
    case platform::FunctionDisabled::ENABLED: return "enabled";
    case platform::FunctionDisabled::SUBCLASSES_DISABLED: return "disabled for subclasses";
    default: return "disabled";
  }
}

Value read_deterministic() {
  auto& context = at::globalContext();
  if (!context.deterministicAlgorithms()) return 0;
  return context.deterministicAlgorithmsWarnOnly() ? 2 : 1;
}

template <at::Float32Backend backend>
Value read_matmul_precision() {
  return static_cast<Value>(at::globalContext().float32Precision(backend, at::Float32Op::MATMUL));
}

// torch keeps the default type in two places, and only its Python function knows both.
void write_default_dtype(Value value) {
  Owned torch(PyImport_ImportModule("torch"));
  auto* dtype = dtype_object(static_cast<at::ScalarType>(value));
  Owned done(torch ? PyObject_CallMethod(torch.get(), "set_default_dtype", "O", dtype) : nullptr);
  if (!done) throw PythonError();
}

template <at::DeviceType device>
Value read_autocast() {
  return at::autocast::is_autocast_enabled(device);
}

template <at::DeviceType device>
void write_autocast(Value value) {
  at::autocast::set_autocast_enabled(device, value);
}

template <at::DeviceType device>
Value read_autocast_dtype() {
  return static_cast<Value>(at::autocast::get_autocast_dtype(device));
}

template <at::DeviceType device>
void write_autocast_dtype(Value value) {
  at::autocast::set_autocast_dtype(device, static_cast<at::ScalarType>(value));
}

// The order is the order of explanation: the dispatch keys come last, since most of the others change them too.
const Setting settings[] = {
    {"grad mode", [] { return Value(c10::GradMode::is_enabled()); }, say_switch,
     [](Value value) { c10::GradMode::set_enabled(value); }},
    {"inference mode", [] { return Value(c10::InferenceMode::is_enabled()); }, say_switch, nullptr},
    {"autocast on cpu", read_autocast<at::kCPU>, say_switch, write_autocast<at::kCPU>},
    {"autocast dtype on cpu", read_autocast_dtype<at::kCPU>, say_dtype, write_autocast_dtype<at::kCPU>},
    {"autocast on cuda", read_autocast<at::kCUDA>, say_switch, write_autocast<at::kCUDA>},
    {"autocast dtype on cuda", read_autocast_dtype<at::kCUDA>, say_dtype, write_autocast_dtype<at::kCUDA>},
    {"autocast cache", [] { return Value(at::autocast::is_autocast_cache_enabled()); }, say_switch,
     [](Value value) { at::autocast::set_autocast_cache_enabled(value); }},
    {"deterministic algorithms", read_deterministic, say_deterministic,
     [](Value value) { at::globalContext().setDeterministicAlgorithms(value != 0, value == 2); }},
    {"default dtype", [] { return static_cast<Value>(c10::get_default_dtype_as_scalartype()); }, say_dtype,
     write_default_dtype},
    {"torch function", [] { return Value(platform::FunctionModes::get_disabled_state()); },
     say_torch_function, nullptr},
    {"torch function modes", [] { return Value(platform::FunctionModes::stack_len()); }, say_number, nullptr},
    {"torch dispatch modes", [] { return Value(platform::DispatchModes::stack_len()); }, say_number, nullptr},
    {"anomaly mode", [] { return Value(platform::AnomalyMode::is_enabled()); }, say_switch, nullptr},
    {"hooks on new nodes of autograd", [] { return Value(platform::has_node_creation_hooks()); }, say_switch, nullptr},
    {"number of threads", [] { return Value(at::get_num_threads()); }, say_number, nullptr},
    {"float32 precision of cuda matrix products", read_matmul_precision<at::Float32Backend::CUDA>, say_precision,
     nullptr},
    {"float32 precision of mkldnn matrix products", read_matmul_precision<at::Float32Backend::MKLDNN>, say_precision,
     nullptr},
    {"included dispatch keys", [] { return Value(platform::dispatch_state().included_.raw_repr()); },
     say_keys, nullptr},
    {"excluded dispatch keys", [] { return Value(platform::dispatch_state().excluded_.raw_repr()); },
     say_keys, nullptr},
};
constexpr size_t setting_count = std::size(settings);

struct GlobalState {
  PyObject_HEAD
  std::array<Value, setting_count> values;
};

PyTypeObject GlobalStateType = {PyVarObject_HEAD_INIT(nullptr, 0)};

GlobalState* state_of(PyObject* object) { return reinterpret_cast<GlobalState*>(object); }

PyObject* create_state(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  if (PyTuple_GET_SIZE(args) || (kwargs && PyDict_GET_SIZE(kwargs))) {
    PyErr_SetString(PyExc_TypeError, "GlobalState() takes no arguments");
    return nullptr;
  }
  HANDLE_TH_ERRORS
  Owned object(type->tp_alloc(type, 0));
  if (!object) return nullptr;
  for (size_t i = 0; i < setting_count; ++i) state_of(object.get())->values[i] = settings[i].read();
  return object.release();
  END_HANDLE_TH_ERRORS
}

// Without HANDLE_TH_ERRORS, which costs as much as the check: a setting that cannot be read is simply not as it was.
PyObject* check(PyObject* self, PyObject*) {
  const Value* expected = state_of(self)->values.data();
  try {
    for (size_t i = 0; i < setting_count; ++i) {
      if (settings[i].read() != expected[i]) Py_RETURN_FALSE;
    }
  } catch (const std::exception&) {
    Py_RETURN_FALSE;
  }
  Py_RETURN_TRUE;
}

PyObject* state_reason(PyObject* self, PyObject*) {
  HANDLE_TH_ERRORS
  for (size_t i = 0; i < setting_count; ++i) {
    const Setting& setting = settings[i];
    Value expected = state_of(self)->values[i];
    Value seen = setting.read();
    if (seen == expected) continue;
    std::string words = mismatch(setting.name, setting.say(expected), setting.say(seen));
    return PyUnicode_FromString(words.c_str());
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyObject* restore(PyObject* self, PyObject*) {
  HANDLE_TH_ERRORS
  for (size_t i = 0; i < setting_count; ++i) {
    const Setting& setting = settings[i];
    Value expected = state_of(self)->values[i];
    if (setting.write && setting.read() != expected) setting.write(expected);
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyMethodDef state_methods[] = {
    {"check", check, METH_NOARGS, "check() -> bool: is everything as it was?"},
    {"reason", state_reason, METH_NOARGS, "reason() -> str | None: the first difference, in words."},
    {"restore", restore, METH_NOARGS,
     "restore(): put back grad mode, autocast, the deterministic setting and the default dtype."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_global_state(PyObject* module) {
  PyTypeObject& type = GlobalStateType;
  type.tp_name = "kiln._native.GlobalState";
  type.tp_doc = "GlobalState(): what torch's global and thread-local settings are now.";
  type.tp_basicsize = sizeof(GlobalState);
  type.tp_flags = Py_TPFLAGS_DEFAULT;
  type.tp_new = create_state;
  type.tp_methods = state_methods;
  return PyModule_AddType(module, &type);
}

}  // namespace kiln
