// kiln::check_indices: raises the error of the first index that a program found out of range (kiln/lower/index_checks.py).
#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <limits>
#include <string>

namespace {

std::string filled(std::string text, const std::string& name, int64_t value) {
  size_t place = text.find(name);
  return place == std::string::npos ? text : text.replace(place, name.size(), std::to_string(value));
}

[[noreturn]] void raise(const std::string& message, int64_t index, int64_t size) {
  const std::string kind = message.substr(0, message.find(": "));
  const std::string text = filled(filled(message.substr(kind.size() + 2), "{index}", index), "{size}", size);
  TORCH_CHECK_INDEX(kind != "IndexError", text);
  TORCH_CHECK(false, text);
}

void check_indices(const at::Tensor& found, at::IntArrayRef sizes, const c10::List<std::string>& messages) {
  const int64_t* indices = found.const_data_ptr<int64_t>();
  for (size_t place = 0; place < sizes.size(); place++) {
    if (indices[place] != std::numeric_limits<int64_t>::min()) {
      raise(messages.get(place), indices[place], sizes[place]);
    }
  }
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(kiln, library) {
  library.def("check_indices(Tensor found, int[] sizes, str[] messages) -> ()");
  library.impl("check_indices", c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(check_indices));
}
