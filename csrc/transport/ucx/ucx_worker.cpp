#include "transport/ucx/ucx_worker.hpp"

#include <utility>

#include "transport/ucx/ucx_status.hpp"

namespace axon {

static constexpr const char* kPrefix = "AXON";  // AXON_UCX_TLS and the like

namespace {

struct ReleaseConfig {
  void operator()(ucp_config_t* config) const noexcept { ucp_config_release(config); }
};
using Config = std::unique_ptr<ucp_config_t, ReleaseConfig>;

}  // namespace

static Result<Config> read_config(const UcxOptions& options) {
  ucp_config_t* read = nullptr;
  AXON_TRY(status_of(ucp_config_read(kPrefix, nullptr, &read), "ucp_config_read"));
  Config config(read);
  for (const auto& [name, value] : options.settings) {
    const std::string call = "ucp_config_modify(" + name + "=" + value + ")";
    AXON_TRY(status_of(ucp_config_modify(config.get(), name.c_str(), value.c_str()), call.c_str()));
  }
  return config;
}

Result<UcxWorker> UcxWorker::open(const UcxOptions& options, RequestExtension extension) {
  UcxWorker worker;
  AXON_TRY(worker.create_context(options, extension));
  AXON_TRY(worker.create_worker());
  AXON_TRY(worker.query());
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

Status UcxWorker::query() {
  ucp_worker_attr_t attributes{};
  attributes.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS;
  AXON_TRY(status_of(ucp_worker_query(worker_.get(), &attributes), "ucp_worker_query"));
  const auto* address = reinterpret_cast<const std::byte*>(attributes.address);
  address_.assign(address, address + attributes.address_length);
  ucp_worker_release_address(worker_.get(), attributes.address);
  return status_of(ucp_worker_get_efd(worker_.get(), &event_fd_), "ucp_worker_get_efd");
}

}  // namespace axon
