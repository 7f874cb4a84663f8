#include "rpc/python/call_members.hpp"

#include <torch/csrc/utils/pybind.h>

#include <exception>
#include <stdexcept>
#include <string>

#include "rpc/python/errors.hpp"
#include "rpc/python/values.hpp"
#include "rpc/python/waits.hpp"

namespace axon::rpc_python {

namespace py = pybind11;

bool wait(PythonCall& call, double timeout_s) {
  const auto wait_until = [&](sync::Clock::time_point time) { return call.connection().wait(call, time); };
  return call.finished() || wait_for(timeout_s, wait_until) || call.finished();
}

// A C++ function's error may contain arbitrary bytes as text, which cannot be unpacked.
static py::object unpack_failure(PythonCall& call) {
  try {
    return unpack(call.reply(), {}, call.connection());
  } catch (const std::exception& error) {
    return py::str("cannot decode the error's text: " + std::string(error.what()));
  }
}

py::object take_answer(PythonCall& call, const py::object& device) {
  block_if_runtimes_end();
  const Status& status = call.status();
  if (!status.ok() && status.code() != ErrorCode::kRemote) {
    if (!call.destination_error()) raise(status);
    PyErr_SetObject(py::type::of(call.destination_error()).ptr(), call.destination_error().ptr());
    throw py::error_already_set();
  }
  if (call.answer == rpc::Call::Answer::kNone || (status.ok() && call.is_mail)) return py::none();
  if (status.ok()) return unpack(call.reply(), placement_of(device), call.connection());
  const auto exceptions = py::module_::import("torch_axon.runtime._exceptions");
  exceptions.attr("raise_remote_failure")(text_of(status.message()), unpack_failure(call));
  throw std::logic_error("raise_remote_failure has returned");
}

bool is_cancelled(const PythonCall& call) {
  return call.finished() && call.status().code() == ErrorCode::kCancelled;
}

}  // namespace axon::rpc_python
