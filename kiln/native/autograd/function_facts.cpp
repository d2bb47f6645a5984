// What torch keeps about the context of a torch.autograd.Function and shows to nobody: how its node calls `backward`.
#include "native.h"

#include <torch/csrc/Device.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/python_function.h>

#include <type_traits>

namespace kiln {
namespace {

// The context, if the object is one and has a node; else null with an error set.
THPFunction* context_of(PyObject* object) {
  if (PyType_IsSubtype(Py_TYPE(object), &THPFunctionType)) return reinterpret_cast<THPFunction*>(object);
  PyErr_Format(PyExc_TypeError, "the context of an autograd function expected, not %.200s", Py_TYPE(object)->tp_name);
  return nullptr;
}

// The node, held; a context made by hand has none.
template <class Context>
auto node_of(Context* context) {
  using Pointer = std::remove_reference_t<decltype(context->cdata)>;
  if constexpr (std::is_same_v<Pointer, std::weak_ptr<torch::autograd::PyNode>>) {  // up to torch 2.12
    return context->cdata.lock();
  } else {
    return context->cdata;
  }
}

template <class Context>
auto is_boxed(Context* context, int) -> decltype(context->boxed_grads_call) {
  return context->boxed_grads_call;
}

template <class Context>
bool is_boxed(Context*, long) {  // older than torch 2.13
  return false;
}

PyObject* flags(const std::vector<bool>& values) {
  Owned result(PyTuple_New(static_cast<Py_ssize_t>(values.size())));
  if (!result) return nullptr;
  for (size_t i = 0; i < values.size(); ++i) {
    PyTuple_SET_ITEM(result.get(), static_cast<Py_ssize_t>(i), PyBool_FromLong(values[i]));
  }
  return result.release();
}

PyObject* function_facts(PyObject*, PyObject* object) {
  THPFunction* context = context_of(object);
  if (!context) return nullptr;
  auto node = node_of(context);
  std::vector<bool> filled;
  for (size_t i = 0; i < context->output_info.size(); ++i) {
    bool differentiable = node && i < node->num_inputs() && !node->input_metadata(i).was_default_constructed();
    bool known = !context->output_info[i].is_empty;
    filled.push_back(known && context->materialize_grads && (differentiable || context->materialize_non_diff_grads));
  }
  bool packed = context->clear_saved_tensors_on_access;
  for (const auto& saved : context->saved_variables) packed = packed || saved.has_hooks();
  Owned materialize(flags(filled)), tensors(flags(context->is_variable_input));
  if (!materialize || !tensors) return nullptr;
  return Py_BuildValue("(OOOOO)", materialize.get(), tensors.get(), is_boxed(context, 0) ? Py_True : Py_False,
                       context->has_freed_buffers ? Py_True : Py_False, packed ? Py_True : Py_False);
}

PyObject* sizes(const std::vector<c10::SymInt>& values) {
  Owned result(PyTuple_New(static_cast<Py_ssize_t>(values.size())));
  if (!result) return nullptr;
  for (size_t i = 0; i < values.size(); ++i) {
    auto size = values[i].maybe_as_int();
    PyObject* number = size ? PyLong_FromLongLong(*size) : nullptr;
    if (!number) {
      if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, "a symbolic size in a context");
      return nullptr;
    }
    PyTuple_SET_ITEM(result.get(), static_cast<Py_ssize_t>(i), number);
  }
  return result.release();
}

PyObject* function_zeros(PyObject*, PyObject* object) {
  THPFunction* context = context_of(object);
  if (!context) return nullptr;
  Owned result(PyTuple_New(static_cast<Py_ssize_t>(context->output_info.size())));
  for (size_t i = 0; result && i < context->output_info.size(); ++i) {
    const auto& info = context->output_info[i];
    Owned shape(sizes(info.size)), device(THPDevice_New(info.device));
    if (!shape || !device) return nullptr;
    PyObject* dtype = reinterpret_cast<PyObject*>(torch::getTHPDtype(info.scalar_type));
    PyObject* row = PyTuple_Pack(3, shape.get(), dtype, device.get());
    if (!row) return nullptr;
    PyTuple_SET_ITEM(result.get(), static_cast<Py_ssize_t>(i), row);
  }
  return result.release();
}

PyMethodDef context_functions[] = {
    {"function_facts", function_facts, METH_O,
     "function_facts(ctx) -> (materialize, is_tensor, boxed, freed, packed): for each gradient whether zeros stand for\n"
     "None, for each input of forward whether it was a tensor, whether backward takes one list, whether saved tensors\n"
     "are gone, whether reading them has effects (unpack hooks, clearing)."},
    {"function_zeros", function_zeros, METH_O,
     "function_zeros(ctx) -> for each output its (sizes, dtype, device): the zeros that stand for None."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_function_facts(PyObject* module) { return PyModule_AddFunctions(module, context_functions); }

}  // namespace kiln
