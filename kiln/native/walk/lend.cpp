// What nodes saved is taken out of them while a graph runs on it, so that it dies at its last use there; and is put
// back where the rest of the pass must be torch's after all.
#include "autograd/saved_values.h"
#include "platform/saved_variable.h"
#include "walk/walk.h"

namespace kiln {
namespace {

class Lender : public SavedVisitor {
 public:
  Lender(const Walk& walk, uint32_t index, const std::vector<int64_t>& last_uses)
      : walk_(walk), index_(index), last_uses_(last_uses), place_(walk.calls[index].saved.first) {}

  void variable(SavedVariable& variable) override {
    if (is_used()) platform::saved_data(variable).reset();
  }
  void tensor(at::Tensor& tensor) override {
    if (is_used()) tensor.reset();
  }
  void size(c10::SymInt&) override {}
  void constant(std::string_view) override {}

 private:
  bool is_used() {
    uint32_t slot = walk_.saved.at(place_++);
    return slot != kNone && last_uses_.at(slot) >= index_;
  }

  const Walk& walk_;
  int64_t index_;
  const std::vector<int64_t>& last_uses_;
  uint32_t place_;
};

class Restorer : public SavedVisitor {
 public:
  Restorer(const Walk& walk, const Call& call) : walk_(walk), call_(call), place_(call.saved.first) {}

  void variable(SavedVariable& variable) override {
    uint32_t slot = next_slot();
    if (slot == kNone || platform::saved_data(variable).defined()) return;
    at::Tensor tensor = lent(slot);
    // A saved output is kept without its history, which would be a cycle.
    bool is_output = platform::grad_fn_unsafe(tensor) == call_.node.get();
    platform::saved_data(variable) = is_output ? tensor.tensor_data() : std::move(tensor);
  }
  void tensor(at::Tensor& tensor) override {
    uint32_t slot = next_slot();
    if (slot != kNone && !tensor.defined()) tensor = lent(slot);
  }
  void size(c10::SymInt&) override {}
  void constant(std::string_view) override {}

 private:
  uint32_t next_slot() { return walk_.saved.at(place_++); }

  at::Tensor lent(uint32_t slot) const {
    at::Tensor tensor(walk_.watched.at(slot).tensor.lock());
    TORCH_CHECK(tensor.defined(), "a saved tensor of " + call_.node->name() + " is gone");
    return tensor;
  }

  const Walk& walk_;
  const Call& call_;
  uint32_t place_;
};

}  // namespace

void lend_saved(const Walk& walk, uint32_t index, const std::vector<int64_t>& last_uses) {
  Lender lender(walk, index, last_uses);
  visit_saved(*walk.calls[index].node, lender);
}

void restore_saved(const Walk& walk, const Call& call) {
  Restorer restorer(walk, call);
  visit_saved(*call.node, restorer);
}

}  // namespace kiln
