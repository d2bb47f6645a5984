// Runs a Python callable as a node of a backward pass of torch's engine: what happens in it finds a live task there.
#include "walk.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/utils/pybind.h>

#include <functional>

namespace kiln {
namespace {

namespace autograd = torch::autograd;

struct EngineCall : Node {
  explicit EngineCall(const std::function<void()>& work) : work(work) {}
  variable_list apply(variable_list&&) override {
    Gil gil;
    work();
    return {};
  }
  std::string name() const override { return "KilnEngine"; }

  const std::function<void()>& work;
};

// The gradient that such a pass starts with.
const at::Tensor& any_gradient() {
  static const at::Tensor* gradient = new at::Tensor(at::zeros({}));
  return *gradient;
}

PyObject* run_in_engine(PyObject*, PyObject* callable) {
  Owned result;
  try {
    run_in_task([&] {
      result.reset(PyObject_CallNoArgs(callable));
      if (!result) raise();
    });
    return result.release();
  } catch (...) {
    return translated();
  }
}

PyMethodDef functions[] = {
    {"run_in_engine", run_in_engine, METH_O,
     "run_in_engine(function): its result; called as a node of a backward pass of torch's engine."},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

void run_in_task(const std::function<void()>& work) {
  NodePointer node = make_node<EngineCall>(work);
  node->add_input_metadata(any_gradient());
  edge_list roots{Edge(node, 0)};
  variable_list gradients{any_gradient()};
  pybind11::gil_scoped_release without_gil;
  autograd::Engine::get_default_engine().execute(roots, gradients, /*keep_graph=*/false, /*create_graph=*/false,
                                                 /*accumulate_grad=*/true);
}

int add_engine_call(PyObject* module) { return PyModule_AddFunctions(module, functions); }

}  // namespace kiln
