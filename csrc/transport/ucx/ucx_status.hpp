// UCX's status codes as ours.
#pragma once

#include <ucs/type/status.h>

#include "base/status.hpp"

namespace axon::transport {

// Success for UCS_OK; else a failure that names the call and UCX's own words for what went wrong.
Status status_of(ucs_status_t status, const char* call);

}  // namespace axon::transport
