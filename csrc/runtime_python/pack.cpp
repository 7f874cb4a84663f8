#include <torch/csrc/autograd/python_variable.h>

#include <bit>

#include "python/gil.hpp"
#include "runtime/values.hpp"
#include "runtime_python/lending.hpp"
#include "runtime_python/tensors.hpp"
#include "runtime_python/values.hpp"

namespace axon {

namespace py = pybind11;

static constexpr int kDeepest = 64;

namespace {

class Packer {
 public:
  Packer(Outbound& outbound, const Connection& peer)
      : outbound_(outbound), writer_(outbound.bytes()), peer_(peer), lendable_(peer.lending.gpus_read_by_peer.load()) {}

  void pack(PyObject* value, int depth) {
    if (THPVariable_Check(value)) return pack_tensor(THPVariable_Unpack(value));
    if (value == Py_None) return writer_.nothing();
    if (PyBool_Check(value)) return writer_.boolean(value == Py_True);
    if (PyLong_Check(value)) return pack_integer(value);
    if (PyFloat_Check(value)) return writer_.real(PyFloat_AS_DOUBLE(value));
    if (PyUnicode_Check(value)) return pack_text(value);
    if (PyBytes_Check(value)) return pack_bytes(value);
    if (depth == kDeepest)
      throw py::value_error("values are nested deeper than " + std::to_string(kDeepest) + " levels");
    if (PyTuple_Check(value) || PyList_Check(value)) return pack_sequence(value, depth + 1);
    if (PyDict_Check(value)) return pack_dict(value, depth + 1);
    pack_tensor(as_tensor(value));
  }

  // All values are packed.
  void finish() {
    const uint64_t lent = used_ & lendable_;
    if (lent == 0) return;
    const GilReleased no_gil;
    for (uint64_t left = lent; left != 0; left &= left - 1) {
      leave_behind_current_stream(outbound_, {at::kCUDA, static_cast<c10::DeviceIndex>(std::countr_zero(left))});
    }
  }

 private:
  void pack_integer(PyObject* value) {
    int overflow = 0;
    const int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow == 0 && number == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    if (overflow == 0) return writer_.integer(number);
    const uint64_t large = PyLong_AsUnsignedLongLong(value);  // raises OverflowError
    if (PyErr_Occurred() != nullptr) throw py::error_already_set();
    writer_.unsigned_integer(large);
  }

  void pack_text(PyObject* value) {
    Py_ssize_t length = 0;
    const char* text = PyUnicode_AsUTF8AndSize(value, &length);
    if (text == nullptr) throw py::error_already_set();
    check_room(length, "a string");
    writer_.text({text, static_cast<size_t>(length)});
  }

  void pack_bytes(PyObject* value) {
    check_room(PyBytes_GET_SIZE(value), "bytes");
    const auto* first = reinterpret_cast<const std::byte*>(PyBytes_AS_STRING(value));
    writer_.binary({first, static_cast<size_t>(PyBytes_GET_SIZE(value))});
  }

  void pack_sequence(PyObject* value, int depth) {
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(value);
    check_room(size, "a sequence");  // of values that take a byte at least, as below
    writer_.array(static_cast<size_t>(size));
    for (Py_ssize_t i = 0; i < size; ++i) {
      if (i >= PySequence_Fast_GET_SIZE(value)) throw py::value_error("a list has changed while it was being sent");
      pack(PySequence_Fast_GET_ITEM(value, i), depth);
    }
  }

  void pack_dict(PyObject* value, int depth) {
    const Py_ssize_t size = PyDict_Size(value);
    check_room(size, "a dict");
    writer_.map(static_cast<size_t>(size));
    PyObject* key = nullptr;
    PyObject* item = nullptr;
    Py_ssize_t position = 0;
    Py_ssize_t num_packed = 0;
    while (PyDict_Next(value, &position, &key, &item) != 0) {
      pack(key, depth);
      pack(item, depth);
      ++num_packed;
    }
    if (num_packed != size) throw py::value_error("a dict has changed while it was being sent");
  }

  void pack_tensor(const at::Tensor& tensor) {
    if (num_tensors_ == kMostTensors) {
      throw py::value_error("a message has more than " + std::to_string(kMostTensors) + " tensors");
    }
    ++num_tensors_;
    if (tensor.is_cuda() && peer_.is_neighbour())
      let_peers_read();  // before the first of them finds out whether it may
    writer_.tensor(add_tensor(outbound_, tensor, lendable_));
    used_ |= gpu_bit(tensor);
  }

  // numpy's arrays, bytearrays, whatever speaks DLPack.
  static at::Tensor as_tensor(PyObject* value) {
    const py::object tensor = py::module_::import("torch_axon.runtime._tensors").attr("as_tensor")(py::handle(value));
    return THPVariable_Unpack(tensor.ptr());
  }

  // Before it is copied.
  void check_room(Py_ssize_t num_bytes, const char* what) const {
    if (outbound_.bytes().size() + static_cast<size_t>(num_bytes) <= kMostValueBytes) [[likely]]
      return;
    throw py::value_error(std::string(what) + " of " + std::to_string(num_bytes) + " bytes cannot be sent, behind " +
                          std::to_string(outbound_.bytes().size()) + " bytes of other values; allowed: " +
                          std::to_string(kMostValueBytes) + " a message. Tensors may be larger");
  }

  Outbound& outbound_;
  ValueWriter writer_;
  const Connection& peer_;
  const uint64_t lendable_;  // GPUs, a bit each
  uint64_t used_ = 0;        // likewise
  size_t num_tensors_ = 0;
};

}  // namespace

void pack(Outbound& outbound, PyObject* value, const Connection& peer) {
  Packer packer(outbound, peer);
  packer.pack(value, 0);
  packer.finish();
}

void pack_arguments(Outbound& outbound, PyObject* positional, PyObject* named, const Connection& peer) {
  ValueWriter(outbound.bytes()).array(2);
  Packer packer(outbound, peer);
  packer.pack(positional, 0);
  packer.pack(named == nullptr || PyDict_GET_SIZE(named) == 0 ? Py_None : named, 0);
  packer.finish();
}

}  // namespace axon
