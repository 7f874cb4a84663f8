#include "rpc/python/local_memory.hpp"

#include <torch/csrc/autograd/python_variable.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "python/gil.hpp"
#include "python/shape_text.hpp"
#include "python/tensor_memory.hpp"
#include "rpc/python/tensors.hpp"

namespace axon::rpc_python {

namespace py = pybind11;

static DataType compressed_as(at::ScalarType type) noexcept {
  if (type == at::kBFloat16) return DataType::kBFloat16;
  return type == at::kFloat ? DataType::kFloat32 : DataType::kByte;
}

static LocalMemory memory_of_tensor(const at::Tensor& tensor, Use use, const std::string& what) {
  if (!tensor.is_cpu() && !tensor.is_cuda()) {
    throw py::value_error(what + " is a tensor on " + tensor.device().str() +
                          "; allowed: tensors on the CPU and on CUDA");
  }
  if (const auto lack = python::lack_of_memory(tensor)) {
    throw py::value_error(what + " is a tensor that " + *lack + "; allowed: " + python::kAllowedTensors);
  }
  if (!tensor.is_contiguous() || tensor.is_conj() || tensor.is_neg()) {
    throw py::value_error(what + " is a tensor whose memory is not contiguous or not its value (strides " +
                          python::text_of(tensor.strides()) +
                          "); allowed: contiguous tensors, see Tensor.contiguous()");
  }
  const auto* const data = use == Use::kWritten ? tensor.mutable_data_ptr() : tensor.const_data_ptr();
  if (use == Use::kWritten && !tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  return {.buffer = {.data = static_cast<std::byte*>(const_cast<void*>(data)),
                     .num_bytes = tensor.nbytes(),
                     .kind = tensor.is_cuda() ? MemoryKind::kCuda : MemoryKind::kHost},
          .owner = owner_of_memory(tensor),
          .gpu = static_cast<c10::DeviceIndex>(tensor.is_cuda() ? tensor.get_device() : -1),
          .dtype = compressed_as(tensor.scalar_type())};
}

static void release_view(void* held) {
  if (!python::python_goes_on()) return;
  const python::GilHeld gil;
  auto* const view = static_cast<Py_buffer*>(held);
  PyBuffer_Release(view);
  delete view;
}

// Returns whether a format of PEP 3118 contains objects. It has the names of fields between colons.
static bool has_objects(std::string_view format) {
  bool is_name = false;
  for (const char each : format) {
    if (each == ':') is_name = !is_name;
    if (each == 'O' && !is_name) return true;
  }
  return false;
}

// Peers must not read or write pointers to Python objects. A buffer whose format Python cannot describe has none.
static bool holds_objects(py::handle object, const Py_buffer& view) {
  if (view.itemsize < static_cast<Py_ssize_t>(sizeof(void*))) return false;
  Py_buffer described;
  if (PyObject_GetBuffer(object.ptr(), &described, PyBUF_ANY_CONTIGUOUS | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    return false;
  }
  const bool holds = described.format != nullptr && has_objects(described.format);
  PyBuffer_Release(&described);
  return holds;
}

static LocalMemory memory_of_buffer(py::handle object, Use use, const std::string& what) {
  auto view = std::make_unique<Py_buffer>();
  const int flags = PyBUF_ANY_CONTIGUOUS | (use == Use::kWritten ? PyBUF_WRITABLE : 0);
  if (PyObject_GetBuffer(object.ptr(), view.get(), flags) != 0) {
    PyErr_Clear();
    throw py::value_error(what + " has memory that is not contiguous" +
                          (use == Use::kWritten ? ", or is read-only" : "") + "; allowed: contiguous memory" +
                          (use == Use::kWritten ? " that may be written" : ""));
  }
  if (holds_objects(object, *view)) {
    PyBuffer_Release(view.get());
    throw py::type_error(what + " holds Python objects; allowed: numbers, characters and raw bytes");
  }
  const Buffer buffer{.data = static_cast<std::byte*>(view->buf), .num_bytes = static_cast<size_t>(view->len)};
  return {.buffer = buffer, .owner = Owner(view.release(), &release_view)};
}

LocalMemory local_memory(py::handle object, Use use, const char* what) {
  if (THPVariable_Check(object.ptr())) return memory_of_tensor(THPVariable_Unpack(object.ptr()), use, what);
  if (PyObject_CheckBuffer(object.ptr()) != 0) return memory_of_buffer(object, use, what);
  throw py::type_error(std::string(what) + " is of type " + Py_TYPE(object.ptr())->tp_name +
                       "; allowed: a tensor, a NumPy array, or another object with the buffer protocol");
}

LocalMemory host_memory(py::handle object, Use use, const char* what) {
  LocalMemory memory = local_memory(object, use, what);
  if (memory.gpu >= 0) throw py::value_error(std::string(what) + " is a tensor on CUDA; allowed: memory of the host");
  return memory;
}

}  // namespace axon::rpc_python
