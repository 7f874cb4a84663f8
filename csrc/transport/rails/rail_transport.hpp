// Sends a long message over rails. An RTS announces it, the payload waits at its sender until the receiver's CTS
// provides a buffer, and threads move its stripes there in any order. All other messages go through the transport below
// unchanged. So do long ones while no rail to the peer is open.
//
//   sender                                     receiver
//   RTS: header, length, stripes' length    →  on_message
//                                            ← CTS: ticket              (or NACK: why, transport/nack.hpp)
//   stripes: ticket, offset, bytes          →  over rails
//                                            ← ACK
//
// Both transfers end when the last stripe has arrived, the sender's with the ACK. Until then, the stripes of a rail
// that breaks are sent over the others. If none is left and none can be opened anew, the peer is lost.
//
// Rails are connected in the background, from the first long message to a peer on. A peer that accepts none, or cannot
// be reached by them, is asked again after a while.
//
// The transport owns the network below it, the threads, and all messages in transfer; its thread rule is Transport's.
//
//   std::unique_ptr<Transport> transport = with_rails(std::move(network), options);   // rails.hpp
#pragma once

#include <algorithm>
#include <bitset>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/intrusive_list.hpp"
#include "base/numbered.hpp"
#include "base/size_class_pool.hpp"
#include "transport/rails/rail_threads.hpp"
#include "transport/rails/rails.hpp"
#include "transport/tagged.hpp"

namespace axon::transport {

// The payload of an RTS (docs/wire.md).
struct LongMessage {
  MessageHeader header;
  uint64_t sender = 0;  // the name of the sender's transport
  uint64_t num_bytes = 0;
  uint64_t stripe_num_bytes = 0;
};

static_assert(sizeof(LongMessage) == 64 && std::is_trivially_copyable_v<LongMessage>);

// More than 30 methods: Transport and Receiver declare 21 of them. The two ends of a long message share the peers,
// whose loss ends both.
class RailTransport final : public Transport, private Receiver {
 public:
  // Longer messages go over rails. Shorter ones are there before the threads have woken.
  static constexpr size_t kLongestWhole = size_t{256} << 10;

  RailTransport(std::unique_ptr<Transport> network, const RailOptions& options);
  ~RailTransport() override;

  void set_receiver(Receiver& receiver) noexcept override { receiver_ = &receiver; }
  std::span<const std::byte> address() const noexcept override { return address_; }
  Result<PeerId> add_peer(std::span<const std::byte> address, bool same_host) override;
  Status watch_peer(PeerId peer) noexcept override { return network_->watch_peer(peer); }
  // Rails take no descriptors that others may need (RailHandshakes::kDescriptorsLeftAlone).
  size_t num_descriptors_to_come(PeerId peer) const noexcept override {
    return network_->num_descriptors_to_come(peer);
  }
  Result<std::vector<Lane>> lanes(PeerId peer) override;
  std::vector<std::string> obstacles(PeerId peer) override;
  size_t most_processes_with_rails(PeerId peer) const noexcept override { return peers_[peer].address->most_processes; }
  size_t num_open_rails(PeerId peer) const noexcept { return peers_[peer].open.count(); }
  size_t largest_eager() const noexcept override { return std::min(kLargestEager, network_->largest_eager()); }
  std::optional<Status> send(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                             Completion& completion) noexcept override;
  std::optional<Status> send_rendezvous(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                                        Completion& completion) noexcept override;
  std::optional<Status> fetch(void* rendezvous, Buffer into, Completion& completion) noexcept override;
  void refuse(void* rendezvous, const Status& why) noexcept override;
  void drop_peer(PeerId peer) noexcept override;
  bool holds_back() const noexcept override { return !partings_.empty() || network_->holds_back(); }
  unsigned progress() noexcept override;
  bool has_unread(PeerId peer) const noexcept override { return network_->has_unread(peer); }
  int event_fd() const noexcept override { return wakeups_.valid() ? wakeups_.get() : network_->event_fd(); }
  bool arm() noexcept override;
  void flush(int timeout_ms) noexcept override;

 private:
  using Clock = std::chrono::steady_clock;

  struct Outgoing;
  struct Incoming;
  struct Nack;
  using Handle = Tagged<Incoming, 61>;

  // The network reports to it the completion of CTS, ACK and NACK messages.
  struct Peer : Completion {
    Peer() noexcept;

    RailTransport* owner = nullptr;
    PeerId id = 0;
    uint64_t name = 0;
    std::shared_ptr<const RailAddress> address;
    std::optional<bool> may_take_rails;
    bool is_neighbour = false;  // another process of this host
    bool is_gone = false;       // the peer was dropped, lost or distrusted
    std::bitset<OutgoingStripes::kMostRails> connecting;
    std::bitset<OutgoingStripes::kMostRails> open;
    std::bitset<OutgoingStripes::kMostRails> are_fast;  // link_speed.hpp
    Clock::time_point next_measurement{};               // of a fast link
    bool has_warned = false;                            // that a rail cannot be opened
    std::map<size_t, std::string> routes;               // of the open rails, and of former ones
    std::string failure;                                // of the latest rail that could not be opened, or broke
    Clock::time_point next_try{};                       // not before, for rails that are neither
    Clock::time_point opened_at{};                      // since when a rail is open
    std::optional<Clock::time_point> stranded_at;       // since when its messages have no rail that works
    IntrusiveList<Outgoing> outgoing;                   // messages that wait for their CTS or ACK
    IntrusiveList<Outgoing> leaving;  // messages that have ended, of which the network still holds the RTS
    IntrusiveList<Incoming> fetched;  // messages of which stripes are to arrive
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

  Status open_threads();
  void start_threads() noexcept;
  void go_without_threads(const Status& why);
  // Returns whether this process connects and accepts rails.
  bool has_rails() const noexcept { return threads_ != nullptr && are_started_; }
  Status watch_events();
  size_t num_rails_of_a_peer() const noexcept;
  static std::string describe_few_descriptors();
  std::string why_missing(const Peer& peer) const;
  std::string why_so_few() const;
  bool takes_rails(PeerId peer, ConstBuffer payload) noexcept;
  // Returns whether the network moves long messages as fast as rails: its link is fast, and their threads have no cores
  // of their own.
  bool needs_no_rails(const Peer& peer) const noexcept;
  bool should_take_rails(Peer& peer) noexcept;
  void connect_if_due(Peer& peer) noexcept;
  void connect(Peer& peer, Clock::time_point not_before, Clock::time_point deadline) noexcept;
  std::optional<PeerId> peer_named(uint64_t name) const noexcept;
  void distrust(Peer& peer, std::string why) noexcept;
  bool mark_gone(Peer& peer) noexcept;
  void part_with(Peer& peer, Status why, bool is_news) noexcept;
  void withdraw_memory_of(Peer& peer) noexcept;
  void end_all_with(Peer& peer, const Status& why) noexcept;

  unsigned handle_events() noexcept;
  void handle(RailEvent& event) noexcept;
  void on_opened(Peer& peer, size_t rail) noexcept;
  void on_not_opened(Peer& peer, size_t rail, const Status& why) noexcept;
  void on_broken(Peer& peer, size_t rail, const Status& why) noexcept;
  void rescue_messages_of(Peer& peer, const Status& why) noexcept;
  void on_arrived(uint64_t ticket) noexcept;

  std::optional<Status> send_rts(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                                 Completion& completion) noexcept;
  void on_rts_sent(Outgoing& message, Status status) noexcept;
  void conclude(Outgoing& message, Status status) noexcept;
  void withdraw(Outgoing& message, OutgoingStripes::Why why) noexcept;
  Status release(Outgoing& message) noexcept;
  bool receive_cts(uint64_t number, uint64_t ticket) noexcept;
  bool receive_nack(uint64_t number, const Payload& payload) noexcept;
  bool receive_ack(uint64_t number) noexcept;

  void answer(Peer& peer, const RendezvousHeader& header) noexcept;
  void send_nack(Peer& peer, uint64_t number, const Status& why) noexcept;
  void release(Nack& nack) noexcept;
  bool receive(const RendezvousHeader& header, const Payload& payload) noexcept;
  bool receive_rts(uint64_t number, const Payload& payload) noexcept;
  void release(Incoming& message) noexcept;

  const RailOptions options_;
  const uint64_t name_;     // this transport's name, which only holders of its address know
  const size_t num_cores_;  // on which this process may run
  const bool are_paced_;    // connections, by the kernel
  SizeClassPool pool_;
  Receiver* receiver_ = nullptr;
  std::vector<std::byte> address_;
  OwnSubnets subnets_;
  std::deque<Peer> peers_;     // indexed by PeerId, which the network assigns
  size_t num_neighbours_ = 0;  // peers on this host
  Numbered<Outgoing> numbers_;
  Numbered<Incoming> tickets_;
  IntrusiveList<Incoming> held_;          // messages to be fetched or refused
  IntrusiveList<Nack> nacks_;             // NACKs that the network is sending
  std::vector<Parting> partings_;         // peers that have left since the last progress()
  std::unique_ptr<RailThreads> threads_;  // null: this process neither sends nor accepts rails
  std::string why_none_;                  // why threads_ is null
  bool are_started_ = false;
  FileDescriptor wakeups_;  // an epoll set with the threads' events and the network's; invalid: without threads
  std::unique_ptr<Transport> network_;
};

}  // namespace axon::transport
