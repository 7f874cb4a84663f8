#include "rpc/core/handshake/connect.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <string>

#include "base/interrupts.hpp"
#include "base/tcp_socket.hpp"

namespace axon::rpc {

namespace {

Status late(const SocketAddress& socket_address) {
  if (interrupts::are_pending()) return interrupts::interrupted();
  return {ErrorCode::kTimeout, socket_address.text() + " has not completed the handshake by the deadline"};
}

Status hung_up(const SocketAddress& socket_address, const std::string& why) {
  return {ErrorCode::kTransport, socket_address.text() + " closed the connection during the handshake: " + why};
}

Status send_all(const FileDescriptor& socket, std::span<const std::byte> bytes, const SocketAddress& socket_address,
                sync::Clock::time_point deadline) {
  while (!bytes.empty()) {
    if (!wait_for(socket, POLLOUT, deadline)) return late(socket_address);
    const ssize_t num_sent = ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (num_sent >= 0) {
      bytes = bytes.subspan(static_cast<size_t>(num_sent));
    } else if (errno != EAGAIN && errno != EINTR) {
      return hung_up(socket_address, last_error());
    }
  }
  return {};
}

Status feed_next(const FileDescriptor& socket, Handshake& handshake, const SocketAddress& socket_address,
                 sync::Clock::time_point deadline) {
  if (!wait_for(socket, POLLIN, deadline)) return late(socket_address);
  std::array<std::byte, 4096> bytes;
  const ssize_t num_read = ::recv(socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (num_read == 0) return hung_up(socket_address, "it is closing, full, or not a torch_axon runtime");
  if (num_read < 0 && errno != EAGAIN && errno != EINTR) return hung_up(socket_address, last_error());
  if (num_read > 0) handshake.feed(std::span(bytes).first(static_cast<size_t>(num_read)));
  return {};
}

// Translates a listener's reason for the refused peer, whose own runtime is not closed and whose arguments are not
// wrong.
ErrorCode refused_with(ErrorCode code) noexcept {
  if (code == ErrorCode::kAborted) return ErrorCode::kPeerLost;
  return code == ErrorCode::kInvalidArgument ? ErrorCode::kTransport : code;
}

}  // namespace

Result<FoundListener> FoundListener::find(const SocketAddress& socket_address, const Secret& secret,
                                          const EndpointInfo& own, sync::Clock::time_point deadline) {
  Result<Handshake> begun = Handshake::connector(secret, own, random_nonce());
  if (!begun.ok()) return std::move(begun.status());
  Result<FileDescriptor> connected = connect_to(socket_address, deadline);
  if (!connected.ok()) return std::move(connected.status());
  FoundListener found(socket_address, std::move(begun).value(), std::move(connected).value());
  while (!found.handshake_.is_proved()) AXON_TRY(found.advance(deadline));
  return found;
}

Result<Connected> FoundListener::connect(sync::Clock::time_point deadline) && {
  while (!handshake_.outcome()) AXON_TRY(advance(deadline));
  watch_for_silence(socket_);
  return Connected{.peer = *handshake_.peer(), .socket = std::move(socket_)};
}

Status FoundListener::advance(sync::Clock::time_point deadline) {
  AXON_TRY(send_all(socket_, handshake_.take_output(), socket_address_, deadline));
  AXON_TRY(feed_next(socket_, handshake_, socket_address_, deadline));
  const bool goes_on = !handshake_.outcome() || *handshake_.outcome() == HandshakeOutcome::kEstablished;
  return goes_on ? Status() : failure();
}

Status FoundListener::failure() const {
  const bool refused = *handshake_.outcome() == HandshakeOutcome::kRefused;
  const ErrorCode code = handshake_.reason().code();
  return {
      refused ? refused_with(code) : code,
      socket_address_.text() + (refused ? " refuses: " : " cannot be connected to: ") + handshake_.reason().message()};
}

}  // namespace axon::rpc
