// The progress owner's state of each long message, at its sender and at its receiver. Only the files of RailTransport
// include it.
#pragma once

#include <optional>

#include "transport/nack.hpp"
#include "transport/rails/rail_transport.hpp"

namespace axon::transport {

// The network reports to it the completion of its RTS.
struct RailTransport::Outgoing : Completion, ListNode<Outgoing> {
  Outgoing(RailTransport& transport, PeerId to, ConstBuffer bytes, Completion& of) noexcept
      : owner(transport), peer(to), payload(bytes), completion(of) {
    done = [](Completion& self, Status status) noexcept {
      auto& message = static_cast<Outgoing&>(self);
      message.owner.on_rts_sent(message, std::move(status));
    };
  }

  RailTransport& owner;
  const PeerId peer;
  const ConstBuffer payload;
  Completion& completion;
  uint64_t number = 0;
  LongMessage rts;
  bool is_sending_rts = true;
  bool is_cleared = false;      // the CTS is here
  std::optional<Status> ended;  // how the transfer has ended while the network still holds the RTS
};

struct RailTransport::Incoming : ListNode<Incoming> {
  Incoming(uint64_t of, const LongMessage& rts) noexcept
      : sender(rts.sender), number(of), num_bytes(rts.num_bytes), stripe_num_bytes(rts.stripe_num_bytes) {}

  const uint64_t sender;
  const uint64_t number;
  const size_t num_bytes;
  const size_t stripe_num_bytes;
  // Set when the CTS is sent.
  PeerId peer = 0;
  Completion* completion = nullptr;
  uint64_t ticket = 0;
};

// A NACK, whose text must live until the network has sent it.
struct RailTransport::Nack : Completion, ListNode<Nack> {
  Nack(RailTransport& transport, Peer& to, const Status& why) noexcept : owner(transport), peer(to), reason(why) {
    done = [](Completion& self, Status status) noexcept {
      auto& nack = static_cast<Nack&>(self);
      nack.peer.done(nack.peer, std::move(status));
      nack.owner.release(nack);
    };
  }

  RailTransport& owner;
  Peer& peer;
  const nack::Encoded reason;
};

inline Status peer_gone() {
  return {ErrorCode::kPeerLost, "its process is gone, or has been given up"};
}

}  // namespace axon::transport
