// How bytes move between processes: the one interface under the engine, implemented by
// ucx/ and loopback/, and by tcp_fragments/ and rings/ above others.
//
// Thread rule: everything here is called by the progress owner, one thread at a time.
// Re-entrancy: send() may deliver to the receiver before it returns (a peer may be this very process); fetch() and
// send() may be called from inside Receiver::on_message.
//
//   auto finished = transport.send(peer, header, payload, completion);
//   if (!finished) …                       // pending: completion.done(…) is called from a later progress()
//   else if (!finished->ok()) …            // failed at once; completion is not called
//
// Order: none is promised between two messages to one peer; the layers above match by what the header says.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "memory/buffer.hpp"
#include "transport/message.hpp"

namespace axon::transport {

// A peer process, counted from 0 by this engine in the order of add_peer().
using PeerId = uint32_t;

// One of the ways over which messages reach a peer, by the transport's own names: "cma" over "memory", "tcp" over
// "eth0".
struct Lane {
  std::string name;
  std::string device;

  friend bool operator==(const Lane&, const Lane&) = default;
};

// Told when a pending transfer has ended. Lives until told, or until the transport is destroyed (which tells nobody).
struct Completion {
  void (*done)(Completion& self, Status status) noexcept = nullptr;
};

// Of transfers whose end concerns nobody.
inline Completion unattended{[](Completion&, Status) noexcept {}};

// A message's payload as it arrives. Small ones lie in `bytes`, valid only during on_message. Large ones wait at the
// sender: `rendezvous` is then non-null, and whoever gets it owes the transport exactly one fetch() or refuse().
struct Payload {
  const std::byte* bytes = nullptr;
  size_t num_bytes = 0;
  void* rendezvous = nullptr;
};

// Whom a transport delivers to.
class Receiver {
 public:
  virtual void on_message(const MessageHeader& header, const Payload& payload) noexcept = 0;
  // The transport itself learned that the peer is gone. Called once a peer.
  virtual void on_peer_lost(PeerId peer, Status reason) noexcept = 0;
  // The transport has refused something that was for itself: bytes that no transport of ours writes, or once more.
  virtual void on_refused(const char* /*what*/) noexcept {}

 protected:
  ~Receiver() = default;
};

class Transport {
 public:
  static constexpr size_t kLargestEager = size_t{64} << 10;

  virtual ~Transport() = default;

  // Set once, before the first progress().
  virtual void set_receiver(Receiver& receiver) noexcept = 0;

  // What a peer needs to reach this process. Valid as long as the transport.
  virtual std::span<const std::byte> address() const noexcept = 0;

  // A peer that can be sent to; connected on first use. `same_host` peers share memory and are watched by process; the
  // transport itself must notice the loss of others.
  virtual Result<PeerId> add_peer(std::span<const std::byte> address, bool same_host) = 0;

  // How many file descriptors the first messages to and from this peer may still open, so that whoever meets further
  // peers leaves them.
  virtual size_t num_descriptors_to_come(PeerId /*peer*/) const noexcept { return 0; }

  // What messages to this peer take, each once; connects if nothing has been sent yet. For people.
  virtual Result<std::vector<Lane>> lanes(PeerId peer) = 0;

  // Payloads of up to this size are sent eagerly by send(): none of them waits for its receiver. Larger ones all do.
  virtual size_t largest_eager() const noexcept { return kLargestEager; }

  // Payload and completion stay alive until done; the header is copied.
  virtual std::optional<Status> send(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                                     Completion& completion) noexcept = 0;

  // The same, but the payload waits at the sender for its fetch or refusal, however short it is: one byte or more.
  virtual std::optional<Status> send_rendezvous(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                                                Completion& completion) noexcept = 0;

  // Takes a waiting payload into `into` (exactly its length), or refuses it. A refusal with a reason fails the sender's
  // transfer with that (transport/nack.hpp). One without (a success) says that the payload is not needed any more:
  // the transfer ends, some with success.
  virtual std::optional<Status> fetch(void* rendezvous, Buffer into, Completion& completion) noexcept = 0;
  virtual void refuse(void* rendezvous, const Status& why) noexcept = 0;

  // Takes back a call that has been sent: nobody waits for it any more. Where its receiver has not read it yet, that
  // gets kWithdrawn in its place, of the same key and sequence, and none of what it carries. True if it had not left
  // this process; false if it may have been read, so that the receiver has to be told.
  virtual bool withdraw(PeerId /*peer*/, const MessageHeader& /*call*/) noexcept { return false; }
  // Returns whether withdraw() gets hold of what the peer has not read.
  virtual bool can_withdraw(PeerId /*peer*/) const noexcept { return false; }

  // Nothing is sent to or expected from this peer any more. Pending transfers with it fail, or are never told done.
  virtual void drop_peer(PeerId peer) noexcept = 0;

  // Something waits here, though whoever sent it may be through, and moves only in further calls of progress().
  virtual bool holds_back() const noexcept { return false; }

  // Moves everything that can move; returns how much did (0: nothing).
  virtual unsigned progress() noexcept = 0;

  // Whether something of this peer's lies here and only has to be looked at: that does not end with its process.
  virtual bool has_unread(PeerId /*peer*/) const noexcept { return false; }

  // For after a death on this host: false if nothing that others send gets here any more, since what was killed had
  // begun to write where all write. Delivers meanwhile, for as long at most.
  virtual bool check_receive_queue(std::chrono::milliseconds /*at_most*/) noexcept { return true; }

  // For sleeping: event_fd() becomes readable once something arrives after arm() returned true; false: progress first.
  // Progress made since then, by others, does not take that away.
  virtual int event_fd() const noexcept = 0;
  virtual bool arm() noexcept = 0;

  // Delivers what was sent to live peers, at most until `timeout_ms` have passed. Called once, before destruction.
  virtual void flush(int timeout_ms) noexcept = 0;
};

}  // namespace axon::transport
