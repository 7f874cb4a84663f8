// The state of SocketTransport for one other process: its rails for messages (two for a moment, at most), frames that
// wait to be written, and long messages in both directions. Only the parts of SocketTransport include it.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "base/intrusive_list.hpp"
#include "base/status.hpp"
#include "memory/buffer.hpp"
#include "transport/rails/rail_address.hpp"
#include "transport/sockets/frame.hpp"

namespace axon::transport {

struct SocketLink;
struct SocketRail;

// A frame that waits to be written, or a long message from its RTS until its last byte is written. Always in a list of
// its link.
struct OutgoingMessage : ListNode<OutgoingMessage> {
  OutgoingMessage(SocketLink& to, const FrameHeader& of, ConstBuffer bytes, Completion* whose) noexcept
      : link(to), header(of), payload(bytes), completion(whose) {}

  SocketLink& link;
  FrameHeader header;
  ConstBuffer payload;
  Completion* completion;  // null: an answer of this transport
  // A NACK's payload, which is its own.
  std::optional<nack::Encoded> reason;
  // Only for long messages:
  bool is_announced = false;  // a rail has begun to write the RTS
  bool is_cleared = false;    // the CTS is here
  uint64_t ticket = 0;
  size_t num_begun = 0;    // bytes of frames of DATA that rails have begun to write
  size_t num_written = 0;  // bytes of whole frames
};

// An incoming long message, from its RTS until it is refused or its last byte has arrived.
struct IncomingMessage : ListNode<IncomingMessage> {
  IncomingMessage(SocketLink& of, uint64_t its_number, size_t length) noexcept
      : link(of), number(its_number), num_bytes(length) {}

  SocketLink& link;
  const uint64_t number;  // the sender's
  const size_t num_bytes;
  OutgoingMessage* own = nullptr;  // a message from this process to itself
  // Set when the CTS is sent.
  Completion* completion = nullptr;
  Buffer into;
  uint64_t ticket = 0;
  size_t num_placed = 0;    // bytes of frames whose headers have arrived
  size_t num_received = 0;  // bytes of whole frames
};

// A frame that a rail writes.
struct FrameWriting {
  FrameHeader header;
  ConstBuffer payload;
  OutgoingMessage* message = nullptr;  // null: BYE
  size_t num_sent = 0;                 // of header and payload

  size_t num_bytes() const noexcept { return sizeof header + payload.num_bytes; }
};

struct SocketLink : ListNode<SocketLink> {
  enum class To : uint8_t { kOther, kSelf };

  SocketLink(uint64_t of, To to) noexcept : name(of), is_self(to == To::kSelf) {}

  const uint64_t name;  // of the other process's transport
  const bool is_self;
  std::optional<PeerId> peer;                  // none: it has connected before it was added as a peer
  std::shared_ptr<const RailAddress> address;  // shared with requests; null until it is added as a peer
  bool is_connecting = false;
  bool is_to_connect = false;  // at the next look, unless the other process has connected by then
  bool is_elsewhere = false;   // on another host, so that only a rail tells of its end
  bool is_watched = false;     // so it is connected, and again after a failure, even without a message
  // A rail has ever connected the two processes. If the link is lost, a later rail is of a new connection.
  bool was_connected = false;
  bool has_warned = false;  // that it cannot be connected, for want of descriptors or memory
  std::optional<std::chrono::steady_clock::time_point> refused_since;
  Status loss;                               // why the link has ended
  std::vector<SocketRail*> rails;            // open ones; the first one carries what is sent
  IntrusiveList<OutgoingMessage> queue;      // to be written, in order
  IntrusiveList<OutgoingMessage> announced;  // their RTS is written, or in writing; no CTS yet
  IntrusiveList<OutgoingMessage> cleared;    // to be written as DATA, in turn
  // A rail has begun to write the last of their bytes.
  IntrusiveList<OutgoingMessage> in_writing;
  IntrusiveList<IncomingMessage> held;     // to be fetched or refused
  IntrusiveList<IncomingMessage> fetched;  // of which DATA is to arrive

  bool is_sending() const noexcept {
    return !queue.empty() || !announced.empty() || !cleared.empty() || !in_writing.empty();
  }
  bool has_messages() const noexcept { return is_sending() || !held.empty() || !fetched.empty(); }
};

}  // namespace axon::transport
