// Rendezvous over UCX: the sender's RTS, then the receiver's fetch or refusal.
#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "base/log.hpp"
#include "transport/nack.hpp"
#include "transport/ucx/ucx_status.hpp"
#include "transport/ucx/ucx_transport.hpp"

namespace axon::transport {

// A message of ours that waits for its receiver. It passes UCX's completion on to the sender's.
struct UcxTransport::RendezvousSend : Completion, ListNode<RendezvousSend> {
  RendezvousSend(UcxTransport& transport, Completion& of) noexcept : owner(transport), completion(of) {
    done = [](Completion& self, Status status) noexcept {
      auto& send = static_cast<RendezvousSend&>(self);
      Completion& told = send.completion;
      told.done(told, send.owner.conclude(send, std::move(status)));
    };
  }

  UcxTransport& owner;
  Completion& completion;
  uint64_t number = 0;
  Status nack;  // why the receiver refuses the message
};

// A message that waits at its sender. The rendezvous of its Payload points here.
struct UcxTransport::Waiting : ListNode<Waiting> {
  Waiting(const RtsHeader& header, void* of) noexcept : sender(header.sender), number(header.number), descriptor(of) {}

  const uint64_t sender;
  const uint64_t number;
  void* const descriptor;  // UCX's
};

std::optional<Status> UcxTransport::send_rendezvous(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                                                    Completion& completion) noexcept {
  auto& send = *new (pool_.allocate(sizeof(RendezvousSend))) RendezvousSend(*this, completion);
  send.number = numbers_.add(send);
  rendezvous_sends_.push_back(send);
  const RtsHeader whole{.message = header, .sender = name_, .number = send.number};
  auto ended = send_as(kRtsId, peer, bytes_of(whole), payload, send);
  return ended ? std::optional(conclude(send, std::move(*ended))) : std::nullopt;
}

// Returns the status of the transfer: UCX's, unless the receiver has given a reason.
Status UcxTransport::conclude(RendezvousSend& send, Status ended) noexcept {
  if (!send.nack.ok()) ended = std::move(send.nack);
  numbers_.remove(send.number);
  send.unlink();
  send.~RendezvousSend();
  pool_.release(&send, sizeof send);
  return ended;
}

// Releases all without calling completions.
void UcxTransport::release_all() noexcept {
  while (RendezvousSend* send = rendezvous_sends_.front()) (void)conclude(*send, Status());
  while (Waiting* waiting = waiting_.front()) (void)release(*waiting);
}

ucs_status_t UcxTransport::on_rts(void* self, const void* header, size_t header_num_bytes, void* data, size_t num_bytes,
                                  const ucp_am_recv_param_t* param) noexcept {
  auto& transport = *static_cast<UcxTransport*>(self);
  const bool waits_at_sender = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  if (header_num_bytes != sizeof(RtsHeader) || !waits_at_sender || transport.closing_) [[unlikely]]
    return transport.drop_malformed(header_num_bytes, waits_at_sender);
  transport.has_connections_ = true;
  RtsHeader aligned;
  std::memcpy(&aligned, header, sizeof aligned);
  return transport.deliver_rendezvous(aligned, data, num_bytes);
}

ucs_status_t UcxTransport::deliver_rendezvous(const RtsHeader& header, void* descriptor, size_t num_bytes) noexcept {
  auto& waiting = *new (pool_.allocate(sizeof(Waiting))) Waiting(header, descriptor);
  waiting_.push_back(waiting);
  Delivery delivery{.descriptor = descriptor, .refused = false, .outer = delivery_};
  delivery_ = &delivery;
  receiver_->on_message(header.message, {.num_bytes = num_bytes, .rendezvous = &waiting});
  delivery_ = delivery.outer;
  return delivery.refused ? UCS_ERR_REJECTED : UCS_INPROGRESS;
}

// Frees the entry and returns UCX's descriptor.
void* UcxTransport::release(Waiting& waiting) noexcept {
  void* const descriptor = waiting.descriptor;
  waiting.unlink();
  pool_.release(&waiting, sizeof waiting);
  return descriptor;
}

// UCX tells the sender of a refusal only by the handler's own return value. A later refusal just frees UCX's
// descriptor.
void UcxTransport::refuse(void* rendezvous, const Status& why) noexcept {
  auto& waiting = *static_cast<Waiting*>(rendezvous);
  if (!why.ok()) send_nack(waiting.sender, waiting.number, why);
  void* const descriptor = release(waiting);
  for (Delivery* delivery = delivery_; delivery != nullptr; delivery = delivery->outer) {
    if (delivery->descriptor != descriptor) continue;
    delivery->refused = true;
    return;
  }
  ucx->ucp_am_data_release(worker_.get(), descriptor);
}

// A sender that was never added as a peer, or is gone, cannot be notified. The reason is part of the header, which UCX
// copies.
void UcxTransport::send_nack(uint64_t sender, uint64_t number, const Status& why) noexcept {
  const auto is_sender = [&](const Peer& peer) { return peer.name == sender && peer.loss.ok(); };
  const auto peer = std::ranges::find_if(peers_, is_sender);
  if (peer == peers_.end()) return;
  const nack::Encoded reason(why);
  const NackHeader header{.addressee = sender, .number = number};
  std::array<std::byte, sizeof header + nack::Encoded::kMostBytes> bytes;
  std::memcpy(bytes.data(), &header, sizeof header);
  std::ranges::copy(reason.bytes(), bytes.begin() + sizeof header);
  const auto whole = std::span(bytes).first(sizeof header + reason.bytes().size());
  [[maybe_unused]] const auto sent = send_as(kNackId, peer->id, whole, {}, unattended);
}

ucs_status_t UcxTransport::on_nack(void* self, const void* header, size_t header_num_bytes, void*, size_t,
                                   const ucp_am_recv_param_t* param) noexcept {
  auto& transport = *static_cast<UcxTransport*>(self);
  const bool waits_at_sender = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  NackHeader nack{};
  const bool is_whole =
      !waits_at_sender && header_num_bytes > sizeof nack && header_num_bytes <= sizeof nack + nack::Encoded::kMostBytes;
  if (is_whole) std::memcpy(&nack, header, sizeof nack);
  if (!is_whole || nack.addressee != transport.name_ || transport.closing_) [[unlikely]]
    return transport.drop_malformed(header_num_bytes, waits_at_sender);
  const auto reason = std::span(static_cast<const std::byte*>(header), header_num_bytes).subspan(sizeof nack);
  if (RendezvousSend* const send = transport.numbers_.find(nack.number)) send->nack = nack::decode(reason);
  return UCS_OK;
}

std::optional<Status> UcxTransport::fetch(void* rendezvous, Buffer into, Completion& completion) noexcept {
  static constexpr const char* kCall = "ucp_am_recv_data_nbx";
  ucp_request_param_t param;
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.cb.recv_am = &UcxTransport::on_fetched;
  param.user_data = this;
  param.memory_type = memory_type_of(into.kind);
  void* const descriptor = release(*static_cast<Waiting*>(rendezvous));
  void* request = ucx->ucp_am_recv_data_nbx(worker_.get(), descriptor, into.data, into.num_bytes, &param);
  if (!UCS_PTR_IS_PTR(request)) return status_of(UCS_PTR_STATUS(request), kCall);
  const ucs_status_t ended = std::exchange(status_of_fetch_, UCS_INPROGRESS);
  if (ended != UCS_INPROGRESS) return status_of(ended, kCall);
  pending_of(request) = {&completion, nullptr};
  return std::nullopt;
}

void UcxTransport::on_fetched(void* request, ucs_status_t status, size_t, void* self) noexcept {
  static_cast<UcxTransport*>(self)->finish(request, status, "ucp_am_recv_data_nbx");
}

}  // namespace axon::transport
