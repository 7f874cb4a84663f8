#include "python/shape_text.hpp"

namespace axon::python {

std::string text_of(at::IntArrayRef numbers) {
  std::string text = "[";
  for (const int64_t number : numbers) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(number);
  }
  return text + "]";
}

std::string text_of(at::Layout layout) {
  switch (layout) {
    case at::kStrided:
      return "Strided";
    case at::kSparse:
      return "Sparse";
    case at::kSparseCsr:
      return "SparseCsr";
    case at::kSparseCsc:
      return "SparseCsc";
    case at::kSparseBsr:
      return "SparseBsr";
    case at::kSparseBsc:
      return "SparseBsc";
    case at::kMkldnn:
      return "Mkldnn";
    case at::kJagged:
      return "Jagged";
    default:
      return "number " + std::to_string(static_cast<int>(layout));
  }
}

}  // namespace axon::python
