// Opens a UCP context: UCX's settings, and the devices that they allow. It loads UCX, and opens no port.
//
//   Result<UcxContext> context = open_context(options, extension);
#pragma once

#include <cstddef>
#include <memory>

#include "base/status.hpp"
#include "transport/ucx/ucx.hpp"
#include "transport/ucx/ucx_library.hpp"

namespace axon::transport {

// Our memory, which UCX appends to each of its requests.
struct RequestExtension {
  size_t num_bytes = 0;
  void (*construct)(void* request) = nullptr;  // called once, when UCX allocates the request
};

struct CleanUpContext {
  void operator()(ucp_context_h context) const noexcept { ucx->ucp_cleanup(context); }
};
using UcxContext = std::unique_ptr<ucp_context, CleanUpContext>;

Result<UcxContext> open_context(const UcxOptions& options, RequestExtension extension = {});

}  // namespace axon::transport
