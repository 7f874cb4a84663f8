// UCX's functions. Its libraries are loaded when a process first opens a context, because most processes never do, and
// loading takes 5 ms and 3 MiB of private memory (docs/adr/0065-load-ucx-on-first-use.md).
//
//   AXON_TRY(load_ucx());
//   ucx->ucp_worker_progress(worker);
//
// Any thread may load UCX. No other function may be called before that.
#pragma once

#include <ucp/api/ucp.h>
#include <ucs/config/global_opts.h>
#include <ucs/sys/uid.h>

#include "base/status.hpp"

namespace axon::transport {

// The address of a symbol, which becomes a pointer to whatever function it initialises.
struct UcxSymbol {
  template <typename Function>
  operator Function*() const noexcept {
    return reinterpret_cast<Function*>(address);
  }

  void* address = nullptr;
};

// The members have the names of UCX's functions, and their types from its headers.
class UcxFunctions {
 public:
  // Looks the functions up in the library and in those that it needs.
  explicit UcxFunctions(void* library) noexcept : library_(library) {}

  // Returns a name that the library lacks, or null. The functions may be called only if it is null.
  const char* missing() const noexcept { return missing_; }

 private:
  UcxSymbol find(const char* name) noexcept;

  void* library_;
  const char* missing_ = nullptr;

 public:  // after what find() uses, because members are initialised in their order
  decltype(&::ucp_am_data_release) ucp_am_data_release = find("ucp_am_data_release");
  decltype(&::ucp_am_recv_data_nbx) ucp_am_recv_data_nbx = find("ucp_am_recv_data_nbx");
  decltype(&::ucp_am_send_nbx) ucp_am_send_nbx = find("ucp_am_send_nbx");
  decltype(&::ucp_cleanup) ucp_cleanup = find("ucp_cleanup");
  decltype(&::ucp_config_modify) ucp_config_modify = find("ucp_config_modify");
  decltype(&::ucp_config_read) ucp_config_read = find("ucp_config_read");
  decltype(&::ucp_config_release) ucp_config_release = find("ucp_config_release");
  decltype(&::ucp_context_print_info) ucp_context_print_info = find("ucp_context_print_info");
  decltype(&::ucp_ep_close_nbx) ucp_ep_close_nbx = find("ucp_ep_close_nbx");
  decltype(&::ucp_ep_create) ucp_ep_create = find("ucp_ep_create");
  decltype(&::ucp_ep_flush_nbx) ucp_ep_flush_nbx = find("ucp_ep_flush_nbx");
  decltype(&::ucp_ep_query) ucp_ep_query = find("ucp_ep_query");
  decltype(&::ucp_get_version) ucp_get_version = find("ucp_get_version");
  decltype(&::ucp_init_version) ucp_init_version = find("ucp_init_version");
  decltype(&::ucp_request_check_status) ucp_request_check_status = find("ucp_request_check_status");
  decltype(&::ucp_request_free) ucp_request_free = find("ucp_request_free");
  decltype(&::ucp_worker_arm) ucp_worker_arm = find("ucp_worker_arm");
  decltype(&::ucp_worker_create) ucp_worker_create = find("ucp_worker_create");
  decltype(&::ucp_worker_destroy) ucp_worker_destroy = find("ucp_worker_destroy");
  decltype(&::ucp_worker_get_efd) ucp_worker_get_efd = find("ucp_worker_get_efd");
  decltype(&::ucp_worker_progress) ucp_worker_progress = find("ucp_worker_progress");
  decltype(&::ucp_worker_query) ucp_worker_query = find("ucp_worker_query");
  decltype(&::ucp_worker_release_address) ucp_worker_release_address = find("ucp_worker_release_address");
  decltype(&::ucp_worker_set_am_recv_handler) ucp_worker_set_am_recv_handler = find("ucp_worker_set_am_recv_handler");
  decltype(&::ucs_get_system_id) ucs_get_system_id = find("ucs_get_system_id");
  decltype(&::ucs_global_opts_get_value) ucs_global_opts_get_value = find("ucs_global_opts_get_value");
  decltype(&::ucs_global_opts_set_value) ucs_global_opts_set_value = find("ucs_global_opts_set_value");
  decltype(&::ucs_status_string) ucs_status_string = find("ucs_status_string");
};

// Null until load_ucx() succeeds.
extern const UcxFunctions* ucx;

// Loads UCX, on the first call, from the wheel's folder (use_ucx_of_wheel), or else where the dynamic loader searches.
// Fails if UCX is missing or older than the headers of this build; all later calls return the same.
Status load_ucx();

}  // namespace axon::transport
