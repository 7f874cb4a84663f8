// All threads of a transport's rails: one for handshakes, and per rail one that sends and one that receives, for all
// peers. They start with the first peer that rails may reach.
//
// The progress owner calls everything here, and learns what the threads do from events().
//
//   Result<std::unique_ptr<RailThreads>> threads = RailThreads::open(num_rails, options, name);
//   AXON_TRY(threads.value()->start());
//   threads.value()->connect({.peer = peer, .rail = rail, .address = address});
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <string>

#include "transport/rails/incoming_stripes.hpp"
#include "transport/rails/outgoing_stripes.hpp"
#include "transport/rails/rail_events.hpp"
#include "transport/rails/rail_handshakes.hpp"
#include "transport/rails/rail_reader.hpp"
#include "transport/rails/rail_writer.hpp"
#include "transport/rails/rails.hpp"

namespace axon::transport {

class RailThreads final : private RailHandshakes::Handler {
 public:
  // Takes the port of the options, which must outlive the threads, or opens one for the transport of this name.
  // `num_rails` is from 1 to OutgoingStripes::kMostRails, whatever the options say.
  static Result<std::unique_ptr<RailThreads>> open(size_t num_rails, const RailOptions& options, uint64_t name);
  ~RailThreads();

  const RailAddress& address() const noexcept { return handshakes_->address(); }
  size_t num_rails() const noexcept { return writers_.size(); }
  Status start();

  IncomingStripes& incoming() noexcept { return incoming_; }
  OutgoingStripes& outgoing() noexcept { return outgoing_; }
  RailEvents& events() noexcept { return events_; }

  void connect(RailRequest request) { handshakes_->connect(std::move(request)); }
  void send_waiting() noexcept;
  // Closes all rails to and from this peer soon. It can open none until it is admitted again.
  void drop(PeerId peer, uint64_t name);
  // Closes the rails to this peer soon.
  void drop_own(PeerId peer);
  void admit(uint64_t name);

 private:
  RailThreads() noexcept : incoming_(events_) {}

  void on_connected(const RailRequest& request, FileDescriptor socket, const Digest& key) noexcept override;
  void on_not_connected(const RailRequest& request, Status why) noexcept override;
  void on_accepted(uint64_t name, uint32_t rail, FileDescriptor socket, const Digest& key) noexcept override;
  void on_stranger(const char* what) noexcept override;

  RailEvents events_;
  IncomingStripes incoming_;
  OutgoingStripes outgoing_;
  std::deque<RailReader> readers_;  // of rails whose index is theirs, modulo the number of readers
  std::deque<RailWriter> writers_;  // by the rail's index
  std::unique_ptr<RailHandshakes> own_port_;
  RailHandshakes* handshakes_ = nullptr;
};

}  // namespace axon::transport
