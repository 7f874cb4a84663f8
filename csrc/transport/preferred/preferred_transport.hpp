// Sends each peer's messages over one of two networks (preferred.hpp). The sender of a message chooses, at first use;
// its receiver answers over the network that has brought it. So the two ends of a pair need not agree.
//
// The address is that of the preferred network, then that of the common one, which can be told from the end.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "base/file_descriptor.hpp"
#include "transport/sockets/sockets.hpp"
#include "transport/tagged.hpp"
#include "transport/transport.hpp"

namespace axon::transport {

class PreferredTransport final : public Transport {
 public:
  PreferredTransport(std::unique_ptr<Transport> preferred, SocketNetwork common);
  PreferredTransport(const PreferredTransport&) = delete;
  PreferredTransport& operator=(const PreferredTransport&) = delete;

  // Call once, first.
  Status open();

  void set_receiver(Receiver& receiver) noexcept override { receiver_ = &receiver; }
  std::span<const std::byte> address() const noexcept override { return address_; }
  Result<PeerId> add_peer(std::span<const std::byte> address, bool same_host) override;
  Status watch_peer(PeerId peer) noexcept override;
  size_t num_descriptors_to_come(PeerId peer) const noexcept override;
  Result<std::vector<Lane>> lanes(PeerId peer) override;
  std::optional<Status> send(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                             Completion& completion) noexcept override;
  std::optional<Status> send_rendezvous(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                                        Completion& completion) noexcept override;
  std::optional<Status> fetch(void* rendezvous, Buffer into, Completion& completion) noexcept override;
  void refuse(void* rendezvous, const Status& why) noexcept override;
  void drop_peer(PeerId peer) noexcept override;
  bool holds_back() const noexcept override {
    return preferred_.network->holds_back() || common_.network->holds_back();
  }
  unsigned progress() noexcept override { return preferred_.network->progress() + common_.network->progress(); }
  bool has_unread(PeerId peer) const noexcept override;
  int event_fd() const noexcept override { return events_.get(); }
  bool arm() noexcept override { return preferred_.network->arm() && common_.network->arm(); }
  void flush(int timeout_ms) noexcept override;

 private:
  // The common network's rendezvous handles are marked.
  using CommonHandle = Tagged<std::byte, 60>;

  struct Side final : Receiver {
    Side(PreferredTransport& whose, std::unique_ptr<Transport> which);

    void on_message(const MessageHeader& header, const Payload& payload) noexcept override;
    void on_peer_lost(PeerId peer, Status reason) noexcept override;
    void on_refused(const char* what) noexcept override { owner.receiver_->on_refused(what); }

    PreferredTransport& owner;
    std::vector<PeerId> peers;  // our number of each of the network's peers
    std::unique_ptr<Transport> network;
  };

  struct Peer {
    Side* side = nullptr;
    PeerId id = 0;                     // the network's
    std::vector<std::byte> address{};  // kept while it is not known whether the preferred network reaches it

    Transport& network() const noexcept { return *side->network; }
  };

  Status choose_network(PeerId peer);
  Result<Peer> add_to(Side& side, std::span<const std::byte> address, bool same_host, PeerId peer);

  Receiver* receiver_ = nullptr;
  std::vector<std::byte> address_;
  std::vector<Peer> peers_;  // by PeerId
  FileDescriptor events_;    // an epoll set of both networks' events
  RailHandshakes& port_;     // the common network's
  Side preferred_;
  Side common_;
};

}  // namespace axon::transport
