// Runs a Python callable as a node of a backward pass of torch's engine: what happens in it finds a live task there.
#include "walk/walk.h"

#include <functional>

namespace kiln {
namespace {

// Code that runs in it can take hold of the node, and call it when the pass is over: then there is nothing to do.
struct EngineCall : Node {
  explicit EngineCall(const std::function<void()>& work) : work(&work) {}
  variable_list apply(variable_list&&) override {
    Gil gil;
    TORCH_CHECK(work, "this node was part of a backward pass that is over");
    (*work)();
    return {};
  }
  std::string name() const override { return "KilnEngine"; }

  const std::function<void()>* work;
};

// The gradient that such a pass starts with.
const at::Tensor& any_gradient() {
  static const at::Tensor* gradient = new at::Tensor(at::zeros({}));
  return *gradient;
}

PyObject* run_in_engine(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  if (count < 1 || count > 2) return PyErr_Format(PyExc_TypeError, "run_in_engine(function, keep_graph=False)");
  int keep_graph = count > 1 ? PyObject_IsTrue(arguments[1]) : 0;
  if (keep_graph < 0) return nullptr;
  Owned result;
  return guarded([&]() -> PyObject* {
    run_in_task(
        [&] {
          result.reset(PyObject_CallNoArgs(arguments[0]));
          if (!result) raise();
        },
        keep_graph);
    return result.release();
  });
}

PyMethodDef engine_functions[] = {
    {"run_in_engine", method(run_in_engine), METH_FASTCALL,
     "run_in_engine(function, keep_graph=False): its result; called as a node of a backward pass of torch's engine."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

void run_in_task(const std::function<void()>& work, bool keep_graph) {
  NodePointer node = make_node<EngineCall>(work);
  node->add_input_metadata(any_gradient());
  edge_list roots{Edge(node, 0)};
  variable_list gradients{any_gradient()};
  struct Ended {
    EngineCall& call;
    ~Ended() { call.work = nullptr; }
  } ended{static_cast<EngineCall&>(*node)};
  WithoutGil without_gil;
  platform::engine().execute(roots, gradients, keep_graph, /*create_graph=*/false,
                                                 /*accumulate_grad=*/true);
}

int add_engine_call(PyObject* module) { return PyModule_AddFunctions(module, engine_functions); }

}  // namespace kiln
