// Connects the links of SocketTransport: asks the port for rails, and takes those that it has connected or accepted.
//
//   AXON_TRY(connector.open());
//   AXON_TRY(connector.connect(link));      // fails only for want of descriptors
//   connector.handle_arrivals();            // within progress()
//
// The port's thread reports; the progress owner calls everything else. Serves the port until it is destroyed.
#pragma once

#include "transport/rails/rail_handshakes.hpp"
#include "transport/sockets/rail_arrivals.hpp"
#include "transport/sockets/socket_links.hpp"
#include "transport/sockets/socket_messages.hpp"
#include "transport/sockets/socket_owner.hpp"
#include "transport/sockets/socket_rails.hpp"

namespace axon::transport {

class SocketConnector final : private RailHandshakes::Handler {
 public:
  // A process may have a rail of its own and one of its peer's for a moment.
  static constexpr size_t kDescriptorsOfALink = 2;

  SocketConnector(RailHandshakes& port, SocketLinks& links, SocketMessages& messages, SocketRails& rails,
                  SocketOwner& owner);
  ~SocketConnector() { port_.serve(RailUse::kMessages, nullptr); }
  SocketConnector(const SocketConnector&) = delete;
  SocketConnector& operator=(const SocketConnector&) = delete;

  Status open();
  Status connect(SocketLink& link) noexcept;
  // Connects at one of the next ticks, unless the other process has connected by then.
  void connect_later(SocketLink& link) noexcept;
  // Connects the links that are due. Returns whether some are due again at the next tick.
  bool connect_due() noexcept;
  void cancel(const SocketLink& link) noexcept;

  // Becomes readable when something arrives after arm() has returned true.
  bool arm() noexcept { return arrivals_.arm(); }
  bool has_arrivals() const noexcept { return arrivals_.any(); }
  unsigned handle_arrivals() noexcept;

 private:
  using Clock = std::chrono::steady_clock;

  // RailHandshakes::Handler, on its thread
  void on_connected(const RailRequest& request, FileDescriptor socket, const Digest& key) noexcept override;
  void on_not_connected(const RailRequest& request, Status why) noexcept override;
  void on_accepted(uint64_t name, uint32_t rail, FileDescriptor socket, const Digest& key) noexcept override;
  void on_stranger(const char* what) noexcept override;

  void request_rail(SocketLink& link, Clock::time_point not_before) noexcept;
  void handle(RailArrival& arrival) noexcept;
  void accept(RailArrival& arrival) noexcept;
  void go_on_without(SocketLink& link, RailArrival& arrival) noexcept;
  void await_resources(SocketLink& link, const Status& why) noexcept;
  static void warn_of_shortage(SocketLink& link, const Status& why);

  RailHandshakes& port_;
  SocketLinks& links_;
  SocketMessages& messages_;
  SocketRails& rails_;
  SocketOwner& owner_;
  RailArrivals arrivals_;
};

}  // namespace axon::transport
