// Converts UCX's status codes to ours. Any thread, once UCX is loaded.
//
//   AXON_TRY(status_of(ucx->ucp_worker_get_efd(worker, &events), "ucp_worker_get_efd"));
#pragma once

#include <ucs/type/status.h>

#include "base/status.hpp"

namespace axon::transport {

// Returns success for UCS_OK; otherwise a failure that names the call and quotes UCX's description of the error.
Status status_of(ucs_status_t status, const char* call);

}  // namespace axon::transport
