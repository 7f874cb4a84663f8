#include "transport/ucx/ucx_status.hpp"

#include <string>

#include "transport/ucx/ucx_library.hpp"

namespace axon::transport {

static ErrorCode code_of(ucs_status_t status) noexcept {
  if (UCS_IS_ENDPOINT_ERROR(status)) return ErrorCode::kPeerLost;
  switch (status) {
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_CANCELED:  // its endpoint was closed meanwhile
      return ErrorCode::kPeerLost;
    case UCS_ERR_REJECTED:  // the receiver does not know this process, and so cannot give a reason
      return ErrorCode::kAborted;
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_EXCEEDS_LIMIT:
      return ErrorCode::kResourceExhausted;
    default:
      return ErrorCode::kTransport;
  }
}

Status status_of(ucs_status_t status, const char* call) {
  if (status == UCS_OK) return Status();
  return {code_of(status), std::string(call) + ": " + ucx->ucs_status_string(status)};
}

}  // namespace axon::transport
