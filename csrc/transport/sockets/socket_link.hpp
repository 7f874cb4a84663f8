// The state of SocketTransport for one other process: its rails for messages (two for a moment, at most), frames that
// wait to be written, and long messages in both directions. Only the files of SocketTransport include it.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/intrusive_list.hpp"
#include "transport/rails/silence.hpp"
#include "transport/sockets/frame_reader.hpp"
#include "transport/sockets/socket_transport.hpp"

namespace axon::transport {

// A frame that waits to be written, or a long message from its RTS until its last byte is written. Always in a list of
// its link.
struct SocketTransport::Outgoing : ListNode<Outgoing> {
  Outgoing(Link& to, const FrameHeader& of, ConstBuffer bytes, Completion* whose) noexcept
      : link(to), header(of), payload(bytes), completion(whose) {}

  Link& link;
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
struct SocketTransport::Incoming : ListNode<Incoming> {
  Incoming(Link& of, uint64_t its_number, size_t length) noexcept : link(of), number(its_number), num_bytes(length) {}

  Link& link;
  const uint64_t number;  // the sender's
  const size_t num_bytes;
  Outgoing* own = nullptr;  // a message from this process to itself
  // Set when the CTS is sent.
  Completion* completion = nullptr;
  Buffer into;
  uint64_t ticket = 0;
  size_t num_placed = 0;    // bytes of frames whose headers have arrived
  size_t num_received = 0;  // bytes of whole frames
};

// A frame that a rail writes.
struct SocketTransport::Writing {
  FrameHeader header;
  ConstBuffer payload;
  Outgoing* message = nullptr;  // null: BYE
  size_t num_sent = 0;          // of header and payload

  size_t num_bytes() const noexcept { return sizeof header + payload.num_bytes; }
};

// One rail.
struct SocketTransport::Connection final : FrameReader::Handler {
  Connection(SocketTransport& transport, Link& of, FileDescriptor its_socket, Connector by) noexcept
      : owner(transport), link(of), socket(std::move(its_socket)), connector(by), reader(transport.pool_) {}

  bool on_frame(const FrameHeader& header, std::span<const std::byte> payload) noexcept override {
    return owner.receive(*this, header, payload);
  }
  std::byte* place(const FrameHeader& header) noexcept override { return owner.place_of(link, header); }
  bool on_placed(const FrameHeader& header) noexcept override { return owner.receive_data(header); }
  bool is_closed() const noexcept override { return !socket.valid(); }

  SocketTransport& owner;
  Link& link;
  FileDescriptor socket;  // invalid: closed, and to be destroyed by the next progress()
  const Connector connector;
  FrameReader reader;
  std::optional<Writing> writing;  // a frame of which only a part could be written
  bool is_blocked = false;         // until the socket has room
  bool is_to_leave = false;        // the link has another rail: this one is to be closed once both ends have said BYE
  bool has_said_bye = false;
  bool has_heard_bye = false;
  Silence silence;
};

struct SocketTransport::Link : ListNode<Link> {
  explicit Link(uint64_t of) noexcept : name(of) {}

  const uint64_t name;                         // of the other process's transport
  std::optional<PeerId> peer;                  // none: it has connected before it was added as a peer
  std::shared_ptr<const RailAddress> address;  // null until it is added as a peer
  bool is_connecting = false;
  bool is_to_connect = false;  // at the next look, unless the other process has connected by then
  bool is_elsewhere = false;   // on another host, so that only a rail tells of its end
  std::optional<Clock::time_point> refused_since;
  Status loss;                           // why the link has ended
  std::vector<Connection*> connections;  // open ones; the first one carries what is sent
  IntrusiveList<Outgoing> queue;         // to be written, in order
  IntrusiveList<Outgoing> announced;     // their RTS is written, or in writing; no CTS yet
  IntrusiveList<Outgoing> cleared;       // to be written as DATA, in turn
  IntrusiveList<Outgoing> in_writing;    // a rail has begun to write the last of their bytes
  IntrusiveList<Incoming> held;          // to be fetched or refused
  IntrusiveList<Incoming> fetched;       // of which DATA is to arrive

  bool has_messages() const noexcept {
    return !queue.empty() || !announced.empty() || !cleared.empty() || !in_writing.empty() || !held.empty() ||
           !fetched.empty();
  }
};

}  // namespace axon::transport
