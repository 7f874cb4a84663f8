#include "rpc/python/destinations.hpp"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <utility>

#include "python/gil.hpp"
#include "rpc/python/tensors.hpp"
#include "rpc/python/values.hpp"

namespace axon::rpc_python {

namespace py = pybind11;

static py::list describe(rpc::Inbound& announced) {
  const py::object incoming = py::module_::import("torch_axon.runtime._memory").attr("incoming");
  py::list descriptions;
  for (const rpc::Inbound::Tensor& tensor : announced.tensors()) {
    const std::optional<at::ScalarType> type = type_of(tensor.dtype);
    if (!type) throw py::type_error("the peer announced a tensor of a type that this version of torch does not have");
    py::tuple shape(tensor.shape.size());
    for (size_t i = 0; i < tensor.shape.size(); ++i) shape[i] = tensor.shape[i];
    descriptions.append(incoming(*type, shape, tensor.kind == MemoryKind::kCuda));
  }
  return descriptions;
}

Destinations ask_where(const py::object& where, rpc::Inbound& announced, rpc::Connection& peer) {
  const py::list incoming = describe(announced);
  const py::tuple arguments = py::make_tuple(incoming, unpack_announced(announced, incoming, peer));
  const auto given_out = py::reinterpret_steal<py::object>(python::call_or_sleep(where.ptr(), arguments.ptr()));
  if (!given_out) throw py::error_already_set();
  const py::list tensors = given_out;
  const std::span<const rpc::Inbound::Tensor> coming = announced.tensors();
  if (tensors.size() != coming.size()) throw py::value_error("destinations and tensors differ in number");
  Destinations destinations;
  for (size_t i = 0; i < coming.size(); ++i) {
    Buffer& buffer = destinations.buffers.emplace_back();
    Owner& owner = destinations.owners.emplace_back();
    const py::object given = tensors[i];
    if (given.is_none()) continue;
    const at::Tensor& tensor = THPVariable_Unpack(given.ptr());
    if (tensor.nbytes() != coming[i].data.num_bytes)
      throw py::value_error("the size of a destination differs from that of its tensor");
    if (tensor.is_cpu()) buffer = {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()};
    owner = owner_of(tensor);
  }
  return destinations;
}

void let_go(py::object object) noexcept {
  if (!object) return;
  if (!python::python_goes_on()) {
    object.release();
    return;
  }
  const python::GilHeld gil;
  object = {};
}

}  // namespace axon::rpc_python
