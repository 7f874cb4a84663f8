// The thread that sends stripes over one rail to all peers, directly from the memory of their messages, or compressed
// (stripe_compression.hpp).
//
// A rail breaks if its connection fails, or if the peer's host has acknowledged nothing for Silence::kMost while data
// is on the way. A peer that is only slow, or stopped, is not silent: its host goes on acknowledging.
//
//   RailWriter writer(rail, outgoing, events);
//   AXON_TRY(writer.start());
//   writer.add(std::move(socket), peer, key);   // any thread
//   writer.send_waiting();                      // any thread: after a message was added to `outgoing`
#pragma once

#include <chrono>
#include <list>
#include <mutex>
#include <optional>
#include <vector>

#include "transport/rails/link_speed.hpp"
#include "transport/rails/outgoing_stripes.hpp"
#include "transport/rails/rail_events.hpp"
#include "transport/rails/rail_thread.hpp"
#include "transport/rails/silence.hpp"
#include "transport/rails/stripe.hpp"
#include "transport/rails/stripe_compression.hpp"

namespace axon::transport {

class RailWriter final : private RailThread {
 public:
  RailWriter(size_t rail, Compression compression, OutgoingStripes& outgoing, RailEvents& events) noexcept
      : rail_(rail), compression_(compression), outgoing_(outgoing), events_(events) {}
  ~RailWriter() { stop(); }

  Status start() { return RailThread::start("axon-rail-out"); }
  using RailThread::stop;

  // Any thread. The socket does not block; the other end is authenticated.
  void add(FileDescriptor socket, PeerId peer, const Digest& key);
  // Any thread: closes the rail to this peer soon.
  void drop(PeerId peer);
  void send_waiting() noexcept { wake(); }

 private:
  using Clock = std::chrono::steady_clock;

  struct Connection {
    Connection(RailWriter& writer, FileDescriptor of, PeerId to, const Digest& key) noexcept
        : socket(std::move(of)), peer(to), sealer(key), encoder(writer.compression_, writer.encoder_memory_) {}

    FileDescriptor socket;
    const PeerId peer;
    StripeSealer sealer;
    LinkSpeed link;
    StripeEncoder encoder;
    std::optional<OutgoingStripes::Stripe> stripe;  // being sent
    StripeHeader header;
    size_t num_sent = 0;      // of header and stripe
    bool is_blocked = false;  // until the socket has room
    Silence silence;
  };

  void on_wake() noexcept override;
  void on_event(void* watched, uint32_t events) noexcept override;
  int on_round() noexcept override;

  void send_stripes(Connection& connection) noexcept;
  bool begin_stripe(Connection& connection) noexcept;
  void measure(Connection& connection) noexcept;
  void compress(Connection& connection) noexcept;
  // Returns zero, or an error as in errno.
  int send_some(Connection& connection) noexcept;
  void look_after(Connection& connection) noexcept;
  void end_stripe(Connection& connection) noexcept;
  void close(Connection& connection) noexcept;
  void break_off(Connection& connection, const std::string& why) noexcept;
  void remove_broken() noexcept;

  const size_t rail_;
  const Compression compression_;
  OutgoingStripes& outgoing_;
  RailEvents& events_;
  EncoderMemory encoder_memory_;  // the thread's, as the next three
  std::list<Connection> connections_;
  bool has_more_ = false;  // a connection that is not blocked has stripes to send
  Clock::time_point next_look_{};
  std::mutex mutex_;  // guards the following members, which on_wake() takes
  std::list<Connection> added_;
  std::vector<PeerId> dropped_;
};

}  // namespace axon::transport
