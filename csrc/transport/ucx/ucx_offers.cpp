// Messages that wait at their sender, over UCX: offered, then fetched or refused.
#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "base/log.hpp"
#include "transport/refusal.hpp"
#include "transport/ucx/ucx_status.hpp"
#include "transport/ucx/ucx_transport.hpp"

namespace axon {

// A message of ours that waits for its receiver, between UCX and whoever sends it.
struct UcxTransport::Offer : Completion, ListNode<Offer> {
  Offer(UcxTransport& transport, Completion& of) noexcept : owner(transport), completion(of) {
    done = [](Completion& self, Status status) noexcept {
      auto& offer = static_cast<Offer&>(self);
      Completion& told = offer.completion;
      told.done(told, offer.owner.conclude(offer, std::move(status)));
    };
  }

  UcxTransport& owner;
  Completion& completion;
  uint64_t number = 0;
  Status refusal;  // why its receiver refuses it
};

// A message that waits at its sender: what its Payload's rendezvous points to.
struct UcxTransport::Waiting : ListNode<Waiting> {
  Waiting(const OfferHeader& header, void* of) noexcept
      : sender(header.sender), number(header.number), descriptor(of) {}

  const uint64_t sender;
  const uint64_t number;
  void* const descriptor;  // UCX's
};

std::optional<Status> UcxTransport::offer(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                                          Completion& completion) noexcept {
  auto& offer = *new (pool_.allocate(sizeof(Offer))) Offer(*this, completion);
  offer.number = numbers_.add(offer);
  offers_.push_back(offer);
  const OfferHeader whole{.message = header, .sender = name_, .number = offer.number};
  auto ended = send_as(kOfferId, peer, bytes_of(whole), payload, offer);
  return ended ? std::optional(conclude(offer, std::move(*ended))) : std::nullopt;
}

// Gives how the transfer has ended: as UCX has it, unless its receiver has said why.
Status UcxTransport::conclude(Offer& offer, Status ended) noexcept {
  if (!offer.refusal.ok()) ended = std::move(offer.refusal);
  numbers_.remove(offer.number);
  offer.unlink();
  offer.~Offer();
  pool_.release(&offer, sizeof offer);
  return ended;
}

// Nobody is told any more.
void UcxTransport::release_all() noexcept {
  while (Offer* offer = offers_.front()) (void)conclude(*offer, Status());
  while (Waiting* waiting = waiting_.front()) (void)release(*waiting);
}

ucs_status_t UcxTransport::on_offer(void* self, const void* header, size_t header_num_bytes, void* data,
                                    size_t num_bytes, const ucp_am_recv_param_t* param) noexcept {
  auto& transport = *static_cast<UcxTransport*>(self);
  const bool waits_at_sender = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  if (header_num_bytes != sizeof(OfferHeader) || !waits_at_sender || transport.closing_) [[unlikely]]
    return transport.drop_malformed(header_num_bytes, waits_at_sender);
  transport.has_connections_ = true;
  OfferHeader aligned;
  std::memcpy(&aligned, header, sizeof aligned);
  return transport.deliver_rendezvous(aligned, data, num_bytes);
}

ucs_status_t UcxTransport::deliver_rendezvous(const OfferHeader& header, void* descriptor, size_t num_bytes) noexcept {
  auto& waiting = *new (pool_.allocate(sizeof(Waiting))) Waiting(header, descriptor);
  waiting_.push_back(waiting);
  Delivery delivery{.descriptor = descriptor, .refused = false, .outer = delivery_};
  delivery_ = &delivery;
  receiver_->on_message(header.message, {.num_bytes = num_bytes, .rendezvous = &waiting});
  delivery_ = delivery.outer;
  return delivery.refused ? UCS_ERR_REJECTED : UCS_INPROGRESS;
}

// Gives UCX's descriptor.
void* UcxTransport::release(Waiting& waiting) noexcept {
  void* const descriptor = waiting.descriptor;
  waiting.unlink();
  pool_.release(&waiting, sizeof waiting);
  return descriptor;
}

// Only the handler's own return value can have UCX tell the sender of a refusal; later, UCX just lets it go.
void UcxTransport::refuse(void* rendezvous, const Status& why) noexcept {
  auto& waiting = *static_cast<Waiting*>(rendezvous);
  if (!why.ok()) tell_refusal(waiting.sender, waiting.number, why);
  void* const descriptor = release(waiting);
  for (Delivery* delivery = delivery_; delivery != nullptr; delivery = delivery->outer) {
    if (delivery->descriptor != descriptor) continue;
    delivery->refused = true;
    return;
  }
  ucp_am_data_release(worker_.get(), descriptor);
}

// A sender that was never met, or is gone, cannot be told. The reason is part of the header, which UCX copies.
void UcxTransport::tell_refusal(uint64_t sender, uint64_t number, const Status& why) noexcept {
  const auto is_sender = [&](const Peer& peer) { return peer.name == sender && peer.loss.ok(); };
  const auto peer = std::ranges::find_if(peers_, is_sender);
  if (peer == peers_.end()) return;
  const refusal::Encoded reason(why);
  const RefusalHeader header{.addressee = sender, .number = number};
  std::array<std::byte, sizeof header + refusal::Encoded::kMostBytes> bytes;
  std::memcpy(bytes.data(), &header, sizeof header);
  std::ranges::copy(reason.bytes(), bytes.begin() + sizeof header);
  const auto whole = std::span(bytes).first(sizeof header + reason.bytes().size());
  [[maybe_unused]] const auto sent = send_as(kRefusalId, peer->id, whole, {}, unattended);
}

ucs_status_t UcxTransport::on_refusal(void* self, const void* header, size_t header_num_bytes, void*, size_t,
                                      const ucp_am_recv_param_t* param) noexcept {
  auto& transport = *static_cast<UcxTransport*>(self);
  const bool waits_at_sender = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  RefusalHeader refusal{};
  const bool is_whole = !waits_at_sender && header_num_bytes > sizeof refusal &&
                        header_num_bytes <= sizeof refusal + refusal::Encoded::kMostBytes;
  if (is_whole) std::memcpy(&refusal, header, sizeof refusal);
  if (!is_whole || refusal.addressee != transport.name_ || transport.closing_) [[unlikely]]
    return transport.drop_malformed(header_num_bytes, waits_at_sender);
  const auto reason = std::span(static_cast<const std::byte*>(header), header_num_bytes).subspan(sizeof refusal);
  if (Offer* const offer = transport.numbers_.find(refusal.number)) offer->refusal = refusal::decode(reason);
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
  void* request = ucp_am_recv_data_nbx(worker_.get(), descriptor, into.data, into.num_bytes, &param);
  if (!UCS_PTR_IS_PTR(request)) return status_of(UCS_PTR_STATUS(request), kCall);
  const ucs_status_t ended = std::exchange(status_of_fetch_, UCS_INPROGRESS);
  if (ended != UCS_INPROGRESS) return status_of(ended, kCall);
  pending_of(request) = {&completion, nullptr};
  return std::nullopt;
}

void UcxTransport::on_fetched(void* request, ucs_status_t status, size_t, void* self) noexcept {
  static_cast<UcxTransport*>(self)->finish(request, status, "ucp_am_recv_data_nbx");
}

}  // namespace axon
