// The transport of one process in a LoopbackFabric, which makes it. One thread at a time may use it.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "transport/loopback/loopback.hpp"

namespace axon::transport {

class LoopbackTransport final : public Transport {
 public:
  LoopbackTransport(LoopbackFabric& fabric, Mailbox& mailbox, uint32_t process);
  ~LoopbackTransport() override;

  void set_receiver(Receiver& receiver) noexcept override { receiver_ = &receiver; }
  std::span<const std::byte> address() const noexcept override { return std::as_bytes(std::span(&process_, 1)); }
  Result<PeerId> add_peer(std::span<const std::byte> address, bool same_host) override;
  Status watch_peer(PeerId peer) noexcept override;
  Result<std::vector<Lane>> lanes(PeerId) override { return std::vector{Lane{.name = "loopback", .device = ""}}; }
  size_t largest_eager() const noexcept override { return fabric_.plan_.largest_eager_num_bytes; }
  std::optional<Status> send(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                             Completion& completion) noexcept override;
  std::optional<Status> send_rendezvous(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                                        Completion& completion) noexcept override {
    return send_by(Protocol::kRendezvous, peer, header, payload, completion);
  }
  std::optional<Status> fetch(void* rendezvous, Buffer into, Completion& completion) noexcept override;
  void refuse(void* rendezvous, const Status& why) noexcept override;
  void drop_peer(PeerId peer) noexcept override { peers_[peer].dropped = true; }
  unsigned progress() noexcept override;
  int event_fd() const noexcept override { return mailbox_.event_fd; }
  bool arm() noexcept override;
  void flush(int timeout_ms) noexcept override;

 private:
  struct Peer {
    uint32_t process;
    bool dropped = false;
  };
  enum class Protocol : uint8_t { kEager, kRendezvous };

  struct Outgoing {
    Protocol protocol;
    PeerId peer;
    MessageHeader header;
    ConstBuffer payload;
    Completion* completion;
    uint64_t number;  // counted over all sends of the fabric
  };
  struct Fetching {
    std::unique_ptr<WaitingSend> waiting;
    Buffer into;
    Completion* completion;
    uint64_t number;
  };
  using Ended = std::vector<EndedTransfer>;

  std::optional<Status> send_by(Protocol protocol, PeerId peer, const MessageHeader& header, ConstBuffer payload,
                                Completion& completion) noexcept;

  // The caller holds the fabric's mutex.
  void connect(const Peer& peer);
  bool step();
  std::optional<Status> post(const Outgoing& message);
  bool corrupts(const Outgoing& message) noexcept;
  Status finish(const Fetching& fetching);
  Status copy(const WaitingSend& waiting, Buffer into);
  void end(const WaitingSend& waiting, Status status);
  void post_outgoing(Ended& ended);
  void do_fetches(Ended& ended);
  bool has_work() const noexcept { return !mailbox_.parcels.empty() || !outgoing_.empty() || !fetching_.empty(); }

  // The caller does not hold the fabric's mutex.
  void deliver(Parcel parcel) noexcept;
  void deliver(ArrivingMessage& message) noexcept;
  void deliver(LostProcess lost) noexcept;

  LoopbackFabric& fabric_;
  Mailbox& mailbox_;
  const uint32_t process_;
  Receiver* receiver_ = nullptr;
  std::vector<Peer> peers_;
  std::deque<Outgoing> outgoing_;
  std::deque<Fetching> fetching_;
};

}  // namespace axon::transport
