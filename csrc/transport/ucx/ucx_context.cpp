#include "transport/ucx/ucx_context.hpp"

#include <array>
#include <string>
#include <utility>

#include "base/config.hpp"
#include "base/log.hpp"
#include "transport/ucx/ucx_status.hpp"

namespace axon::transport {

// Values that replace UCX's own defaults, unless the user sets others.
//
// Endpoints with error handling get neither shared memory nor CMA unless UCX is told to accept two missing features.
// One is notice of a peer's end, which we get by watching its process. The other is revoking the right to read memory,
// which ends with the peer. docs/adr/0021-enable-ucx-error-handling-for-all-endpoints.md.
//
// RNDV_THRESH does not change which messages use a rendezvous, since each of ours names its protocol. It changes how
// their data travels over TCP: in one write into the receiver's memory instead of frames of 64 KiB.
// docs/adr/0025-write-a-tcp-rendezvous-at-once.md.
//
// TCP_RX_SEG_SIZE lets the largest eager message travel in one frame with its header. Two frames would cost the
// receiver another copy: 64 KiB between two network namespaces take 16.0 µs instead of 10.7 µs.
//
// If /dev/shm has little room, POSIX_ALLOC and POSIX_SHM_MIN_SIZE make the creation of the worker fail with an error
// that names it. UCX checks its own minimum twice. If other processes take memory in between, the worker's queue comes
// from private memory, and its creation ends in a segmentation fault (UCX 1.22). UCX writes its whole file before
// mapping it, so that an allocated queue cannot fault later.
static constexpr std::array<std::pair<const char*, const char*>, 8> kDefaults{{{"POSIX_ERROR_HANDLING", "y"},
                                                                               {"SYSV_ERROR_HANDLING", "y"},
                                                                               {"POSIX_ALLOC", "md"},
                                                                               {"SYSV_ALLOC", "md"},
                                                                               {"POSIX_SHM_MIN_SIZE", "0"},
                                                                               {"CMA_MEMORY_INVALIDATE", "y"},
                                                                               {"RNDV_THRESH", "inf"},
                                                                               {"TCP_RX_SEG_SIZE", "66kb"}}};

namespace {

struct ReleaseConfig {
  void operator()(ucp_config_t* config) const noexcept { ucx->ucp_config_release(config); }
};
using Config = std::unique_ptr<ucp_config_t, ReleaseConfig>;

}  // namespace

// UCX's own way to read AXON_UCX_* (a prefix for ucp_config_read) would skip the settings of its transports and of its
// log.
static Result<Config> read_config(const UcxOptions& options) {
  ucp_config_t* read = nullptr;
  AXON_TRY(status_of(ucx->ucp_config_read(nullptr, nullptr, &read), "ucp_config_read"));
  Config config(read);
  const auto set = [&](const std::string& name, const std::string& value) {
    const std::string call = "ucp_config_modify(" + name + "=" + value + ")";
    return status_of(ucx->ucp_config_modify(config.get(), name.c_str(), value.c_str()), call.c_str());
  };
  for (const auto& [name, value] : kDefaults) {
    if (!config::is_set(std::string("UCX_") + name)) AXON_TRY(set(name, value));
  }
  // The setting may belong to a transport that is absent here.
  for (const auto& [name, value] : config::ucx_settings()) {
    if (!set(name, value).ok()) log::warn("UCX does not accept AXON_UCX_" + name + "=" + value + " here");
  }
  for (const auto& [name, value] : options.settings) AXON_TRY(set(name, value));
  return config;
}

Result<UcxContext> open_context(const UcxOptions& options, RequestExtension extension) {
  AXON_TRY(load_ucx());
  Result<Config> config = read_config(options);
  if (!config.ok()) return std::move(config.status());
  ucp_params_t params{};
  params.field_mask =
      UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_REQUEST_SIZE | UCP_PARAM_FIELD_REQUEST_INIT | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.request_size = extension.num_bytes;
  params.request_init = extension.construct;
  params.name = "axon";
  ucp_context_h context = nullptr;
  const ucs_status_t opened =
      ucx->ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config.value().get(), &context);
  AXON_TRY(status_of(opened, "ucp_init"));
  return UcxContext(context);
}

}  // namespace axon::transport
