// The engine's failures as the exceptions that users of torch.distributed catch.
//
//   bad arguments        c10::ValueError         → ValueError
//   everything else      c10::DistBackendError   → torch.distributed.DistBackendError (a RuntimeError)
#pragma once

#include <exception>
#include <string>

#include "base/status.hpp"

namespace axon::c10d_backend {

// For Work::exception() and futures. The status is a failure.
std::exception_ptr to_exception(const Status& failure);

[[noreturn]] void throw_failure(const Status& failure);

// What went wrong elsewhere, thrown to the caller that waits for it: names the line of the program that this thread is
// in. Takes Python's lock.
[[noreturn]] void rethrow_here(const std::exception_ptr& failure);
[[noreturn]] void rethrow_here(const Status& failure);

// Out of line, so that checks on the path of every call cost a branch.
[[noreturn]] void throw_value_error(const std::string& message);
[[noreturn]] void throw_type_error(const std::string& message);

}  // namespace axon::c10d_backend
