#include "c10d/errors.hpp"

#include <c10/util/Exception.h>

#include "c10d/call_site.hpp"
#include "python/signals.hpp"

namespace axon::c10d_backend {

void throw_value_error(const std::string& message) {
  C10_THROW_ERROR(ValueError, message);
}

void throw_type_error(const std::string& message) {
  C10_THROW_ERROR(TypeError, message);
}

void throw_failure(const Status& failure) {
  if (failure.code() == ErrorCode::kCancelled) python::raise_what_signals_raised();
  if (failure.code() == ErrorCode::kInvalidArgument) throw_value_error(failure.message());
  C10_THROW_ERROR(DistBackendError, failure.message());
}

void rethrow_here(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const c10::DistBackendError& error) {
    const std::string site = call_site();
    if (site.empty()) throw;
    C10_THROW_ERROR(DistBackendError, error.msg() + " (at " + site + ")");
  }
}

void rethrow_here(const Status& failure) {
  rethrow_here(to_exception(failure));
}

std::exception_ptr to_exception(const Status& failure) {
  try {
    throw_failure(failure);
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace axon::c10d_backend
