#include "transport/ucx/ucx_transport.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/log.hpp"
#include "base/random.hpp"
#include "base/resources.hpp"
#include "transport/ucx/loopback_devices.hpp"
#include "transport/ucx/quiet_ucx.hpp"
#include "transport/ucx/ucx_status.hpp"

namespace axon::transport {

static constexpr std::chrono::milliseconds kDrainTimeout{200};
static constexpr std::chrono::seconds kLookInterval{1};
static constexpr size_t kMostLanes = 16;  // the most lanes of an endpoint in UCX 1.22

Result<std::unique_ptr<Transport>> open_ucx_transport(const UcxOptions& options) {
  Result<UcxWorker> worker = UcxWorker::open(options, UcxTransport::request_extension());
  if (!worker.ok()) return std::move(worker.status());
  return UcxTransport::make(std::move(worker).value());
}

RequestExtension UcxTransport::request_extension() noexcept {
  return {.num_bytes = sizeof(Pending), .construct = [](void* request) { pending_of(request) = {}; }};
}

Result<std::unique_ptr<Transport>> UcxTransport::make(UcxWorker worker) {
  auto transport = std::make_unique<UcxTransport>(std::move(worker));
  transport->name_ = random_number();
  const auto below = transport->worker_.address();
  const auto name = bytes_of(transport->name_);
  transport->address_.assign(below.begin(), below.end());
  transport->address_.insert(transport->address_.end(), name.begin(), name.end());
  transport->has_other_than_loopback_ = names_another_interface(transport->worker_.address());
  AXON_TRY(transport->register_handler(kMessageId, &UcxTransport::on_arrival));
  AXON_TRY(transport->register_handler(kRtsId, &UcxTransport::on_rts));
  AXON_TRY(transport->register_handler(kNackId, &UcxTransport::on_nack));
  return std::unique_ptr<Transport>(std::move(transport));
}

UcxTransport::UcxTransport(UcxWorker worker) noexcept : worker_(std::move(worker)) {}

// A forced close leaves callbacks in the worker's queue. If a worker is destroyed with callbacks of a broken
// connection, UCX 1.22 frees them twice.
static void drain(ucp_worker_h worker) noexcept {
  const auto deadline = std::chrono::steady_clock::now() + kDrainTimeout;
  while (ucx->ucp_worker_progress(worker) != 0 && std::chrono::steady_clock::now() < deadline) {
  }
}

// Endpoints to this host stay open until the worker is destroyed. If one were closed while its live peer writes to it,
// UCX would answer through a new endpoint that it is gone.
UcxTransport::~UcxTransport() {
  closing_ = true;
  const QuietUcx quiet;
  for (Peer& peer : peers_) {
    if (!peer.same_host) close(peer);
  }
  drain(worker_.get());
  {
    const UcxWorker ended_quietly = std::move(worker_);
  }
  release_all();
}

Status UcxTransport::register_handler(unsigned id, ucp_am_recv_callback_t handler) {
  ucp_am_handler_param_t param{};
  param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  param.id = id;
  param.cb = handler;
  param.arg = this;
  return status_of(ucx->ucp_worker_set_am_recv_handler(worker_.get(), &param), "ucp_worker_set_am_recv_handler");
}

Result<PeerId> UcxTransport::add_peer(std::span<const std::byte> address, bool same_host) {
  uint64_t name = 0;
  if (address.size() < sizeof name)
    return Status(ErrorCode::kTransport, "not a UCX address: it is too short to hold its transport's name");
  std::memcpy(&name, address.last(sizeof name).data(), sizeof name);
  Result<UcxAddresses> addresses = UcxAddresses::unpack(address.first(address.size() - sizeof name));
  if (!addresses.ok()) return std::move(addresses.status());
  const auto used = same_host ? addresses.value().all : addresses.value().network;
  const auto id = static_cast<PeerId>(peers_.size());
  Peer& peer = peers_.emplace_back(Peer{.transport = this,
                                        .id = id,
                                        .same_host = same_host,
                                        .address = {used.begin(), used.end()},
                                        .name = name,
                                        .loss = {}});
  if (!same_host && has_other_than_loopback_) hide_loopback(peer.address);
  return id;
}

Status UcxTransport::watch_peer(PeerId id) noexcept {
  Peer& peer = peers_[id];
  return peer.same_host || peer.endpoint != nullptr || !peer.loss.ok() ? Status() : connect(peer);
}

// A peer of another host that is watched has an endpoint already.
size_t UcxTransport::num_descriptors_to_come(PeerId id) const noexcept {
  const Peer& peer = peers_[id];
  return peer.same_host && peer.endpoint == nullptr && peer.loss.ok() ? kDescriptorsOfAnEndpoint : 0;
}

// UCX creates endpoints even without a free descriptor, and fails later at both ends. At the other end, it crashes with
// a segmentation fault if it finds no lane at all (UCX 1.22).
Status UcxTransport::connect(Peer& peer) {
  if (!peer.loss.ok()) return peer.loss.clone();
  AXON_TRY(check_descriptors(kDescriptorsOfAnEndpoint, "connect to it"));
  ucp_ep_params_t params{};
  params.field_mask =
      UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(peer.address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {.cb = &UcxTransport::on_endpoint_error, .arg = &peer};
  has_connections_ = true;
  return status_of(ucx->ucp_ep_create(worker_.get(), &params, &peer.endpoint), "ucp_ep_create");
}

Result<std::vector<Lane>> UcxTransport::lanes(PeerId id) {
  Peer& peer = peers_[id];
  if (!is_connected(peer)) AXON_TRY(connect(peer));
  std::array<ucp_transport_entry_t, kMostLanes> entries{};
  ucp_ep_attr_t attributes{};
  attributes.field_mask = UCP_EP_ATTR_FIELD_TRANSPORTS;
  attributes.transports = {.entries = entries.data(), .num_entries = entries.size(), .entry_size = sizeof entries[0]};
  AXON_TRY(status_of(ucx->ucp_ep_query(peer.endpoint, &attributes), "ucp_ep_query"));
  std::vector<Lane> lanes;
  for (const auto& entry : std::span(entries).first(attributes.transports.num_entries)) {
    const Lane lane{.name = entry.transport_name, .device = entry.device_name};
    if (std::ranges::find(lanes, lane) == lanes.end()) lanes.push_back(lane);
  }
  return lanes;
}

std::optional<Status> UcxTransport::send(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                                         Completion& completion) noexcept {
  // Copying through shared memory is faster than CMA, because the kernel looks up each page
  // (docs/adr/0008-send-messages-up-to-64-kib-eagerly.md). The limit keeps unexpected messages small.
  if (payload.num_bytes > kLargestEager) return send_rendezvous(peer, header, payload, completion);
  return send_as(kMessageId, peer, bytes_of(header), payload, completion);
}

std::optional<Status> UcxTransport::send_as(Id id, PeerId to, std::span<const std::byte> header, ConstBuffer payload,
                                            Completion& completion) noexcept {
  Peer& peer = peers_[to];
  const uint32_t protocol = id == kRtsId ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
  if (!is_connected(peer)) [[unlikely]] {
    if (Status connected = connect(peer); !connected.ok()) return connected;
  }
  // With the memory type given, UCX sends inline even if CUDA is loaded. A datatype or NO_IMM_CMPL would prevent that.
  ucp_request_param_t param;
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS |
                       UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.flags = UCP_AM_SEND_FLAG_COPY_HEADER | protocol;
  param.cb.send = &UcxTransport::on_sent;
  param.user_data = this;
  param.memory_type = memory_type_of(payload.kind);
  void* request =
      ucx->ucp_am_send_nbx(peer.endpoint, id, header.data(), header.size(), payload.data, payload.num_bytes, &param);
  if (!UCS_PTR_IS_PTR(request)) return status_of(UCS_PTR_STATUS(request), "ucp_am_send_nbx");
  pending_of(request) = {&completion, &peer};
  ++peer.num_pending_sends;
  return std::nullopt;
}

void UcxTransport::on_sent(void* request, ucs_status_t status, void* self) noexcept {
  static_cast<UcxTransport*>(self)->finish(request, status, "ucp_am_send_nbx");
}

void UcxTransport::finish(void* request, ucs_status_t status, const char* call) noexcept {
  const Pending pending = std::exchange(pending_of(request), {});
  ucx->ucp_request_free(request);
  if (pending.peer != nullptr) --pending.peer->num_pending_sends;
  if (pending.completion == nullptr) {
    status_of_fetch_ = status;
  } else if (!closing_) {
    pending.completion->done(*pending.completion, status_of(status, call));
  }
}

ucs_status_t UcxTransport::on_arrival(void* self, const void* header, size_t header_num_bytes, void* data,
                                      size_t num_bytes, const ucp_am_recv_param_t* param) noexcept {
  auto& transport = *static_cast<UcxTransport*>(self);
  const bool waits_at_sender = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  if (header_num_bytes != sizeof(MessageHeader) || waits_at_sender || transport.closing_) [[unlikely]]
    return transport.drop_malformed(header_num_bytes, waits_at_sender);
  transport.has_connections_ = true;
  MessageHeader aligned;
  std::memcpy(&aligned, header, sizeof aligned);
  transport.receiver_->on_message(aligned, {.bytes = static_cast<const std::byte*>(data), .num_bytes = num_bytes});
  return UCS_OK;
}

ucs_status_t UcxTransport::drop_malformed(size_t header_num_bytes, bool waits_at_sender) noexcept {
  if (!closing_ && num_malformed_++ == 0) {
    log::warn("dropped a UCX message with a header of " + std::to_string(header_num_bytes) +
              " bytes, which torch_axon does not send; further ones are dropped silently");
  }
  return waits_at_sender ? UCS_ERR_REJECTED : UCS_OK;
}

// Runs within ucp_worker_progress, where calling progress, and most other calls, are forbidden.
void UcxTransport::on_endpoint_error(void* arg, ucp_ep_h, ucs_status_t status) noexcept {
  auto& peer = *static_cast<Peer*>(arg);
  if (!peer.loss.ok()) return;
  peer.loss = Status(ErrorCode::kPeerLost, std::string("its connection broke: ") + ucx->ucs_status_string(status));
  peer.transport->departed_.push_back(&peer);
}

void UcxTransport::drop_peer(PeerId id) noexcept {
  Peer& peer = peers_[id];
  peer.dropped = true;
  if (!peer.loss.ok()) return;  // the next progress() closes it anyway
  peer.loss = Status(ErrorCode::kPeerLost, "its endpoint has been given up");
  if (peer.endpoint != nullptr) departed_.push_back(&peer);
}

unsigned UcxTransport::progress() noexcept {
  const unsigned num_moved = ucx->ucp_worker_progress(worker_.get());
  if (!departed_.empty()) [[unlikely]]
    look_after_peers();
  return num_moved;
}

void UcxTransport::look_after_peers() noexcept {
  for (Peer* peer : std::exchange(departed_, {})) {
    // Peers of this host are not reported here: a fetch from a dead process fails before all its messages are read. The
    // engine watches the process, and reads on.
    if (!peer->dropped && !peer->same_host) receiver_->on_peer_lost(peer->id, peer->loss.clone());
    close(*peer);
  }
}

void UcxTransport::close(Peer& peer) noexcept {
  if (peer.endpoint == nullptr) return;
  ucp_request_param_t param;
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  void* request = ucx->ucp_ep_close_nbx(std::exchange(peer.endpoint, nullptr), &param);
  if (UCS_PTR_IS_PTR(request)) ucx->ucp_request_free(request);
}

// UCX does not report when its own thread has accepted a connection. Messages that arrive over it are answered before
// this process sleeps, so this is the time to look. If no connection has been used, as where rings carry all messages,
// there is nothing to look for.
void UcxTransport::look_after_descriptors() noexcept {
  if (!has_connections_) return;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_look_) return;
  next_look_ = now + kLookInterval;
  worker_.close_on_exec();
}

bool UcxTransport::arm() noexcept {
  look_after_descriptors();
  return departed_.empty() && ucx->ucp_worker_arm(worker_.get()) == UCS_OK;
}

// An endpoint's flush does not cover messages that wait at this end for their receiver to fetch them; the count of
// pending sends does.
void UcxTransport::flush(int timeout_ms) noexcept {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
  const ucp_request_param_t param{};
  std::vector<void*> flushes;
  for (const Peer& peer : peers_) {
    if (!is_connected(peer)) continue;
    void* request = ucx->ucp_ep_flush_nbx(peer.endpoint, &param);
    if (UCS_PTR_IS_PTR(request)) flushes.push_back(request);
  }
  const auto is_done = [](void* flush) { return ucx->ucp_request_check_status(flush) != UCS_INPROGRESS; };
  const auto has_sent = [](const Peer& peer) { return !peer.loss.ok() || peer.num_pending_sends == 0; };
  while (!std::ranges::all_of(flushes, is_done) || !std::ranges::all_of(peers_, has_sent)) {
    if (std::chrono::steady_clock::now() >= deadline) break;
    progress();
  }
  for (void* flush : flushes) ucx->ucp_request_free(flush);
}

}  // namespace axon::transport
