// What torch keeps about the context of a torch.autograd.Function and shows to nobody: how its node calls `backward`.
#include "platform/python_function.h"

namespace kiln {
namespace {

// The context, if the object is one; else null with an error set.
platform::FunctionContext* context_of(PyObject* object) {
  if (auto* context = platform::function_context(object)) return context;
  PyErr_Format(PyExc_TypeError, "the context of an autograd function expected, not %.200s", Py_TYPE(object)->tp_name);
  return nullptr;
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
  auto* context = context_of(object);
  if (!context) return nullptr;
  auto node = platform::node_of_context(context);
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
  bool boxed = platform::takes_boxed_gradients(context);
  return Py_BuildValue("(OOOOO)", materialize.get(), tensors.get(), boxed ? Py_True : Py_False,
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
  auto* context = context_of(object);
  if (!context) return nullptr;
  Owned result(PyTuple_New(static_cast<Py_ssize_t>(context->output_info.size())));
  for (size_t i = 0; result && i < context->output_info.size(); ++i) {
    const auto& info = context->output_info[i];
    Owned shape(sizes(info.size)), device(device_object(info.device));
    if (!shape || !device) return nullptr;
    PyObject* dtype = dtype_object(info.scalar_type);
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
