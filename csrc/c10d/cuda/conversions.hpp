// Converts between torch's streams and the core's, and the core's results into values or exceptions.
#pragma once

#include <c10/core/Stream.h>

#include <utility>

#include "base/status.hpp"
#include "c10d/errors.hpp"
#include "cuda/stream.hpp"

namespace axon::c10d_backend {

inline void check(const Status& status) {
  if (!status.ok()) throw_failure(status);
}

template <typename T>
T value_of(Result<T> result) {
  if (!result.ok()) throw_failure(result.status());
  return std::move(result).value();
}

inline cuda::StreamView view_of(c10::Stream stream) {
  return cuda::StreamView(static_cast<cudaStream_t>(stream.native_handle()));
}

}  // namespace axon::c10d_backend
