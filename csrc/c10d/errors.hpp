// Converts the engine's failures to the exceptions that users of torch.distributed catch.
//
//   bad arguments        c10::ValueError         → ValueError
//   everything else      c10::DistBackendError   → torch.distributed.DistBackendError (a RuntimeError)
#pragma once

#include <exception>
#include <string>

#include "base/status.hpp"

namespace axon::c10d_backend {

// For Work::exception() and futures. The status must be a failure.
std::exception_ptr to_exception(const Status& failure);

[[noreturn]] void throw_failure(const Status& failure);

// Throws the failure of an operation to the caller that waits for it, and adds this thread's call site. Takes the GIL.
[[noreturn]] void rethrow_here(const std::exception_ptr& failure);
[[noreturn]] void rethrow_here(const Status& failure);

// Out of line, so that a check on the hot path costs only a branch.
[[noreturn]] void throw_value_error(const std::string& message);
[[noreturn]] void throw_type_error(const std::string& message);

}  // namespace axon::c10d_backend
