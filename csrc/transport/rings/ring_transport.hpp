// Processes of one host exchange messages through rings in shared memory. All other messages take the transport below.
//
// The first message to a process of this host makes a ring for all messages, and calls the process by its doorbell.
// Messages wait until that process reads the ring, and whenever the ring is full; they arrive in order. Long payloads
// wait at their sender. The receiver reads them from the sender's memory, or else asks for fragments. If a process may
// not access another one, or its links are at their limit, all messages between the two take the network.
//
// A process that is killed, at any instruction, blocks no other process: each ring and each call of a doorbell has one
// writer. The transport owns the network below it, its links and its doorbell; its thread rule is Transport's.
//
//   std::unique_ptr<Transport> transport = with_rings(std::move(network));   // rings.hpp
#pragma once

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "transport/rings/doorbell.hpp"
#include "transport/rings/ring_link.hpp"
#include "transport/rings/rings.hpp"

namespace axon::transport {

// More than 30 methods: Transport and Receiver declare 23 of them.
class RingTransport final : public Transport, private Receiver {
 public:
  // A bound for those that are used, because each call of progress() polls their rings.
  static constexpr size_t kMostLinks = 64;
  // The peer's doorbell, and the ring until the peer has mapped it.
  static constexpr size_t kDescriptorsOfALink = 2;

  RingTransport(std::unique_ptr<Transport> network, RingUse use);
  ~RingTransport() override;

  void set_receiver(Receiver& receiver) noexcept override { shared_.receiver = &receiver; }
  std::span<const std::byte> address() const noexcept override { return address_; }
  Result<PeerId> add_peer(std::span<const std::byte> address, bool same_host) override;
  Status watch_peer(PeerId peer) noexcept override { return network_->watch_peer(peer); }
  size_t num_descriptors_to_come(PeerId peer) const noexcept override;
  size_t most_processes_with_rails(PeerId peer) const noexcept override {
    return network_->most_processes_with_rails(peer);
  }
  Result<std::vector<Lane>> lanes(PeerId peer) override;
  std::vector<std::string> obstacles(PeerId peer) override { return network_->obstacles(peer); }
  // Rings send 64 KiB eagerly. A peer without a ring gets the network's eager limit, hence the minimum.
  size_t largest_eager() const noexcept override { return std::min(RingMemory::kMostBytes, network_->largest_eager()); }
  std::optional<Status> send(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                             Completion& completion) noexcept override;
  std::optional<Status> send_rendezvous(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                                        Completion& completion) noexcept override;
  std::optional<Status> fetch(void* rendezvous, Buffer into, Completion& completion) noexcept override;
  void refuse(void* rendezvous, const Status& why) noexcept override;
  bool withdraw(PeerId peer, const CallHeader& call) noexcept override;
  bool can_withdraw(PeerId peer) const noexcept override;
  void drop_peer(PeerId peer) noexcept override;
  bool holds_back() const noexcept override {
    return std::ranges::any_of(live_, &RingLink::has_work) || network_->holds_back();
  }
  unsigned progress() noexcept override;
  bool has_unread(PeerId peer) const noexcept override;
  int event_fd() const noexcept override { return events_.valid() ? events_.get() : network_->event_fd(); }
  bool arm() noexcept override;
  void flush(int timeout_ms) noexcept override;

 private:
  struct Peer {
    RingLink* link = nullptr;  // null: messages take the network so far
    RingAddress address;
    bool is_dropped = false;
  };

  // Receiver, for the network
  void on_message(const MessageHeader& header, const Payload& payload) noexcept override {
    shared_.receiver->on_message(header, payload);
  }
  void on_peer_lost(PeerId peer, Status reason) noexcept override;
  void on_refused(const char* what) noexcept override { shared_.receiver->on_refused(what); }

  Status open_doorbell();
  // Returns the link, connected, if messages to this peer take it; otherwise null.
  RingLink* link_to(Peer& peer) noexcept;
  RingLink* find_link(const RingAddress& address) noexcept;
  bool use(RingLink& link) noexcept;
  std::optional<PeerId> peer_of(const RingLink& link) const noexcept;
  unsigned answer_calls() noexcept;
  void on_ring_offered(const RingCall& call) noexcept;
  Status read_ring_of(const RingCall& call, RingLink& link) noexcept;
  unsigned read_rings() noexcept;
  void look_after(RingLink& link) noexcept;
  void tidy() noexcept;

  RingLink::Shared shared_;
  std::unique_ptr<Transport> network_;
  std::optional<RingDoorbell> doorbell_;  // none: rings are not used
  FileDescriptor events_;                 // an epoll set with the doorbell's and the network's
  std::vector<std::byte> address_;
  std::vector<Peer> peers_;      // indexed by PeerId, which the network assigns
  std::deque<RingLink> links_;   // one per process that was added as a peer or has called
  std::vector<RingLink*> live_;  // the links that are used, and not lost
  bool is_to_tidy_ = false;      // a link has ended since the last progress()
};

}  // namespace axon::transport
