// A transport over rails that carry whole messages: TCP connections of our own, one per peer process, authenticated
// with the secret in the transport's address. The progress owner reads and writes them; a thread runs their handshakes.
//
// Short messages are written at once, with their payload, or wait for room in the socket. A long message's payload
// waits at its sender until the receiver has a place for it:
//
//   sender                                receiver
//   RTS: header, length, number        →  on_message
//                                       ← CTS: ticket            (or NACK: why, transport/nack.hpp)
//   DATA: ticket, offset, bytes        →  read into place
//
// A first message connects. A rail to a peer of another host that is watched is connected within some two seconds in
// any case, so that the peer's end is noticed. If both processes connect at once, the rail of the one with the smaller
// name stays. The other rail is closed when both ends have said BYE over it. A rail that ends otherwise is the loss of
// the peer, as is a host that falls silent (transport/rails/silence.hpp).
//
// Its parts: links (socket_links.hpp), how they are connected (socket_connector.hpp), their rails (socket_rails.hpp)
// and messages (socket_messages.hpp). This class coordinates them, and ends links. It owns all of them and its port;
// its thread rule is Transport's.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "transport/rails/rail_handshakes.hpp"
#include "transport/sockets/socket_connector.hpp"
#include "transport/sockets/socket_links.hpp"
#include "transport/sockets/socket_messages.hpp"
#include "transport/sockets/socket_owner.hpp"
#include "transport/sockets/socket_rails.hpp"
#include "transport/transport.hpp"

namespace axon::transport {

class SocketTransport final : public Transport, private SocketOwner {
 public:
  static Result<std::unique_ptr<SocketTransport>> open(std::span<const std::string> devices);
  ~SocketTransport() override;
  SocketTransport(const SocketTransport&) = delete;
  SocketTransport& operator=(const SocketTransport&) = delete;

  RailHandshakes& port() noexcept { return *port_; }

  void set_receiver(Receiver& receiver) noexcept override;
  std::span<const std::byte> address() const noexcept override { return address_; }
  Result<PeerId> add_peer(std::span<const std::byte> address, bool same_host) override;
  Status watch_peer(PeerId peer) noexcept override;
  size_t num_descriptors_to_come(PeerId peer) const noexcept override;
  Result<std::vector<Lane>> lanes(PeerId peer) override;
  size_t num_open_rails(PeerId peer) const noexcept { return links_.of(peer).rails.size(); }
  // Returns of how many processes there is any state.
  size_t num_links() const noexcept { return links_.size(); }
  std::optional<Status> send(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                             Completion& completion) noexcept override;
  std::optional<Status> send_rendezvous(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                                        Completion& completion) noexcept override;
  std::optional<Status> fetch(void* rendezvous, Buffer into, Completion& completion) noexcept override;
  void refuse(void* rendezvous, const Status& why) noexcept override;
  void drop_peer(PeerId peer) noexcept override;
  bool holds_back() const noexcept override { return has_work(); }
  unsigned progress() noexcept override;
  bool has_unread(PeerId peer) const noexcept override { return SocketRails::has_unread(links_.of(peer)); }
  int event_fd() const noexcept override { return rails_.event_fd(); }
  bool arm() noexcept override { return !has_work() && connector_.arm(); }
  void flush(int timeout_ms) noexcept override;

 private:
  explicit SocketTransport(std::unique_ptr<RailHandshakes> port);

  // SocketOwner
  void lose(SocketLink& link, Status why) noexcept override;
  void on_refused(const char* what) noexcept override { receiver_->on_refused(what); }
  void on_tick() noexcept override;

  Status open_events();
  Result<PeerId> add_link(RailAddress address, bool same_host);
  bool has_work() const noexcept;
  static bool is_at_rest(const SocketLink& link) noexcept;
  void note_end_of(void* rendezvous) noexcept;

  const std::unique_ptr<RailHandshakes> port_;
  std::vector<std::byte> address_;
  Receiver* receiver_ = nullptr;
  SocketLinks links_;
  OwnSubnets subnets_;
  SocketMessages messages_;
  SocketRails rails_;
  SocketConnector connector_;
  std::vector<SocketLink*> dropped_;  // since the last progress(): their transfers are to end
};

}  // namespace axon::transport
