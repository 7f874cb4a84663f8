#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/python_variable.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "python/gil.hpp"
#include "python/tensor_memory.hpp"
#include "rpc/core/mailboxes/mail.hpp"
#include "rpc/core/values.hpp"
#include "rpc/python/tensors.hpp"
#include "rpc/python/values.hpp"
#include "rpc/python/zero_copy_get.hpp"

namespace axon::rpc_python {

namespace py = pybind11;

namespace {

class Unpacker {
 public:
  Unpacker(rpc::Inbound& inbound, const Placement& placement, rpc::Connection& peer)
      : reader_(inbound.values()), received_(inbound.tensors()), placement_(placement), peer_(peer) {}

  py::object unpack(int depth) {
    const rpc::Value value = reader_.next();
    switch (value.kind) {
      case rpc::Value::Kind::kNothing:
        return py::none();
      case rpc::Value::Kind::kBoolean:
        return py::bool_(value.boolean);
      case rpc::Value::Kind::kInteger:
        return checked(PyLong_FromLongLong(value.integer));
      case rpc::Value::Kind::kUnsigned:
        return checked(PyLong_FromUnsignedLongLong(value.count));
      case rpc::Value::Kind::kReal:
        return checked(PyFloat_FromDouble(value.real));
      case rpc::Value::Kind::kText:
        return checked(PyUnicode_DecodeUTF8(value.text().data(), static_cast<Py_ssize_t>(value.bytes.size()), nullptr));
      case rpc::Value::Kind::kBinary:
        return checked(PyBytes_FromStringAndSize(value.text().data(), static_cast<Py_ssize_t>(value.bytes.size())));
      case rpc::Value::Kind::kTensor:
        return tensor(value.count);
      default:
        break;
    }
    if (depth == kDeepest || value.kind == rpc::Value::Kind::kBroken)
      throw py::value_error("received values that cannot be read");
    return value.kind == rpc::Value::Kind::kArray ? list(value.count, depth + 1) : dict(value.count, depth + 1);
  }

  // Reads what pack_arguments has written.
  Arguments arguments() {
    const rpc::Value both = reader_.next();
    const rpc::Value positional = reader_.next();
    if (both.kind != rpc::Value::Kind::kArray || both.count != 2 || positional.kind != rpc::Value::Kind::kArray) {
      throw py::type_error("received a call whose values are not arguments");
    }
    Arguments arguments{py::tuple(positional.count), {}};
    for (uint64_t i = 0; i < positional.count; ++i) {
      PyTuple_SET_ITEM(arguments.positional.ptr(), static_cast<Py_ssize_t>(i), unpack(0).release().ptr());
    }
    py::object named = unpack(-1);
    if (named.is_none()) return arguments;
    if (PyDict_Check(named.ptr()) == 0) throw py::type_error("received a call whose named arguments are not a dict");
    arguments.named = std::move(named);
    return arguments;
  }

  // Reads the value that follows a mailbox's header, in place of arguments.
  py::object message() {
    rpc::MailHeader::read(reader_);
    py::object value = unpack(0);
    if (!unpack(-1).is_none()) throw py::type_error("received a message with named arguments");
    return value;
  }

  // From here on the placeholders represent the tensors.
  void set_placeholders(const py::list& placeholders) {
    for (const py::handle each : placeholders) tensors_.push_back(py::reinterpret_borrow<py::object>(each));
  }

  void check_end() const {
    if (!reader_.at_end()) throw py::value_error("trailing bytes after the encoded values");
  }

 private:
  static py::object checked(PyObject* made) {
    if (made == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::object>(made);
  }

  py::object list(uint64_t count, int depth) {
    py::object made = checked(PyList_New(static_cast<Py_ssize_t>(count)));
    for (uint64_t i = 0; i < count; ++i) {
      PyList_SET_ITEM(made.ptr(), static_cast<Py_ssize_t>(i), unpack(depth).release().ptr());
    }
    return made;
  }

  py::object dict(uint64_t count, int depth) {
    py::object made = checked(PyDict_New());
    for (uint64_t i = 0; i < count; ++i) {
      const py::object key = unpack(depth);
      const py::object item = unpack(depth);
      if (PyDict_SetItem(made.ptr(), key.ptr(), item.ptr()) != 0) throw py::error_already_set();
    }
    if (static_cast<uint64_t>(PyDict_GET_SIZE(made.ptr())) != count) {
      throw py::value_error("received a dict with keys that are equal as plain values");
    }
    return made;
  }

  py::object tensor(uint64_t index) {
    if (index >= received_.size()) throw py::value_error("received values that refer to a missing tensor");
    if (tensors_.empty()) tensors_.resize(received_.size());
    if (!tensors_[index]) tensors_[index] = checked(THPVariable_Wrap(place(received_[index])));
    return tensors_[index];
  }

  at::Tensor place(rpc::Inbound::Tensor& received) const {
    const bool is_placed = received.owner.get() != nullptr;
    const c10::Device device = device_for(received);
    const at::Tensor arrived = taken(received, device);
    const at::Tensor tensor = is_placed || arrived.device() == device ? arrived : to(arrived, device);
    const bool was_on_device = received.kind == MemoryKind::kCuda;
    if (was_on_device && tensor.is_cuda()) ask_to_expose(peer_, tensor.device());
    return tensor;
  }

  c10::Device device_for(const rpc::Inbound::Tensor& received) const {
    if (placement_.kind == Placement::Kind::kDevice) return placement_.device;
    const bool is_like = placement_.kind == Placement::Kind::kLike && received.kind == MemoryKind::kCuda;
    return is_like && at::hasCUDA() ? c10::impl::VirtualGuardImpl(at::kCUDA).getDevice() : at::kCPU;
  }

  at::Tensor taken(rpc::Inbound::Tensor& received, c10::Device device) const {
    try {
      return take_tensor(received, device, peer_);
    } catch (const NotReadable&) {
      ask_not_to_expose(peer_);
      throw;
    }
  }

  static at::Tensor to(const at::Tensor& tensor, c10::Device device) {
    const python::GilReleased no_gil;
    return tensor.to(device);
  }

  rpc::ValueReader reader_;
  std::span<rpc::Inbound::Tensor> received_;
  const Placement placement_;
  rpc::Connection& peer_;
  std::vector<py::object> tensors_;  // by index; those referenced so far
};

}  // namespace

// Reads all values of a message. After an exception, the exposed tensors of the message will not be read.
template <typename Read>
static auto read_all(rpc::Inbound& inbound, const Placement& placement, rpc::Connection& peer, Read read) {
  const python::BelowPython no_modes;  // modes of the thread that takes an answer, for example FakeTensorMode
  Unpacker unpacker(inbound, placement, peer);
  try {
    auto values = read(unpacker);
    unpacker.check_end();
    return values;
  } catch (...) {
    for (rpc::Inbound::Tensor& tensor : inbound.tensors()) tensor.exposure = rpc::Exposure();
    throw;
  }
}

Placement placement_of(const py::object& device) {
  if (device.is_none()) return {};
  const auto wanted = py::cast<c10::Device>(device);
  return {.kind = wanted.is_cpu() ? Placement::Kind::kHost : Placement::Kind::kDevice, .device = wanted};
}

py::object unpack(rpc::Inbound& inbound, const Placement& placement, rpc::Connection& peer) {
  return read_all(inbound, placement, peer, [](Unpacker& unpacker) { return unpacker.unpack(0); });
}

py::object unpack_announced(rpc::Inbound& inbound, const py::list& placeholders, rpc::Connection& peer) {
  Unpacker unpacker(inbound, {}, peer);
  unpacker.set_placeholders(placeholders);
  return unpacker.unpack(0);
}

py::object unpack_message(rpc::Inbound& inbound, const Placement& placement, rpc::Connection& peer) {
  return read_all(inbound, placement, peer, [](Unpacker& unpacker) { return unpacker.message(); });
}

Arguments unpack_arguments(rpc::Inbound& inbound, const Placement& placement, rpc::Connection& peer) {
  return read_all(inbound, placement, peer, [](Unpacker& unpacker) { return unpacker.arguments(); });
}

}  // namespace axon::rpc_python
