#include "transport/ucx/ucx_worker.hpp"

#include <algorithm>
#include <array>
#include <cstring>
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
  void operator()(ucp_config_t* config) const noexcept { ucp_config_release(config); }
};
using Config = std::unique_ptr<ucp_config_t, ReleaseConfig>;

}  // namespace

// UCX's own way to read AXON_UCX_* (a prefix for ucp_config_read) would skip the settings of its transports and of its
// log.
static Result<Config> read_config(const UcxOptions& options) {
  ucp_config_t* read = nullptr;
  AXON_TRY(status_of(ucp_config_read(nullptr, nullptr, &read), "ucp_config_read"));
  Config config(read);
  const auto set = [&](const std::string& name, const std::string& value) {
    const std::string call = "ucp_config_modify(" + name + "=" + value + ")";
    return status_of(ucp_config_modify(config.get(), name.c_str(), value.c_str()), call.c_str());
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

Result<UcxWorker> UcxWorker::open(const UcxOptions& options, RequestExtension extension) {
  UcxWorker worker;
  AXON_TRY(worker.create_context(options, extension));
  const std::vector<int> sets_before = epoll_sets();
  AXON_TRY(worker.create_worker());
  AXON_TRY(worker.query());
  worker.withhold_sockets(sets_before);
  return worker;
}

Status UcxWorker::create_context(const UcxOptions& options, RequestExtension extension) {
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
  AXON_TRY(status_of(ucp_init(&params, config.value().get(), &context), "ucp_init"));
  context_.reset(context);
  return Status();
}

Status UcxWorker::create_worker() {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // the progress token is the lock
  ucp_worker_h worker = nullptr;
  AXON_TRY(status_of(ucp_worker_create(context_.get(), &params, &worker), "ucp_worker_create"));
  worker_.reset(worker);
  return Status();
}

Status UcxWorker::append_address(uint32_t flags) {
  ucp_worker_attr_t attributes{};
  attributes.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS | UCP_WORKER_ATTR_FIELD_ADDRESS_FLAGS;
  attributes.address_flags = flags;
  AXON_TRY(status_of(ucp_worker_query(worker_.get(), &attributes), "ucp_worker_query"));
  const auto* address = reinterpret_cast<const std::byte*>(attributes.address);
  address_.insert(address_.end(), address, address + attributes.address_length);
  ucp_worker_release_address(worker_.get(), attributes.address);
  return Status();
}

Status UcxWorker::query() {
  AXON_TRY(append_address(0));
  const size_t num_bytes_of_all = address_.size();
  AXON_TRY(append_address(UCP_WORKER_ADDRESS_FLAG_NET_ONLY));
  const auto num_bytes = static_cast<uint32_t>(address_.size() - num_bytes_of_all);
  const auto* length = reinterpret_cast<const std::byte*>(&num_bytes);
  address_.insert(address_.end(), length, length + sizeof num_bytes);
  return status_of(ucp_worker_get_efd(worker_.get(), &event_fd_), "ucp_worker_get_efd");
}

// UCX does not disclose its sockets' descriptors. Each of its TCP interfaces keeps its connections in an epoll set.
// UCX's thread watches these sets and the interfaces' listeners through another epoll set. That one is found by the new
// descriptors in it.
void UcxWorker::withhold_sockets(std::span<const int> sets_before) {
  const auto is_new = [&](int set) { return !std::ranges::binary_search(sets_before, set); };
  std::vector<int> sets = epoll_sets();
  std::erase(sets, event_fd_);
  const auto watches_new = [&](int set) {
    return std::ranges::any_of(sets, [&](int each) { return is_new(each) && watches(set, each); });
  };
  const auto found = std::ranges::find_if(sets, watches_new);
  if (found == sets.end()) return;
  watched_set_ = *found;
  sockets_ = WithheldFromForks(watched_set_, WithheldFromForks::What::kSocketsOfSet);
  close_on_exec();
}

void UcxWorker::close_on_exec() const noexcept {
  axon::close_on_exec(event_fd_);
  if (watched_set_ >= 0) axon::close_on_exec(watched_set_);
}

Result<UcxAddresses> UcxAddresses::unpack(std::span<const std::byte> packed) {
  uint32_t num_bytes = 0;
  if (packed.size() < sizeof num_bytes)
    return Status(ErrorCode::kTransport, "not a UCX address: it is too short to hold its length");
  const auto addresses = packed.first(packed.size() - sizeof num_bytes);
  std::memcpy(&num_bytes, packed.data() + addresses.size(), sizeof num_bytes);
  if (num_bytes > addresses.size()) {
    return Status(ErrorCode::kTransport,
                  "not a UCX address: it has " + std::to_string(addresses.size()) + " bytes, but says that " +
                      std::to_string(num_bytes) +
                      " of them are the network address; all processes must name the same one of "
                      "ucx and rails in AXON_TRANSPORTS");
  }
  const size_t num_bytes_of_all = addresses.size() - num_bytes;
  return UcxAddresses{.all = addresses.first(num_bytes_of_all), .network = addresses.subspan(num_bytes_of_all)};
}

}  // namespace axon::transport
