// What visit_saved sees, for Python: for tests and to look at.
#include "autograd/saved_fields.h"

namespace kiln {
namespace {

class Lister : public SavedVisitor {
 public:
  Lister(NodePointer node, PyObject* list) : node_(std::move(node)), list_(list) {}

  void variable(SavedVariable& variable) override { tensor_as("variable", variable.unpack(node_)); }
  void tensor(at::Tensor& tensor) override { tensor_as("tensor", tensor); }
  void size(c10::SymInt& size) override {
    auto number = size.maybe_as_int();
    add("size", number ? PyLong_FromLongLong(*number) : Py_NewRef(Py_None));
  }
  void constant(std::string_view bytes) override {
    add("constant", PyBytes_FromStringAndSize(bytes.data(), static_cast<Py_ssize_t>(bytes.size())));
  }

 private:
  void tensor_as(const char* kind, const at::Tensor& tensor) {
    add(kind, tensor.defined() ? tensor_object(tensor) : Py_NewRef(Py_None));
  }

  // Takes the value's reference over.
  void add(const char* kind, PyObject* value) {
    Owned entry(value ? Py_BuildValue("(sN)", kind, value) : nullptr);
    if (!entry || PyList_Append(list_, entry.get()) < 0) raise();
  }

  NodePointer node_;
  PyObject* list_;
};

// The node itself, or the one that made the tensor. Null: neither.
NodePointer node_behind(PyObject* object) {
  if (is_tensor(object)) return platform::gradient_edge(tensor_in(object)).function;
  if (platform::is_node_object(object)) {
    return platform::node_in(object);
  }
  return nullptr;
}

PyObject* saved_values(PyObject*, PyObject* argument) {
  return guarded([&]() -> PyObject* {
    auto node = node_behind(argument);
    if (!node) return PyErr_Format(PyExc_TypeError, "saved_values() needs a node of C++ or a tensor that has one");
    Owned list(PyList_New(0));
    if (!list) return nullptr;
    Lister lister(node, list.get());
    if (!visit_saved(*node, lister)) Py_RETURN_NONE;
    return list.release();
  });
}

PyMethodDef saved_functions[] = {
    {"saved_values", saved_values, METH_O,
     "saved_values(node or tensor) -> list | None: what the node, or the one that made the tensor, keeps."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

int add_saved_values(PyObject* module) { return PyModule_AddFunctions(module, saved_functions); }

}  // namespace kiln
