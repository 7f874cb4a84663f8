// Raises the failures of the core as Python exceptions. All functions need the GIL.
#pragma once

#include <pybind11/pybind11.h>

#include <string>
#include <utility>

#include "base/status.hpp"

namespace axon::rpc_python {

const char* name_of(ErrorCode code) noexcept;

// Text from a peer need not be valid UTF-8.
pybind11::object text_of(const std::string& text);

// Raises the Python exception that corresponds to the failure.
[[noreturn]] void raise(const Status& failure);

template <typename T>
T value_or_raise(Result<T> result) {
  if (!result.ok()) raise(result.status());
  return std::move(result).value();
}

// For callers that do not wait, but would otherwise get the errors of runtimes that are being closed.
void block_if_runtimes_end();

}  // namespace axon::rpc_python
