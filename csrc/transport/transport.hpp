// The interface through which the engine moves bytes between processes. ucx/ and loopback/ implement it; rails/ and
// rings/ implement it on top of another transport.
//
// Thread rule: the progress owner calls every function here, one thread at a time.
// Re-entrancy: send() may deliver to the receiver before it returns, because a peer may be this very process.
// Receiver::on_message may call fetch() and send().
//
//   auto finished = transport.send(peer, header, payload, completion);
//   if (!finished) …                       // pending: completion.done(…) is called from a later progress()
//   else if (!finished->ok()) …            // failed at once; completion is not called
//
// Order: messages to one peer may arrive in any order. The layers above match them by their headers.
#pragma once

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

// A peer process, numbered from 0 by this engine in the order of add_peer().
using PeerId = uint32_t;

// One of the routes by which messages reach a peer, named as the transport names it: "cma" over "memory", "tcp" over
// "eth0", "rail" over "eth0 to 10.0.0.2".
struct Lane {
  std::string name;
  std::string device;
  int32_t pid = 0;  // of the process to which it leads, within a host; 0: not known

  friend bool operator==(const Lane&, const Lane&) = default;
};

// Notified when a pending transfer ends. It must live until then, or until the transport is destroyed, which notifies
// nothing.
struct Completion {
  void (*done)(Completion& self, Status status) noexcept = nullptr;
};

// For transfers whose completion needs no action.
inline Completion unattended{[](Completion&, Status) noexcept {}};

// A message's payload as it arrives. A small payload lies in `bytes`, valid only during on_message. A large one waits
// at its sender: `rendezvous` is then non-null, and the receiver owes the transport exactly one fetch() or refuse().
struct Payload {
  const std::byte* bytes = nullptr;
  size_t num_bytes = 0;
  void* rendezvous = nullptr;
};

// Takes the messages that a transport delivers.
class Receiver {
 public:
  virtual void on_message(const MessageHeader& header, const Payload& payload) noexcept = 0;
  // The transport itself learned that the peer is gone. Called once per peer, before its transfers fail, so that the
  // loss is what their owners report. UCX alone may fail transfers earlier.
  virtual void on_peer_lost(PeerId peer, Status reason) noexcept = 0;
  // The transport has refused a message that was addressed to itself: no transport of ours sends such bytes, or the
  // message was a duplicate.
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

  // The bytes that a peer needs to reach this process. Valid as long as the transport.
  virtual std::span<const std::byte> address() const noexcept = 0;

  // Adds a peer, to which the transport connects on first use: for the first message to it, or to watch it. Peers with
  // `same_host` share memory, and the caller watches their processes.
  virtual Result<PeerId> add_peer(std::span<const std::byte> address, bool same_host) = 0;

  // Makes sure that the loss of this peer is noticed from now on, also if no message is sent to it. If it is on another
  // host, that takes a connection. Does nothing for peers with `same_host`, and if it was called before.
  virtual Status watch_peer(PeerId /*peer*/) noexcept { return Status(); }

  // Returns how many file descriptors the first messages to and from this peer may still open, if it is on this host or
  // watched. A caller that adds further peers leaves that many available.
  virtual size_t num_descriptors_to_come(PeerId /*peer*/) const noexcept { return 0; }

  // Returns the lanes that messages to this peer take, each once, but one lane for each rail; connects if nothing has
  // been sent yet. For diagnostics.
  virtual Result<std::vector<Lane>> lanes(PeerId peer) = 0;
  // Returns why messages to this peer, which is on another host, take no more lanes. For diagnostics.
  virtual std::vector<std::string> obstacles(PeerId /*peer*/) { return {}; }

  // Returns up to how many processes of the peer's host can share its cores so that rails speed up long messages to it
  // (transport/rails); 0: it takes none. All processes that have the peer's address get the same.
  virtual size_t most_processes_with_rails(PeerId /*peer*/) const noexcept { return 0; }

  // Payloads of up to this size are sent eagerly by send(), without waiting for the receiver. All larger ones wait.
  virtual size_t largest_eager() const noexcept { return kLargestEager; }

  // The payload and the completion must stay alive until the transfer is done; the header is copied.
  virtual std::optional<Status> send(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                                     Completion& completion) noexcept = 0;

  // Like send(), but the payload waits at the sender for its fetch or refusal, however short it is. It must have at
  // least one byte.
  virtual std::optional<Status> send_rendezvous(PeerId peer, const MessageHeader& header, ConstBuffer payload,
                                                Completion& completion) noexcept = 0;

  // fetch() copies a waiting payload into `into`, which must have exactly its length; refuse() declines it. A refusal
  // with a reason fails the sender's transfer with that reason (transport/nack.hpp). A refusal with a success says that
  // the payload is no longer needed: the transfer ends, on some transports with success.
  virtual std::optional<Status> fetch(void* rendezvous, Buffer into, Completion& completion) noexcept = 0;
  virtual void refuse(void* rendezvous, const Status& why) noexcept = 0;

  // Withdraws a call that has been sent, because its caller no longer waits for it. A receiver that has not read the
  // call yet finds kWithdrawn instead, with the same key and number and without its payloads. Returns whether the
  // call had not left this process. If false, the receiver may have read it and must be notified.
  virtual bool withdraw(PeerId /*peer*/, const CallHeader& /*call*/) noexcept { return false; }
  // Returns whether withdraw() can change messages that the peer has not read yet.
  virtual bool can_withdraw(PeerId /*peer*/) const noexcept { return false; }

  // Nothing is sent to or expected from this peer any more. Pending transfers with it fail, or their completions are
  // never called.
  virtual void drop_peer(PeerId peer) noexcept = 0;

  // Returns whether a message waits in this process, although its sender may have finished. It moves only in further
  // calls of progress().
  virtual bool holds_back() const noexcept { return false; }

  // Moves everything that can move. Returns how many items moved, 0 for none.
  virtual unsigned progress() noexcept = 0;

  // Returns whether an unread message from this peer lies in this process. It stays readable after the peer's process
  // ends.
  virtual bool has_unread(PeerId /*peer*/) const noexcept { return false; }

  // For sleeping: event_fd() becomes readable when something arrives after arm() returned true. If arm() returns false,
  // call progress() first. Progress made by other threads since then does not clear the event.
  virtual int event_fd() const noexcept = 0;
  virtual bool arm() noexcept = 0;

  // Delivers what was sent to live peers, for at most `timeout_ms`. Called once, before destruction.
  virtual void flush(int timeout_ms) noexcept = 0;
};

}  // namespace axon::transport
