#include <torch/csrc/autograd/python_variable.h>

#include <array>
#include <bit>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "python/gil.hpp"
#include "python/tensor_memory.hpp"
#include "rpc/core/values.hpp"
#include "rpc/python/tensors.hpp"
#include "rpc/python/values.hpp"
#include "rpc/python/zero_copy_get.hpp"

namespace axon::rpc_python {

namespace py = pybind11;

namespace {

// Error messages show at most this many characters of a key.
constexpr Py_ssize_t kLongestKey = 60;

std::string shown(PyObject* key) {
  const auto text = py::reinterpret_steal<py::object>(PyObject_Repr(key));
  const auto start =
      py::reinterpret_steal<py::object>(text ? PyUnicode_Substring(text.ptr(), 0, kLongestKey) : nullptr);
  const char* const bytes = start ? PyUnicode_AsUTF8(start.ptr()) : nullptr;
  if (bytes == nullptr) {
    PyErr_Clear();
    return "...";
  }
  return std::string(bytes) + (PyUnicode_GET_LENGTH(text.ptr()) > kLongestKey ? "..." : "");
}

std::string name_of(PyTypeObject* type) {
  const std::string_view name = type->tp_name;  // includes the module, except for Python's own types
  return std::string(name.substr(name.rfind('.') + 1));
}

// Runs `make`, and adds the value's location to the exceptions that it raises.
template <typename Make, typename Where>
auto located(Make make, Where where) {
  const auto raise = [&](PyObject* type, const std::string& message) {
    PyErr_SetString(type, (where() + ": " + message).c_str());
    throw py::error_already_set();
  };
  try {
    return make();
  } catch (const py::error_already_set& error) {
    const bool is_refusal = error.matches(PyExc_TypeError) || error.matches(PyExc_ValueError);
    if (!is_refusal) throw;
    raise(error.matches(PyExc_TypeError) ? PyExc_TypeError : PyExc_ValueError, py::str(error.value()));
    throw;
  } catch (const py::type_error& error) {
    raise(PyExc_TypeError, error.what());
    throw;
  } catch (const py::value_error& error) {
    raise(PyExc_ValueError, error.what());
    throw;
  }
}

class Packer {
 public:
  enum class Root : uint8_t { kArguments, kMessage, kAnswer };  // kMessage: a message to a mailbox

  Packer(rpc::Outbound& outbound, const rpc::Connection& peer, Root root)
      : outbound_(outbound),
        writer_(outbound.bytes()),
        peer_(peer),
        root_(root),
        exposable_(peer.zero_copy.gpus_read_by_peer.load()) {}

  // `depth` counts the steps to the value.
  void pack(PyObject* value, int depth) {
    if (THPVariable_Check(value)) return pack_tensor(value, depth);
    if (value == Py_None) return writer_.nothing();
    if (PyBool_Check(value)) return writer_.boolean(value == Py_True);
    if (PyLong_Check(value)) return pack_integer(value, depth);
    if (PyFloat_Check(value)) return writer_.real(PyFloat_AS_DOUBLE(value));
    if (PyUnicode_Check(value)) return pack_text(value, depth);
    if (PyBytes_Check(value)) return pack_bytes(value, depth);
    const bool is_sequence = PyTuple_Check(value) || PyList_Check(value);
    if (!is_sequence && !PyDict_Check(value)) return pack_other(value, depth);
    if (depth == most_steps()) {
      refuse(PyExc_ValueError, "values are nested deeper than " + std::to_string(kDeepest) + " levels",
             most_steps() - kDeepest);  // the whole path would be too long to help
    }
    is_sequence ? pack_sequence(value, depth) : pack_dict(value, depth);
  }

  // Call it after all values are packed.
  void finish() {
    const uint64_t exposed = used_ & exposable_;
    if (exposed == 0) return;
    const python::GilReleased no_gil;
    for (uint64_t left = exposed; left != 0; left &= left - 1) {
      leave_after_current_stream(outbound_, {at::kCUDA, static_cast<c10::DeviceIndex>(std::countr_zero(left))});
    }
  }

 private:
  // A step from a container to a value in it.
  struct Step {
    PyObject* key;  // a borrowed reference; null in a sequence
    Py_ssize_t index;
  };

  // Arguments are wrapped in a sequence and a dict, which users do not see.
  int most_steps() const noexcept { return root_ == Root::kArguments ? kDeepest + 1 : kDeepest; }

  // Returns a path, for example "argument 1['layers'][3]".
  std::string where(int depth) const {
    std::string text = root_ == Root::kAnswer    ? "the answer"
                       : root_ == Root::kMessage ? "the message"
                                                 : "the arguments";
    for (int i = 0; i < depth; ++i) {
      const Step& step = steps_[static_cast<size_t>(i)];
      const std::string name = step.key != nullptr ? shown(step.key) : std::to_string(step.index);
      if (i > 0 || root_ != Root::kArguments) {
        text += "[" + name + "]";
      } else {
        text = "argument " + (step.key != nullptr ? name : std::to_string(step.index + 1));
      }
    }
    return text;
  }

  [[noreturn]] void refuse(PyObject* type, const std::string& message, int depth) const {
    PyErr_SetString(type, (where(depth) + ": " + message).c_str());
    throw py::error_already_set();
  }

  void pack_integer(PyObject* value, int depth) {
    int overflow = 0;
    const int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow == 0 && number == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
    if (overflow == 0) return writer_.integer(number);
    const uint64_t large = overflow > 0 ? PyLong_AsUnsignedLongLong(value) : 0;
    if (overflow < 0 || PyErr_Occurred() != nullptr) {
      PyErr_Clear();
      refuse(
          PyExc_OverflowError,
          "an int cannot be sent that needs more than 64 bits; allowed: -2**63 to 2**64 - 1; send others as bytes or "
          "str",
          depth);
    }
    writer_.unsigned_integer(large);
  }

  void pack_text(PyObject* value, int depth) {
    Py_ssize_t length = 0;
    const char* text = PyUnicode_AsUTF8AndSize(value, &length);
    if (text == nullptr) {
      const py::error_already_set error;
      refuse(PyExc_ValueError, "a str cannot be sent: " + std::string(py::str(error.value())), depth);
    }
    check_room(length, "a str", depth);
    writer_.text({text, static_cast<size_t>(length)});
  }

  void pack_bytes(PyObject* value, int depth) {
    check_room(PyBytes_GET_SIZE(value), "bytes", depth);
    const auto* first = reinterpret_cast<const std::byte*>(PyBytes_AS_STRING(value));
    writer_.binary({first, static_cast<size_t>(PyBytes_GET_SIZE(value))});
  }

  // Holds references to the values: packing them may run their code, or let other threads run, which may change the
  // container.
  void pack_sequence(PyObject* value, int depth) {
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(value);
    check_room(size, "a sequence", depth);  // each value takes at least one byte, as below
    writer_.array(static_cast<size_t>(size));
    for (Py_ssize_t i = 0; i < size; ++i) {
      if (i >= PySequence_Fast_GET_SIZE(value)) {
        refuse(PyExc_ValueError, "a list has changed while it was being sent", depth);
      }
      const auto item = py::reinterpret_borrow<py::object>(PySequence_Fast_GET_ITEM(value, i));
      step(depth) = {.key = nullptr, .index = i};
      pack(item.ptr(), depth + 1);
    }
  }

  void pack_dict(PyObject* value, int depth) {
    const Py_ssize_t size = PyDict_Size(value);
    check_room(size, "a dict", depth);
    writer_.map(static_cast<size_t>(size));
    PyObject* key = nullptr;
    PyObject* item = nullptr;
    Py_ssize_t position = 0;
    Py_ssize_t num_packed = 0;
    while (PyDict_Next(value, &position, &key, &item) != 0) {
      const std::array held{py::reinterpret_borrow<py::object>(key), py::reinterpret_borrow<py::object>(item)};
      if (!PyUnicode_CheckExact(key)) check_key(key, depth);
      step(depth) = {.key = key, .index = 0};
      pack(key, depth);
      pack(item, depth + 1);
      ++num_packed;
    }
    if (num_packed != size) refuse(PyExc_ValueError, "a dict has changed while it was being sent", depth);
  }

  // The receiver must be able to look up the key again.
  void check_key(PyObject* key, int depth) const {
    const bool is_plain =
        key == Py_None || PyLong_Check(key) || PyFloat_Check(key) || PyUnicode_Check(key) || PyBytes_Check(key);
    if (!is_plain || is_numpy_scalar(key)) {
      refuse(PyExc_TypeError,
             "a dict key of type " + name_of(Py_TYPE(key)) + " cannot be sent: " + shown(key) +
                 "; allowed: None, bool, int, float, str, bytes" +
                 (is_numpy_scalar(key) ? "; call item() of a NumPy scalar" : ""),
             depth);
    }
    if (PyFloat_Check(key) && std::isnan(PyFloat_AS_DOUBLE(key))) {
      refuse(PyExc_ValueError, "a dict key that is nan cannot be sent, because nan never equals a key", depth);
    }
  }

  // Some NumPy scalars are also instances of float, str or bytes.
  static bool is_numpy_scalar(PyObject* value) {
    if (PyUnicode_CheckExact(value) || PyLong_CheckExact(value) || PyFloat_CheckExact(value)) return false;
    PyObject* const numpy = PyDict_GetItemString(PyImport_GetModuleDict(), "numpy");  // a borrowed reference
    if (numpy == nullptr) return false;
    const auto scalar = py::getattr(numpy, "generic", py::none());
    return !scalar.is_none() && PyObject_IsInstance(value, scalar.ptr()) == 1;
  }

  void pack_tensor(PyObject* value, int depth) {
    if (!THPVariable_CheckExact(value)) return pack_other(value, depth);
    add(value, depth);
  }

  // Packs NumPy arrays and scalars, bytearrays, DLPack objects, and subclasses of tensors.
  void pack_other(PyObject* value, int depth) {
    const py::object sent = located(
        [&] {
          return py::object(py::module_::import("torch_axon.runtime._tensors").attr("as_sendable")(py::handle(value)));
        },
        [&] { return where(depth); });
    if (THPVariable_Check(sent.ptr())) return add(sent.ptr(), depth);
    pack(sent.ptr(), depth);
  }

  void add(PyObject* value, int depth) {
    const at::Tensor& tensor = THPVariable_Unpack(value);
    if (!python::has_memory(tensor)) {
      refuse(PyExc_TypeError,
             "a " + name_of(Py_TYPE(value)) + " that " + python::lack_of_memory(tensor).value_or("") +
                 " cannot be sent; allowed: " + python::kAllowedTensors,
             depth);
    }
    if (num_tensors_ == rpc::kMostTensors) {
      throw py::value_error("a message has more than " + std::to_string(rpc::kMostTensors) + " tensors");
    }
    ++num_tensors_;
    if (tensor.is_cuda() && peer_.is_neighbour())
      let_peers_read();  // must come before the first peer checks whether it may read
    writer_.tensor(located([&] { return add_tensor(outbound_, tensor, exposable_); }, [&] { return where(depth); }));
    used_ |= gpu_bit(tensor);
  }

  // Checks the size before the value is copied.
  void check_room(Py_ssize_t num_bytes, const char* what, int depth) const {
    if (outbound_.bytes().size() + static_cast<size_t>(num_bytes) <= rpc::kMostValueBytes) [[likely]]
      return;
    refuse(PyExc_ValueError,
           std::string(what) + " of " + std::to_string(num_bytes) + " bytes cannot be sent in addition to " +
               std::to_string(outbound_.bytes().size()) + " bytes of other values; allowed: " +
               std::to_string(rpc::kMostValueBytes) + " per message. Tensors may be larger",
           depth);
  }

  Step& step(int depth) noexcept { return steps_[static_cast<size_t>(depth)]; }

  rpc::Outbound& outbound_;
  rpc::ValueWriter writer_;
  const rpc::Connection& peer_;
  const Root root_;
  const uint64_t exposable_;  // GPUs, one bit each
  uint64_t used_ = 0;         // GPUs, one bit each
  size_t num_tensors_ = 0;
  std::array<Step, kDeepest + 1> steps_;  // only the entries up to the current value are initialised
};

}  // namespace

static void pack_one(rpc::Outbound& outbound, PyObject* value, const rpc::Connection& peer, Packer::Root root) {
  Packer packer(outbound, peer, root);
  packer.pack(value, 0);
  packer.finish();
}

void pack(rpc::Outbound& outbound, PyObject* value, const rpc::Connection& peer) {
  pack_one(outbound, value, peer, Packer::Root::kAnswer);
}

void pack_message(rpc::Outbound& outbound, PyObject* value, const rpc::Connection& peer) {
  pack_one(outbound, value, peer, Packer::Root::kMessage);
}

void pack_arguments(rpc::Outbound& outbound, PyObject* positional, PyObject* named, const rpc::Connection& peer) {
  rpc::ValueWriter(outbound.bytes()).array(2);
  Packer packer(outbound, peer, Packer::Root::kArguments);
  packer.pack(positional, 0);
  packer.pack(named == nullptr || PyDict_GET_SIZE(named) == 0 ? Py_None : named, 0);
  packer.finish();
}

}  // namespace axon::rpc_python
