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
// A first message connects. A rail to another host is connected within some two seconds in any case, so that its end is
// noticed. If both processes connect at once, the rail of the one with the smaller name stays. The other rail is closed
// when both ends have said BYE over it. A rail that ends otherwise is the loss of the peer, as is a host that falls
// silent (transport/rails/silence.hpp).
//
// The transport owns its port, sockets and messages; its thread rule is Transport's.
#pragma once

#include <chrono>
#include <list>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/intrusive_list.hpp"
#include "base/numbered.hpp"
#include "base/size_class_pool.hpp"
#include "transport/rails/rail_handshakes.hpp"
#include "transport/rails/recent_names.hpp"
#include "transport/sockets/frame.hpp"
#include "transport/sockets/rail_arrivals.hpp"
#include "transport/transport.hpp"

namespace axon::transport {

// More than 30 methods: Transport declares 18 of them. Rails, frames and both directions of long messages share the
// links, whose loss ends all of them.
class SocketTransport final : public Transport, private RailHandshakes::Handler {
 public:
  static Result<std::unique_ptr<SocketTransport>> open(std::span<const std::string> devices);
  ~SocketTransport() override;
  SocketTransport(const SocketTransport&) = delete;
  SocketTransport& operator=(const SocketTransport&) = delete;

  RailHandshakes& port() noexcept { return *port_; }

  void set_receiver(Receiver& receiver) noexcept override { receiver_ = &receiver; }
  std::span<const std::byte> address() const noexcept override { return address_; }
  Result<PeerId> add_peer(std::span<const std::byte> address, bool same_host) override;
  size_t num_descriptors_to_come(PeerId peer) const noexcept override;
  Result<std::vector<Lane>> lanes(PeerId peer) override;
  size_t num_open_rails(PeerId peer) const noexcept;
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
  bool has_unread(PeerId peer) const noexcept override;
  int event_fd() const noexcept override { return events_.get(); }
  bool arm() noexcept override { return !has_work() && arrivals_.arm(); }
  void flush(int timeout_ms) noexcept override;

 private:
  using Clock = std::chrono::steady_clock;

  // The most that one system call reads, except into places: at least the largest frame but DATA.
  static constexpr size_t kScratchBytes = size_t{128} << 10;

  // The process that has connected a rail.
  enum class Connector : uint8_t { kThis, kPeer };

  struct Link;
  struct Connection;
  struct Outgoing;
  struct Incoming;
  struct Writing;

  // A transfer whose completion is called at the end of progress().
  struct Ended {
    Completion* completion;
    Status status;
  };

  explicit SocketTransport(std::unique_ptr<RailHandshakes> port);

  // RailHandshakes::Handler, on its thread
  void on_connected(const RailRequest& request, FileDescriptor socket, const Digest& key) noexcept override;
  void on_not_connected(const RailRequest& request, Status why) noexcept override;
  void on_accepted(uint64_t name, uint32_t rail, FileDescriptor socket, const Digest& key) noexcept override;
  void on_stranger(const char* what) noexcept override;

  // Peers and rails (socket_transport.cpp)
  Status open_events();
  Status watch(const FileDescriptor& descriptor, uint32_t events, void* mark) noexcept;
  bool is_self(const Link& link) const noexcept;
  Link& make_link(uint64_t name);
  Status connect(Link& link) noexcept;
  void request_rail(Link& link, Clock::time_point not_before) noexcept;
  void connect_later(Link& link) noexcept;
  unsigned handle_arrivals() noexcept;
  void handle(RailArrival& arrival) noexcept;
  void on_accepted(RailArrival& arrival) noexcept;
  void on_not_connected(Link& link, RailArrival& arrival) noexcept;
  void add_rail(Link& link, FileDescriptor socket, Connector connector) noexcept;
  void start_timer() noexcept;
  void on_tick() noexcept;
  bool has_work() const noexcept;
  static bool is_at_rest(Link& link) noexcept;

  // Ends (socket_transport.cpp)
  void close_rails(Link& link) noexcept;
  void close(Connection& connection) noexcept;
  void lose(Link& link, Status why) noexcept;
  void free_lost_links() noexcept;
  void forget(Link& link) noexcept;
  void end_all_of(Link& link) noexcept;
  void end(Outgoing& message, Status status) noexcept;
  void end(Incoming& message, Status status) noexcept;
  unsigned finish_ended() noexcept;

  // Bytes (socket_rails.cpp)
  void schedule(Link& link) noexcept;
  unsigned write_waiting() noexcept;
  unsigned write(Connection& connection) noexcept;
  static size_t gather(const Connection& connection, std::span<Writing> batch) noexcept;
  bool write_batch(Connection& connection, std::span<Writing> batch) noexcept;
  ssize_t write_some(Connection& connection, std::span<const Writing> batch) noexcept;
  void on_begun(const Writing& written) noexcept;
  void on_written(Connection& connection, const Writing& written) noexcept;
  static Connection* idle_rail_of(Link& link) noexcept;
  void change(Connection& connection, uint32_t events) noexcept;
  unsigned poll_sockets() noexcept;
  unsigned read(Connection& connection) noexcept;

  // Messages (socket_messages.cpp)
  Outgoing& enqueue(Link& link, const FrameHeader& header, ConstBuffer payload, Completion* completion) noexcept;
  void release(Outgoing& message) noexcept;
  void release(Incoming& message) noexcept;
  std::optional<Status> send_to_self(Link& link, const MessageHeader& header, ConstBuffer payload,
                                     Completion& completion) noexcept;
  bool receive(Connection& connection, const FrameHeader& header, std::span<const std::byte> payload) noexcept;
  void receive_rts(Link& link, const FrameHeader& header, Outgoing* own) noexcept;
  bool receive_cts(const Link& link, const FrameHeader& header) noexcept;
  bool receive_nack(const Link& link, const FrameHeader& header, std::span<const std::byte> payload) noexcept;
  bool receive_bye(Connection& connection) noexcept;
  std::byte* place_of(const Link& link, const FrameHeader& header) noexcept;
  bool receive_data(const FrameHeader& header) noexcept;

  SizeClassPool pool_;
  std::unique_ptr<RailHandshakes> port_;
  std::vector<std::byte> address_;
  Receiver* receiver_ = nullptr;
  RailArrivals arrivals_;
  FileDescriptor events_;  // an epoll set: the arrivals' event, the timer, and all rails
  FileDescriptor timer_;   // ticks while rails are to be looked after
  bool is_timer_on_ = false;
  std::list<Link> links_;
  std::unordered_map<uint64_t, Link*> link_of_;  // by name; the latest one
  std::vector<Link*> peers_;                     // by PeerId
  std::unique_ptr<Link> gone_;                   // stands for all lost peers whose link has been freed
  RecentNames lost_names_;                       // of freed links
  bool may_free_ = false;                        // a link was lost, or a lost one has fewer messages
  std::list<Connection> connections_;
  size_t num_open_ = 0;        // connections that are not closed
  bool has_closed_ = false;    // some are
  Connection* hot_ = nullptr;  // the rail that was read last, which progress() reads first
  unsigned num_polls_ = 0;
  IntrusiveList<Link> to_write_;  // links with something to write
  std::vector<Link*> dropped_;    // since the last progress(): their transfers are to end
  std::vector<Ended> ended_;
  std::vector<Ended> spare_;    // empty; keeps its memory
  Numbered<Outgoing> numbers_;  // long messages that wait for their CTS
  Numbered<Incoming> tickets_;  // messages that wait for DATA
  std::unique_ptr<std::byte[]> scratch_;
};

}  // namespace axon::transport
