#include "rpc/python/buffers.hpp"

#include <ATen/Functions.h>
#include <ATen/dlpack.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "python/gil.hpp"
#include "python/tensor_memory.hpp"

namespace axon::rpc_python {

namespace py = pybind11;

static_assert(std::endian::native == std::endian::little);

namespace {

// Releases the buffer on any thread; it stays exported if the interpreter is shutting down.
struct Release {
  void operator()(Py_buffer* view) const noexcept {
    if (!python::python_goes_on()) return;
    const python::GilHeld gil;
    PyBuffer_Release(view);
    delete view;
  }
};
using View = std::unique_ptr<Py_buffer, Release>;

View view_of(PyObject* value) {
  auto view = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(value, view.get(), PyBUF_FULL_RO) != 0) throw py::error_already_set();
  return View(view.release());
}

bool is_one_of(std::string_view characters, char wanted) {
  return characters.find(wanted) != std::string_view::npos;
}

std::optional<at::ScalarType> integer_type(bool is_signed, Py_ssize_t num_bytes) {
  switch (num_bytes) {
    case 1:
      return is_signed ? at::kChar : at::kByte;
    case 2:
      return is_signed ? at::kShort : at::kUInt16;
    case 4:
      return is_signed ? at::kInt : at::kUInt32;
    case 8:
      return is_signed ? at::kLong : at::kUInt64;
    default:
      return std::nullopt;
  }
}

// Parses a format of the struct module, in native byte order.
std::optional<at::ScalarType> element_type(const Py_buffer& view) {
  std::string_view format = view.format == nullptr ? "B" : view.format;
  if (!format.empty() && is_one_of("@=<", format.front())) format.remove_prefix(1);
  if (format == "?") return at::kBool;
  if (format == "c") return at::kByte;
  if (format == "e") return at::kHalf;
  if (format == "f") return at::kFloat;
  if (format == "d") return at::kDouble;
  if (format == "Zf") return at::kComplexFloat;
  if (format == "Zd") return at::kComplexDouble;
  if (format.size() != 1) return std::nullopt;
  if (is_one_of("bhilqn", format.front())) return integer_type(true, view.itemsize);
  if (is_one_of("BHILQN", format.front())) return integer_type(false, view.itemsize);
  return std::nullopt;
}

// Describes memory without negative strides; `flipped` dimensions had negative ones.
struct Forward {
  char* begin;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;  // in bytes
  std::vector<int64_t> flipped;
};

std::vector<int64_t> sizes_of(const Py_buffer& view) {
  if (view.shape == nullptr && view.ndim == 1) return {view.len / view.itemsize};
  return {view.shape, view.shape + view.ndim};
}

// Returns strides in bytes. Exporters of contiguous memory, for example ctypes, may omit them although they are
// requested.
std::vector<int64_t> strides_of(const Py_buffer& view, const std::vector<int64_t>& sizes) {
  if (view.strides != nullptr) return {view.strides, view.strides + view.ndim};
  std::vector<int64_t> strides(sizes.size(), view.itemsize);
  for (size_t dim = sizes.size(); dim-- > 1;) strides[dim - 1] = strides[dim] * sizes[dim];
  return strides;
}

Forward forward(const Py_buffer& view) {
  Forward made{.begin = static_cast<char*>(view.buf), .sizes = sizes_of(view), .strides = {}, .flipped = {}};
  made.strides = strides_of(view, made.sizes);
  for (size_t dim = 0; dim < made.sizes.size(); ++dim) {
    if (made.strides[dim] >= 0) continue;
    made.begin += made.strides[dim] * (made.sizes[dim] - 1);
    made.strides[dim] = -made.strides[dim];
    made.flipped.push_back(static_cast<int64_t>(dim));
  }
  return made;
}

// Converts strides from bytes to elements. Returns false, and changes nothing, if they are not multiples of an element.
bool counts_in_elements(Forward& memory, Py_ssize_t element_num_bytes) {
  const auto alignment = static_cast<uintptr_t>(std::min<Py_ssize_t>(element_num_bytes, 8));
  if (reinterpret_cast<uintptr_t>(memory.begin) % alignment != 0) return false;
  for (const int64_t stride : memory.strides) {
    if (stride % element_num_bytes != 0) return false;
  }
  for (int64_t& stride : memory.strides) stride /= element_num_bytes;
  return true;
}

at::Tensor tensor_over(View view, at::ScalarType type) {
  Forward memory = forward(*view);
  const Py_ssize_t element_num_bytes = view->itemsize;
  const bool is_typed = counts_in_elements(memory, element_num_bytes);
  if (!is_typed) {
    memory.sizes.push_back(element_num_bytes);
    memory.strides.push_back(1);
  }
  const auto release = [held = view.release()](void*) { Release()(held); };
  at::Tensor tensor =
      at::from_blob(memory.begin, memory.sizes, memory.strides, release, at::dtype(is_typed ? type : at::kByte));
  if (is_typed && memory.flipped.empty()) return tensor;
  const python::GilReleased no_gil;
  if (!memory.flipped.empty()) tensor = tensor.flip(memory.flipped);
  return is_typed ? tensor : tensor.contiguous().view(type).squeeze(-1);
}

// Copies memory that is reached through pointers.
at::Tensor copy_of(const Py_buffer& view, at::ScalarType type) {
  at::Tensor copy = at::empty(sizes_of(view), type);
  if (PyBuffer_ToContiguous(copy.mutable_data_ptr(), &view, view.len, 'C') != 0) throw py::error_already_set();
  return copy;
}

at::Tensor tensor_of(View view, at::ScalarType type) {
  const python::BelowPython no_modes;
  if (view->len == 0) return at::empty(sizes_of(*view), type);
  if (view->suboffsets == nullptr) return tensor_over(std::move(view), type);
  return copy_of(*view, type);
}

}  // namespace

py::object tensor_of_buffer(const py::object& value) {
  if (PyObject_CheckBuffer(value.ptr()) == 0) return py::none();
  View view = view_of(value.ptr());
  const std::optional<at::ScalarType> type = element_type(*view);
  if (!type) {
    throw py::type_error("a buffer of format '" + std::string(view->format) +
                         "' cannot be sent; allowed: ?, c, b, B, h, H, i, I, l, L, q, Q, n, N, e, f, d, Zf, Zd, in "
                         "native byte order");
  }
  return py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor_of(std::move(view), *type)));
}

namespace {

const DLTensor& described_by(const py::capsule& capsule) {
  const std::string_view name = capsule.name() == nullptr ? "" : capsule.name();
  if (name == "dltensor_versioned") return capsule.get_pointer<DLManagedTensorVersioned>()->dl_tensor;
  if (name == "dltensor") return capsule.get_pointer<DLManagedTensor>()->dl_tensor;
  throw py::value_error("its __dlpack__() returned a capsule '" + std::string(name) +
                        "'; allowed: 'dltensor' and 'dltensor_versioned'");
}

// Returns whether the distance of the last element from the first fits into an int64_t of bytes.
bool has_length(const DLTensor& tensor) {
  int64_t num_elements = 1;
  int64_t extent = 1;
  for (int dim = 0; dim < tensor.ndim; ++dim) {
    const int64_t size = tensor.shape[dim];
    const int64_t stride = tensor.strides == nullptr ? 0 : tensor.strides[dim];
    int64_t step = 0;
    if (size < 0 || stride < 0 || __builtin_mul_overflow(num_elements, std::max<int64_t>(size, 1), &num_elements) ||
        __builtin_mul_overflow(std::max<int64_t>(size - 1, 0), stride, &step) ||
        __builtin_add_overflow(extent, step, &extent)) {
      return false;
    }
  }
  int64_t num_bytes = 0;
  const int64_t most = std::max(num_elements, extent);
  return !__builtin_mul_overflow(most, (int64_t{tensor.dtype.bits} * tensor.dtype.lanes + 7) / 8, &num_bytes);
}

}  // namespace

void check_capsule(const py::capsule& capsule) {
  const DLTensor& tensor = described_by(capsule);
  if (tensor.ndim >= 0 && (tensor.ndim == 0 || tensor.shape != nullptr) && has_length(tensor)) return;
  throw py::value_error("it has negative strides or an invalid shape; pass a copy instead");
}

}  // namespace axon::rpc_python
