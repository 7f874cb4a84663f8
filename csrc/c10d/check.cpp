#include "c10d/check.hpp"

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include <limits>
#include <string>

#include "c10d/errors.hpp"
#include "collectives/arithmetic/arithmetic.hpp"
#include "python/shape_text.hpp"
#include "python/tensor_memory.hpp"

namespace axon::c10d_backend {

void check_timeout(std::chrono::milliseconds timeout) {
  if (timeout.count() > 0) return;
  throw_value_error("axon: argument 'timeout' is " + std::to_string(timeout.count()) + " ms; allowed: more than 0 ms");
}

// "all_reduce: argument 'tensor' is …; allowed: …"
static std::string complaint(Argument argument, const std::string& found, const std::string& allowed) {
  return std::string(argument.operation) + ": argument '" + argument.name + "' " + found + "; allowed: " + allowed;
}

static std::string name_of(at::ScalarType type) {
  return std::string("dtype ") + c10::toString(type);
}

void check_tensor(Argument argument, const at::Tensor& tensor) {
  if (C10_LIKELY(python::has_memory(tensor))) return;
  throw_type_error(complaint(argument, python::lack_of_memory(tensor).value_or(""), python::kAllowedTensors));
}

void check_type(Argument argument, const at::Tensor& tensor, at::ScalarType type) {
  if (C10_LIKELY(tensor.scalar_type() == type)) return;
  throw_type_error(complaint(argument, "has " + name_of(tensor.scalar_type()), name_of(type) + ", as the others have"));
}

void check_tensors(Argument argument, const TensorList& tensors, at::ScalarType type) {
  for (const at::Tensor& tensor : tensors) {
    check_tensor(argument, tensor);
    check_type(argument, tensor, type);
  }
}

void check_length(Argument argument, size_t length, size_t expected) {
  if (C10_LIKELY(length == expected)) return;
  throw_value_error(complaint(argument, "has length " + std::to_string(length), "length " + std::to_string(expected)));
}

const at::Tensor& single(Argument argument, const TensorList& tensors) {
  check_length(argument, tensors.size(), 1);
  check_tensor(argument, tensors.front());
  return tensors.front();
}

const TensorList& single(Argument argument, const std::vector<TensorList>& lists) {
  check_length(argument, lists.size(), 1);
  return lists.front();
}

void check_num_elements(Argument argument, const at::Tensor& tensor, int64_t expected) {
  if (C10_LIKELY(tensor.numel() == expected)) return;
  throw_value_error(complaint(
      argument, "has shape " + python::text_of(tensor.sizes()) + ", " + std::to_string(tensor.numel()) + " elements",
      std::to_string(expected) + " elements"));
}

void check_num_bytes(Argument argument, size_t received, size_t sent) {
  if (C10_LIKELY(received == sent)) return;
  throw_value_error(complaint(argument, "takes " + std::to_string(received) + " bytes from this rank itself",
                              "the " + std::to_string(sent) + " bytes that it sends to itself"));
}

void check_rank(Argument argument, int64_t rank, int size) {
  if (C10_LIKELY(rank >= 0 && rank < size)) return;
  throw_value_error(complaint(argument, "is rank " + std::to_string(rank),
                              "ranks 0 to " + std::to_string(size - 1) + " of the group"));
}

void check_tag(Argument argument, int64_t tag) {
  if (C10_LIKELY(tag >= 0 && tag <= std::numeric_limits<int32_t>::max())) return;
  throw_value_error(complaint(argument, "is " + std::to_string(tag), "tags 0 to 2147483647"));
}

void check_reduction(Argument argument, const at::Tensor& tensor, const ReductionSpecification& reduction, int size) {
  const DataType dtype = to_data_type(tensor.scalar_type());
  const Status defined =
      check(collectives::ReductionPlan{.dtype = dtype, .reduction = reduction.reduction, .num_ranks = size});
  if (C10_LIKELY(defined.ok())) return;
  throw_value_error(complaint(argument, "has " + name_of(tensor.scalar_type()),
                              std::string("dtypes for which ") + name_of(reduction.reduction) + " is defined"));
}

static int64_t num_rows(const at::Tensor& tensor) {
  return tensor.dim() == 0 ? tensor.numel() : tensor.size(0);
}

std::vector<int64_t> check_splits(Argument argument, const at::Tensor& tensor, const std::vector<int64_t>& splits,
                                  int size) {
  const int64_t rows = num_rows(tensor);
  if (splits.empty()) {
    if (rows % size != 0) {
      throw_value_error(complaint(argument, "has " + std::to_string(rows) + " rows and no split sizes are given",
                                  "multiples of " + std::to_string(size) + " rows"));
    }
    return std::vector<int64_t>(size, rows / size);
  }
  check_length(argument, splits.size(), size);
  int64_t sum = 0;
  for (const int64_t split : splits) {
    if (split < 0) throw_value_error(complaint(argument, "contains " + std::to_string(split), "sizes of 0 or more"));
    sum += split;
  }
  if (sum != rows) {
    throw_value_error(complaint(argument, "adds up to " + std::to_string(sum),
                                "splits that add up to the tensor's " + std::to_string(rows) + " rows"));
  }
  return splits;
}

}  // namespace axon::c10d_backend
