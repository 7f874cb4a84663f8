#include "rpc/python/errors.hpp"

#include <stdexcept>

#include "python/gil.hpp"
#include "python/signals.hpp"

namespace axon::rpc_python {

namespace py = pybind11;

const char* name_of(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kTimeout:
      return "timeout";
    case ErrorCode::kPeerLost:
      return "peer_lost";
    case ErrorCode::kAborted:
      return "aborted";
    case ErrorCode::kResourceExhausted:
      return "resource_exhausted";
    case ErrorCode::kRemote:
      return "remote";
    case ErrorCode::kCancelled:
      return "cancelled";
    case ErrorCode::kUnknownHost:
      return "unknown_host";
    case ErrorCode::kUnauthenticated:
      return "wrong_secret";
    case ErrorCode::kAccessDenied:
      return "access_denied";
    case ErrorCode::kMismatch:
      return "mismatch";
    case ErrorCode::kTransport:
    case ErrorCode::kInternal:
    case ErrorCode::kOk:
      return "transport";
  }
  return "";
}

static py::module_ errors() {
  return py::module_::import("torch_axon.runtime._errors");
}

py::object text_of(const std::string& text) {
  return py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

void raise(const Status& failure) {
  errors().attr("raise_failure")(name_of(failure.code()), text_of(failure.message()));
  throw std::logic_error("raise_failure has returned");
}

void block_if_runtimes_end() {
  if (!python::would_block()) [[likely]]
    return;
  const python::GilReleased no_gil;
  python::block_if_runtimes_end();
}

}  // namespace axon::rpc_python
