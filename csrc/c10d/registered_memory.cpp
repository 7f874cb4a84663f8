#include "c10d/registered_memory.hpp"

#include <torch/csrc/utils/pybind.h>

#include <string>

#include "c10d/errors.hpp"
#include "python/gil.hpp"

namespace axon::c10d_backend {

namespace py = pybind11;

void check_registered_memory(const char* operation, c10::Device device) {
  if (device.is_cuda() && has_registered_memory(device.has_index() ? device.index() : c10::DeviceIndex{0})) return;
  throw_value_error(std::string(operation) + ": device is " + device.str() +
                    "; allowed: a CUDA device of this process, in a build with CUDA (AXON_CUDA=1)");
}

at::Tensor allocate_registered(int64_t num_elements, const at::TensorOptions& options) {
  check_registered_memory("allocate_tensor", options.device());
  const python::GilHeld gil;
  const py::object allocate = py::module_::import("torch_axon._memory").attr("allocate");
  return allocate(num_elements, c10::typeMetaToScalarType(options.dtype()), options.device()).cast<at::Tensor>();
}

}  // namespace axon::c10d_backend
