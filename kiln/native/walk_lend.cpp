// What nodes saved is taken out of them while a graph runs on it, so that it dies at its last use there; and is put back
// where the rest of the pass must be torch's after all.
#include "saved_values.h"
#include "walk.h"

namespace kiln {
namespace {

namespace autograd = torch::autograd;

// A private member: an explicit instantiation may name it, and hands it out through a friend. By the public ones a saved
// tensor could only be made anew, with the version that the tensor has by then.
template <class Name, auto Member>
struct Opened {
  friend constexpr auto member(Name) { return Member; }
};

struct SavedData {
  friend constexpr auto member(SavedData);
};
template struct Opened<SavedData, &SavedVariable::data_>;

at::Tensor& data_of(SavedVariable& variable) { return variable.*member(SavedData{}); }

class Lender : public SavedVisitor {
 public:
  void variable(SavedVariable& variable) override { data_of(variable).reset(); }
  void tensor(at::Tensor& tensor) override { tensor.reset(); }
  void size(c10::SymInt&) override {}
  void constant(std::string_view) override {}
};

class Restorer : public SavedVisitor {
 public:
  Restorer(const Walk& walk, const Call& call) : walk_(walk), call_(call), place_(call.saved.first) {}

  void variable(SavedVariable& variable) override {
    at::Tensor tensor = next();
    // A saved output is kept without its history, which would be a cycle.
    bool is_output = tensor.defined() && autograd::impl::grad_fn_unsafe(tensor) == call_.node.get();
    data_of(variable) = is_output ? tensor.tensor_data() : std::move(tensor);
  }
  void tensor(at::Tensor& tensor) override { tensor = next(); }
  void size(c10::SymInt&) override {}
  void constant(std::string_view) override {}

 private:
  at::Tensor next() {
    uint32_t slot = walk_.saved.at(place_++);
    if (slot == kNone) return {};
    at::Tensor tensor(walk_.watched.at(slot).tensor.lock());
    TORCH_CHECK(tensor.defined(), "a saved tensor of ", call_.node->name(), " is gone");
    return tensor;
  }

  const Walk& walk_;
  const Call& call_;
  uint32_t place_;
};

}  // namespace

void lend_saved(const Call& call) {
  Lender lender;
  visit_saved(*call.node, lender);
}

void restore_saved(const Walk& walk, const Call& call) {
  Restorer restorer(walk, call);
  visit_saved(*call.node, restorer);
}

}  // namespace kiln
