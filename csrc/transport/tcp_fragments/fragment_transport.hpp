// Sends a long message in fragments. An RTS announces it, the payload waits at its sender until the receiver's CTS
// provides a buffer, and the fragments are copied there in any order. All other messages go through the transport below
// unchanged.
//
//   sender                          receiver
//   RTS: number, header, length   →   on_message
//                                 ←   CTS: number, ticket    (or NACK: number, why; transport/nack.hpp)
//   DATA: ticket, offset, bytes   →   for each fragment
//
// The sender's transfer ends when the last fragment is sent, the receiver's when the last missing one has arrived. This
// end checks every message against its own state: a fragment is written once, and only inside the receiver's buffer.
//
// The transport owns the network below it and all messages in transfer; its thread rule is Transport's.
//
//   std::unique_ptr<Transport> transport = with_fragments(std::move(network));   // fragments.hpp
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "base/intrusive_list.hpp"
#include "base/numbered.hpp"
#include "base/size_class_pool.hpp"
#include "transport/tagged.hpp"
#include "transport/tcp_fragments/fragments.hpp"

namespace axon::transport {

// The payload of an RTS (docs/wire.md).
struct LongMessage {
  MessageHeader header;
  uint64_t sender = 0;  // the name of the sender's transport
  uint64_t num_bytes = 0;
};

static_assert(sizeof(LongMessage) == 56 && std::is_trivially_copyable_v<LongMessage>);

// More than 30 methods: Transport and Receiver declare 21 of them. The two ends of a long message share the peers,
// whose loss ends both.
class FragmentTransport final : public Transport, private Receiver {
 public:
  // Longer messages go in fragments: those for which the network, too, would use a rendezvous.
  static constexpr size_t kLongestWhole = kLargestEager;
  // With all headers, a fragment fits into one TCP segment.
  static constexpr size_t kTcpFragmentBytes = size_t{60} << 10;
  static_assert(kTcpFragmentBytes <= kLongestWhole);

  FragmentTransport(std::unique_ptr<Transport> network, FragmentUse use);
  ~FragmentTransport() override;

  void set_receiver(Receiver& receiver) noexcept override { receiver_ = &receiver; }
  std::span<const std::byte> address() const noexcept override { return address_; }
  Result<PeerId> add_peer(std::span<const std::byte> address, bool same_host) override;
  size_t num_descriptors_to_come(PeerId peer) const noexcept override {
    return network_->num_descriptors_to_come(peer);
  }
  Result<std::vector<Lane>> lanes(PeerId peer) override { return network_->lanes(peer); }
  size_t largest_eager() const noexcept override { return std::min(kLargestEager, network_->largest_eager()); }
  std::optional<Status> send(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                             Completion& completion) noexcept override;
  std::optional<Status> send_rendezvous(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                                        Completion& completion) noexcept override;
  std::optional<Status> fetch(void* rendezvous, Buffer into, Completion& completion) noexcept override;
  void refuse(void* rendezvous, const Status& why) noexcept override;
  void drop_peer(PeerId peer) noexcept override;
  bool holds_back() const noexcept override { return has_work() || network_->holds_back(); }
  unsigned progress() noexcept override;
  bool has_unread(PeerId peer) const noexcept override { return network_->has_unread(peer); }
  int event_fd() const noexcept override { return network_->event_fd(); }
  bool arm() noexcept override { return !has_work() && network_->arm(); }
  void flush(int timeout_ms) noexcept override;

 private:
  struct Outgoing;
  struct Incoming;
  struct Nack;
  using Handle = Tagged<Incoming, 61>;
  // The network reports to it the completion of CTS and NACK messages.
  struct Peer : Completion {
    Peer() noexcept;

    FragmentTransport* owner = nullptr;
    PeerId id = 0;
    uint64_t name = 0;
    std::optional<bool> takes_fragments;
    bool is_gone = false;             // the peer was dropped, lost or distrusted
    size_t num_in_flight = 0;         // fragments that the network is sending
    IntrusiveList<Outgoing> waiting;  // messages that wait for their CTS
    IntrusiveList<Outgoing> cleared;  // messages whose fragments progress() sends, in turn
    IntrusiveList<Outgoing> leaving;  // messages sent or failed, of which the network still holds fragments
    IntrusiveList<Incoming> fetched;  // messages of which fragments are to arrive
  };

  struct Parting {
    PeerId peer;
    Status why;
    bool is_news;  // whether the receiver must be notified
  };

  // Receiver, for the network
  void on_message(const MessageHeader& header, const Payload& payload) noexcept override;
  void on_peer_lost(PeerId peer, Status reason) noexcept override;
  void on_refused(const char* what) noexcept override { receiver_->on_refused(what); }

  bool goes_in_fragments(PeerId peer, ConstBuffer payload) noexcept;
  std::optional<PeerId> peer_named(uint64_t name) const noexcept;
  bool has_work() const noexcept;
  void distrust(Peer& peer, const Status& failure) noexcept;
  void part_with(Peer& peer, Status why, bool is_news) noexcept;
  void end_all_with(Peer& peer, const Status& why) noexcept;

  std::optional<Status> send_rts(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                                 Completion& completion) noexcept;
  std::optional<Status> hand_over(Outgoing& message, const RendezvousHeader& header, ConstBuffer bytes) noexcept;
  unsigned push_data(Peer& peer) noexcept;
  void push_data(Outgoing& message) noexcept;
  void on_sent(Outgoing& message, Status status) noexcept;
  void conclude(Outgoing& message, Status status) noexcept;
  void give_up(Outgoing& message, Status why) noexcept;
  void leave(Outgoing& message) noexcept;
  static bool is_over(const Outgoing& message) noexcept;
  Status release(Outgoing& message) noexcept;
  bool receive_cts(uint64_t number, uint64_t ticket) noexcept;
  bool receive_nack(uint64_t number, const Payload& payload) noexcept;

  void answer(Peer& peer, const RendezvousHeader& header) noexcept;
  void send_nack(Peer& peer, uint64_t number, const Status& why) noexcept;
  void release(Nack& nack) noexcept;
  bool receive(const RendezvousHeader& header, const Payload& payload) noexcept;
  bool receive_rts(uint64_t number, const Payload& payload) noexcept;
  bool receive_data(uint64_t ticket, uint64_t offset, const Payload& payload) noexcept;
  void release(Incoming& message) noexcept;

  const FragmentUse use_;
  const uint64_t name_;  // this transport's name, which only holders of its address know
  SizeClassPool pool_;
  Receiver* receiver_ = nullptr;
  std::vector<std::byte> address_;
  std::deque<Peer> peers_;  // indexed by PeerId, which the network assigns
  Numbered<Outgoing> numbers_;
  Numbered<Incoming> tickets_;
  IntrusiveList<Incoming> held_;   // messages to be fetched or refused
  IntrusiveList<Nack> nacks_;      // NACKs that the network is sending
  std::vector<Parting> partings_;  // peers that have left since the last progress()
  size_t num_cleared_ = 0;
  std::unique_ptr<Transport> network_;
};

}  // namespace axon::transport
