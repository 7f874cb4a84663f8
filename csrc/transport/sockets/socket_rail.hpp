// One rail for messages, open or closed. Only the parts of SocketTransport include it.
#pragma once

#include <chrono>
#include <optional>
#include <utility>

#include "base/file_descriptor.hpp"
#include "base/tcp_socket.hpp"
#include "transport/rails/silence.hpp"
#include "transport/sockets/frame_reader.hpp"
#include "transport/sockets/socket_link.hpp"
#include "transport/sockets/socket_messages.hpp"
#include "transport/sockets/socket_rails.hpp"

namespace axon::transport {

struct SocketRail final : FrameReader::Handler {
  SocketRail(SocketRails& of, SocketMessages& to, SocketLink& its_link, FileDescriptor its_socket,
             RailOpener by) noexcept
      : rails(of),
        messages(to),
        link(its_link),
        socket(std::move(its_socket)),
        opener(by),
        most_at_once(congestion_control_of(socket) == "bbr" ? kMostPacedFrameData : kMostFrameData),
        reader(to.pool()) {}

  bool on_frame(const FrameHeader& header, std::span<const std::byte> payload) noexcept override {
    return header.kind == FrameKind::kBye ? rails.receive_bye(*this) : messages.receive(link, header, payload);
  }
  std::byte* place(const FrameHeader& header) noexcept override { return messages.place_of(link, header); }
  bool on_placed(const FrameHeader& header) noexcept override { return messages.receive_data(header); }
  bool is_closed() const noexcept override { return !socket.valid(); }

  SocketRails& rails;
  SocketMessages& messages;
  SocketLink& link;
  FileDescriptor socket;  // invalid: closed, and to be destroyed by the next progress()
  const RailOpener opener;
  const std::chrono::steady_clock::time_point opened_at = std::chrono::steady_clock::now();
  const size_t most_at_once;  // bytes of one write
  FrameReader reader;
  std::optional<FrameWriting> writing;  // a frame of which only a part could be written
  bool is_blocked = false;              // until the socket has room
  bool is_to_leave = false;             // the link has another rail: this one is to be closed once both ends said BYE
  bool has_said_bye = false;
  bool has_heard_bye = false;
  Silence silence;
};

}  // namespace axon::transport
