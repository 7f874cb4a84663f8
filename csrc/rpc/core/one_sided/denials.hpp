// The failures of requests that the owner of the memory does not allow. Both ends find them, and name them alike.
#pragma once

#include <string>

#include "base/status.hpp"
#include "rpc/core/one_sided/region_handle.hpp"

namespace axon::rpc {

inline Status access_denied(std::string why) {
  return {ErrorCode::kAccessDenied, std::move(why)};
}

inline Status region_is_closed(const std::string& region) {
  return access_denied("the region '" + region + "' is closed");
}

inline Status handle_allows_only(const std::string& region, Access allowed) {
  return access_denied("the handle of region '" + region + "' allows '" + name_of(allowed) + "' only");
}

}  // namespace axon::rpc
