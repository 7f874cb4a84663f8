#include "transport/ucx/ucx_worker.hpp"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "transport/ucx/ucx_status.hpp"

namespace axon::transport {

Result<UcxWorker> UcxWorker::open(const UcxOptions& options, RequestExtension extension) {
  Result<UcxContext> context = open_context(options, extension);
  if (!context.ok()) return std::move(context.status());
  UcxWorker worker;
  worker.context_ = std::move(context).value();
  const std::vector<int> sets_before = epoll_sets();
  AXON_TRY(worker.create_worker());
  AXON_TRY(worker.query());
  worker.withhold_sockets(sets_before);
  return worker;
}

Status UcxWorker::create_worker() {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // the progress token is the lock
  ucp_worker_h worker = nullptr;
  AXON_TRY(status_of(ucx->ucp_worker_create(context_.get(), &params, &worker), "ucp_worker_create"));
  worker_.reset(worker);
  return Status();
}

Status UcxWorker::append_address(uint32_t flags) {
  ucp_worker_attr_t attributes{};
  attributes.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS | UCP_WORKER_ATTR_FIELD_ADDRESS_FLAGS;
  attributes.address_flags = flags;
  AXON_TRY(status_of(ucx->ucp_worker_query(worker_.get(), &attributes), "ucp_worker_query"));
  const auto* address = reinterpret_cast<const std::byte*>(attributes.address);
  address_.insert(address_.end(), address, address + attributes.address_length);
  ucx->ucp_worker_release_address(worker_.get(), attributes.address);
  return Status();
}

Status UcxWorker::query() {
  AXON_TRY(append_address(0));
  const size_t num_bytes_of_all = address_.size();
  AXON_TRY(append_address(UCP_WORKER_ADDRESS_FLAG_NET_ONLY));
  const auto num_bytes = static_cast<uint32_t>(address_.size() - num_bytes_of_all);
  const auto* length = reinterpret_cast<const std::byte*>(&num_bytes);
  address_.insert(address_.end(), length, length + sizeof num_bytes);
  return status_of(ucx->ucp_worker_get_efd(worker_.get(), &event_fd_), "ucp_worker_get_efd");
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
                      " of them are the network address; AXON_TRANSPORTS must name ucx for all processes, or for none");
  }
  const size_t num_bytes_of_all = addresses.size() - num_bytes;
  return UcxAddresses{.all = addresses.first(num_bytes_of_all), .network = addresses.subspan(num_bytes_of_all)};
}

}  // namespace axon::transport
