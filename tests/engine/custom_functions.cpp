// C++ autograd functions for the engine's tests, as operators torch.ops.kiln_engine.*; see the fixture in conftest.py.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <stdexcept>

namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

int64_t backward_calls = 0;
int64_t iteration = 0;

// Two types with the same code: their nodes must not be taken for each other's.
template <int factor>
struct Identity : Function<Identity<factor>> {
  static constexpr bool is_traceable = true;

  static Tensor forward(AutogradContext*, const Tensor& x) { return x.clone(); }
  static variable_list backward(AutogradContext*, variable_list gradients) { return {gradients[0] * factor}; }
};

// Every kind of saved value changes the gradients.
struct Saving : Function<Saving> {
  static constexpr bool is_traceable = true;

  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& y, const Tensor& fixed, bool flag,
                        int64_t number, std::vector<std::string> names, c10::Dict<std::string, double> weights) {
    ctx->save_for_backward({x, y});
    ctx->saved_data["fixed"] = fixed;
    ctx->saved_data["flag"] = flag;
    ctx->saved_data["number"] = number;
    ctx->saved_data["names"] = names;
    ctx->saved_data["weights"] = weights;
    return x * y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto saved = ctx->get_saved_variables();
    double factor = ctx->saved_data["flag"].toBool() ? 1 : -1;
    factor *= static_cast<double>(ctx->saved_data["number"].toInt());
    for (const auto& name : ctx->saved_data["names"].toListRef()) {
      factor += static_cast<double>(name.toStringRef().size());
    }
    for (const auto& entry : ctx->saved_data["weights"].toGenericDict()) factor += entry.value().toDouble();
    const Tensor& fixed = ctx->saved_data["fixed"].toTensor();
    return {gradients[0] * saved[1] * factor, gradients[0] * saved[0] + fixed.sum(), {}, {}, {}, {}, {}};
  }
};

// A view of the input among the saved data, whose size varies with the input's.
struct SavingView : Function<SavingView> {
  static constexpr bool is_traceable = true;

  static Tensor forward(AutogradContext* ctx, const Tensor& x) {
    ctx->save_for_backward({x});
    ctx->saved_data["flat"] = x.view(-1);
    return x * x;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto x = ctx->get_saved_variables()[0];
    auto flat = ctx->saved_data["flat"].toTensor();
    return {gradients[0] * (x + flat.view_as(x)) + flat.numel()};
  }
};

// Tensors inside a list, a dictionary and a tuple.
struct SavingNested : Function<SavingNested> {
  static constexpr bool is_traceable = true;

  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& first, const Tensor& second) {
    c10::Dict<std::string, Tensor> dictionary;
    dictionary.insert("second", second);
    ctx->saved_data["list"] = c10::List<Tensor>({first, second});
    ctx->saved_data["dictionary"] = dictionary;
    ctx->saved_data["tuple"] = std::make_tuple(first, int64_t{2});
    return x.clone();
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto total = gradients[0];
    for (const auto& element : ctx->saved_data["list"].toListRef()) total = total * element.toTensor();
    for (const auto& entry : ctx->saved_data["dictionary"].toGenericDict()) total = total + entry.value().toTensor();
    const auto& tuple = ctx->saved_data["tuple"].toTupleRef().elements();
    return {total + tuple[0].toTensor() * tuple[1].toInt(), {}, {}};
  }
};

// Something that no key can describe.
struct SavingGenerator : Function<SavingGenerator> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x) {
    ctx->saved_data["generator"] = at::Generator();
    return x.clone();
  }
  static variable_list backward(AutogradContext*, variable_list gradients) { return {gradients[0] * 3}; }
};

// Reads the data of its gradient and counts its calls: not to be traced.
struct Untraceable : Function<Untraceable> {
  static constexpr bool is_traceable = false;

  static Tensor forward(AutogradContext*, const Tensor& x) { return x * 2; }

  static variable_list backward(AutogradContext*, variable_list gradients) {
    ++backward_calls;
    double factor = gradients[0].sum().item<double>() > 0 ? 2 : -2;
    return {gradients[0] * factor * static_cast<double>(backward_calls)};
  }
};

// What it saves depends on how often it was called: the third call saves more, the fifth lets gradients be undefined.
struct DataDependent : Function<DataDependent> {
  static constexpr bool is_traceable = true;

  static variable_list forward(AutogradContext* ctx, const Tensor& x, const Tensor& y) {
    ++iteration;
    ctx->save_for_backward({x, y});
    ctx->saved_data["number"] = int64_t{1};
    if (iteration == 3) ctx->saved_data["more"] = iteration;
    if (iteration == 5) ctx->set_materialize_grads(false);
    return {x * 2, y * 3};
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto saved = ctx->get_saved_variables();
    auto number = ctx->saved_data["number"].toInt() + (ctx->saved_data.count("more") ? 1 : 0);
    auto of_y = gradients[1].defined() ? gradients[1] * 3 + saved[1] : Tensor();
    return {gradients[0] * 2 * number + saved[0], of_y};
  }
};

struct Doubling : Function<Doubling> {
  static Tensor forward(AutogradContext* ctx, Tensor x) {
    ctx->mark_dirty({x});
    at::NoGradGuard no_grad;
    return x.mul_(2);
  }
  static variable_list backward(AutogradContext*, variable_list gradients) { return {gradients[0] * 2}; }
};

struct Failing : Function<Failing> {
  static Tensor forward(AutogradContext*, const Tensor& x) { return x.clone(); }
  static variable_list backward(AutogradContext*, variable_list) {
    throw std::runtime_error("this backward always fails");
  }
};

// Asks which gradients are wanted.
struct Selective : Function<Selective> {
  static constexpr bool is_traceable = true;

  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& y) {
    ctx->save_for_backward({x, y});
    return x * y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list gradients) {
    auto saved = ctx->get_saved_variables();
    variable_list results(2);
    for (size_t i = 0; i < 2; ++i) {
      if (ctx->needs_input_grad(i)) results[i] = gradients[0] * saved[1 - i];
    }
    return results;
  }
};

template <class Kind>
Tensor of_one(const Tensor& x) {
  return Kind::apply(x);
}

Tensor saving(const Tensor& x, const Tensor& y, const Tensor& fixed, bool flag, int64_t number,
              std::vector<std::string> names, c10::Dict<std::string, double> weights) {
  return Saving::apply(x, y, fixed, flag, number, names, weights);
}

Tensor saving_nested(const Tensor& x, const Tensor& first, const Tensor& second) {
  return SavingNested::apply(x, first, second);
}

std::vector<Tensor> data_dependent(const Tensor& x, const Tensor& y) { return DataDependent::apply(x, y); }

Tensor selective(const Tensor& x, const Tensor& y) { return Selective::apply(x, y); }

Tensor doubling(Tensor x) { return Doubling::apply(x); }

void reset() { backward_calls = iteration = 0; }

int64_t calls() { return backward_calls; }

TORCH_LIBRARY(kiln_engine, library) {
  library.def("identity", of_one<Identity<1>>);
  library.def("other_identity", of_one<Identity<2>>);
  library.def("saving", saving);
  library.def("saving_view", of_one<SavingView>);
  library.def("saving_nested", saving_nested);
  library.def("saving_generator", of_one<SavingGenerator>);
  library.def("untraceable", of_one<Untraceable>);
  library.def("data_dependent", data_dependent);
  library.def("doubling(Tensor(a!) x) -> Tensor(a!)", doubling);
  library.def("failing", of_one<Failing>);
  library.def("selective", selective);
  library.def("reset", reset);
  library.def("calls", calls);
}

}  // namespace
