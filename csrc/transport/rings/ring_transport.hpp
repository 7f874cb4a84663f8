// Short messages between processes of one host go through rings in memory that they share; all else goes through the
// transport below.
//
// The first short message to a process of this host makes a ring for those that follow, and tells the process, by way
// of the network, where it lies. Messages take the network until the process reads there, and whenever the ring is
// full: nobody waits for a reader. Where a process may not look into another one, all of them do.
//
// A message through a ring may overtake one through the network, but not the other way round: before anything from the
// network is delivered, rings are read. What ends a connection or a group goes by the network, so that it comes last.
#pragma once

#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "transport/rings/ring.hpp"
#include "transport/rings/rings.hpp"

namespace axon {

// Behind the network's address.
struct RingAddress {
  uint64_t key = 0;  // random: who knows it has been given the address. 0: takes no rings
};
static_assert(sizeof(RingAddress) == 8);

// The payload of an offer, whose header names the key of whom it is for.
struct RingOffer {
  uint64_t key = 0;  // of who offers
  int32_t pid = 0;
  int32_t descriptor = -1;
};
static_assert(sizeof(RingOffer) == 16);

class RingTransport final : public Transport, private Receiver {
 public:
  // Rings to read, and rings to write. Each look at what has come looks into all of them.
  static constexpr size_t kMostRings = 64;

  RingTransport(std::unique_ptr<Transport> network, RingUse use);

  void set_receiver(Receiver& receiver) noexcept override { receiver_ = &receiver; }
  std::span<const std::byte> address() const noexcept override { return address_; }
  Result<PeerId> add_peer(std::span<const std::byte> address, bool same_host) override;
  Result<std::vector<Lane>> lanes(PeerId peer) override;
  std::optional<Status> send(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                             Completion& completion) noexcept override;
  std::optional<Status> offer(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                              Completion& completion) noexcept override {
    return network_->offer(peer, header, payload, completion);
  }
  std::optional<Status> fetch(void* rendezvous, Buffer into, Completion& completion) noexcept override {
    return network_->fetch(rendezvous, into, completion);
  }
  void refuse(void* rendezvous) noexcept override { network_->refuse(rendezvous); }
  void drop_peer(PeerId peer) noexcept override;
  unsigned progress() noexcept override;
  bool hears(std::chrono::milliseconds at_most) noexcept override { return network_->hears(at_most); }
  int event_fd() const noexcept override { return network_->event_fd(); }
  bool arm() noexcept override;
  void flush(int timeout_ms) noexcept override { network_->flush(timeout_ms); }

 private:
  struct Peer {
    uint64_t key = 0;
    bool takes_ring = false;
    bool is_dropped = false;
    std::optional<RingWriter> writer;
    RingOffer offer;
  };
  struct Reading {
    uint64_t key;  // the writer's
    RingReader ring;
  };

  // Receiver, of the network
  void on_message(const MessageHeader& header, const Payload& payload) noexcept override;
  void on_peer_lost(PeerId peer, Status reason) noexcept override;
  void on_refused(const char* what) noexcept override { receiver_->on_refused(what); }

  void offer_ring(PeerId id, Peer& peer) noexcept;
  void on_offer(const Payload& payload) noexcept;
  std::optional<Status> send_word(PeerId peer, OperationKind kind, ConstBuffer payload,
                                  Completion& completion) noexcept;
  unsigned read_rings(unsigned most_of_each) noexcept;
  void tidy() noexcept;

  std::unique_ptr<Transport> network_;
  RingAddress own_;
  std::vector<std::byte> address_;
  Receiver* receiver_ = nullptr;
  std::deque<Peer> peers_;  // by PeerId, which is the network's; it refers to offers
  size_t num_writers_ = 0;
  std::list<Reading> readings_;
  bool is_reading_ = false;
  bool is_to_tidy_ = false;  // a peer has been dropped, or a ring found broken, since the last progress()
};

}  // namespace axon
