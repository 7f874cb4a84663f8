#include "transport/rails/rail_reader.hpp"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/tcp_socket.hpp"

namespace axon::transport {

// The most that one call receives: bounds how long cancel() waits.
static constexpr size_t kMostAtOnce = size_t{256} << 10;
// Calls for one connection before others have their turn.
static constexpr unsigned kMostCalls = 16;
// For what is dropped.
static constexpr size_t kScratchBytes = size_t{64} << 10;

void RailReader::add(FileDescriptor socket, uint64_t sender, const Digest& key) {
  {
    const std::lock_guard lock(mutex_);
    if (dropped_.contains(sender)) return;
    added_.emplace_back(*this, std::move(socket), sender, key);
  }
  wake();
}

void RailReader::drop(uint64_t sender) {
  {
    const std::lock_guard lock(mutex_);
    dropped_.insert(sender);
    std::erase_if(added_, [&](const Connection& connection) { return connection.sender == sender; });
  }
  wake();
}

void RailReader::admit(uint64_t sender) {
  const std::lock_guard lock(mutex_);
  dropped_.erase(sender);
}

void RailReader::on_wake() noexcept {
  std::list<Connection> added;
  {
    const std::lock_guard lock(mutex_);
    added.swap(added_);
    std::erase_if(connections_, [&](const Connection& connection) {
      if (!dropped_.contains(connection.sender)) return false;
      unwatch(connection.socket);
      return true;
    });
  }
  while (!added.empty()) {
    connections_.splice(connections_.end(), added, added.begin());
    Connection& connection = connections_.back();
    if (!watch(connection.socket, EPOLLIN, &connection).ok()) close(connection);
  }
}

void RailReader::close(Connection& connection) noexcept {
  unwatch(connection.socket);
  connections_.remove_if([&](const Connection& each) { return &each == &connection; });
}

void RailReader::on_event(void* watched, uint32_t /*events*/) noexcept {
  auto& connection = *static_cast<Connection*>(watched);
  for (unsigned i = 0; i < kMostCalls; ++i) {
    const Outcome outcome = receive(connection);
    if (outcome == Outcome::kMoved) continue;
    if (outcome == Outcome::kEnded) close(connection);
    return;
  }
}

RailReader::Outcome RailReader::receive(Connection& connection) noexcept {
  return connection.num_header_bytes < sizeof(StripeHeader) ? receive_header(connection) : receive_stripe(connection);
}

RailReader::Outcome RailReader::refuse(const char* what) noexcept {
  events_.push({.kind = RailEvent::Kind::kRefused, .why = Status(ErrorCode::kTransport, what)});
  return Outcome::kEnded;
}

RailReader::Outcome RailReader::receive_header(Connection& connection) noexcept {
  auto* const bytes = reinterpret_cast<std::byte*>(&connection.header);
  const ssize_t num_read = ::recv(connection.socket.get(), bytes + connection.num_header_bytes,
                                  sizeof(StripeHeader) - connection.num_header_bytes, MSG_DONTWAIT);
  if (num_read < 0) return may_go_on(errno) ? Outcome::kWaits : Outcome::kEnded;
  if (num_read == 0) return Outcome::kEnded;
  connection.num_header_bytes += static_cast<size_t>(num_read);
  if (connection.num_header_bytes < sizeof(StripeHeader)) return Outcome::kMoved;
  const StripeHeader& header = connection.header;
  if (header.seal != connection.sealer.next(header)) return refuse("a stripe whose seal is wrong");
  if (!incoming_.is_valid(connection.sender, header)) return refuse("a stripe that its message does not have");
  connection.num_bytes = 0;
  connection.is_whole = true;
  if (header.format != 0) connection.decoder.begin(header);
  return Outcome::kMoved;
}

// Returns as recv() does.
ssize_t RailReader::receive_raw(Connection& connection, size_t num_left) noexcept {
  static thread_local std::array<std::byte, kScratchBytes> scratch;
  const int socket = connection.socket.get();
  if (const StripeMemory memory = incoming_.open(connection.sender, connection.header, connection.num_bytes)) {
    return ::recv(socket, memory.data(), std::min(num_left, kMostAtOnce), MSG_DONTWAIT);
  }
  connection.is_whole = false;
  return ::recv(socket, scratch.data(), std::min(num_left, scratch.size()), MSG_DONTWAIT);
}

ssize_t RailReader::receive_compressed(Connection& connection, size_t num_left) noexcept {
  StripeDecoder& decoder = connection.decoder;
  const std::span<std::byte> space = decoder.space();
  const ssize_t num_read =
      ::recv(connection.socket.get(), space.data(), std::min(num_left, space.size()), MSG_DONTWAIT);
  if (num_read <= 0 || !connection.is_whole) return num_read;
  const StripeMemory memory = incoming_.open(connection.sender, connection.header, decoder.num_decoded());
  connection.is_whole = static_cast<bool>(memory);
  if (!memory) return num_read;
  const bool is_last = static_cast<size_t>(num_read) == num_left;
  const bool is_decoded = decoder.decode(static_cast<size_t>(num_read), memory.data()).ok();
  connection.is_malformed = !is_decoded || decoder.is_done() != is_last;
  return num_read;
}

RailReader::Outcome RailReader::receive_stripe(Connection& connection) noexcept {
  const StripeHeader& header = connection.header;
  const size_t num_left = header.num_carried - connection.num_bytes;
  const ssize_t num_read =
      header.format == 0 ? receive_raw(connection, num_left) : receive_compressed(connection, num_left);
  if (num_read < 0) return may_go_on(errno) ? Outcome::kWaits : Outcome::kEnded;
  if (num_read == 0) return Outcome::kEnded;
  if (connection.is_malformed) return refuse("a compressed stripe that is malformed");
  connection.num_bytes += static_cast<size_t>(num_read);
  if (connection.num_bytes < header.num_carried) return Outcome::kMoved;
  connection.num_header_bytes = 0;
  if (connection.is_whole) incoming_.arrived(header);
  return Outcome::kMoved;
}

}  // namespace axon::transport
