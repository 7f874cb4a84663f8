// The bytes of SocketTransport: writing frames to its rails, and reading them.
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/tcp_socket.hpp"
#include "transport/sockets/socket_link.hpp"

namespace axon::transport {

// Frames of one system call.
static constexpr size_t kMostFrames = 16;
// Calls for one rail before others have their turn.
static constexpr unsigned kMostWrites = 8;
static constexpr int kMostEvents = 32;

// ---- Writing

void SocketTransport::schedule(Link& link) noexcept {
  if (!link.linked()) to_write_.push_back(link);
}

unsigned SocketTransport::write_waiting() noexcept {
  unsigned num_moved = 0;
  IntrusiveList<Link> unfinished;
  while (Link* const link = to_write_.pop_front()) {
    bool is_unfinished = false;
    for (size_t i = 0; i < link->connections.size(); ++i) {
      Connection& connection = *link->connections[i];
      const unsigned num_written = write(connection);
      num_moved += num_written;
      is_unfinished |= num_written == kMostWrites;
    }
    if (is_unfinished) unfinished.push_back(*link);
  }
  while (Link* const link = unfinished.pop_front()) schedule(*link);
  return num_moved;
}

// Returns the number of system calls that have written something.
unsigned SocketTransport::write(Connection& connection) noexcept {
  for (unsigned num_written = 0; num_written < kMostWrites; ++num_written) {
    if (connection.is_blocked || connection.is_closed()) return num_written;
    std::array<Writing, kMostFrames> batch;
    const size_t num_frames = gather(connection, batch);
    if (num_frames == 0 || !write_batch(connection, std::span(batch).first(num_frames))) return num_written;
  }
  return kMostWrites;
}

// Collects what the rail is to write next: the rest of a frame, frames in the queue, and then a part of the long
// message whose turn it is.
size_t SocketTransport::gather(const Connection& connection, std::span<Writing> batch) noexcept {
  Link& link = connection.link;
  size_t num_frames = 0;
  size_t num_bytes = 0;
  const auto add = [&](const Writing& writing) {
    num_bytes += writing.num_bytes();
    batch[num_frames++] = writing;
  };
  if (connection.writing) add(*connection.writing);
  if (connection.is_to_leave) {
    const bool has_left = connection.has_said_bye || num_frames != 0;
    if (!has_left) add({.header = {.kind = FrameKind::kBye, .message = {}}, .payload = {}});
    return num_frames;
  }
  for (Outgoing* next = link.queue.front(); next != nullptr; next = link.queue.next(*next)) {
    if (num_frames == batch.size() - 1 || num_bytes >= kMostFrameData) return num_frames;
    const bool is_rts = next->header.kind == FrameKind::kRts;
    add({.header = next->header, .payload = is_rts ? ConstBuffer{} : next->payload, .message = next});
  }
  Outgoing* const message = link.cleared.front();
  if (message == nullptr || num_bytes >= kMostFrameData) return num_frames;
  const size_t num_left = message->payload.num_bytes - message->num_begun;
  const ConstBuffer part = message->payload.slice(message->num_begun, std::min(num_left, kMostFrameData));
  add({.header = {.num_bytes = static_cast<uint32_t>(part.num_bytes),
                  .kind = FrameKind::kData,
                  .number = message->ticket,
                  .position = message->num_begun,
                  .message = {}},
       .payload = part,
       .message = message});
  return num_frames;
}

// Returns whether something was written.
bool SocketTransport::write_batch(Connection& connection, std::span<Writing> batch) noexcept {
  const ssize_t num_sent = write_some(connection, batch);
  if (num_sent <= 0) return false;
  auto num_left = static_cast<size_t>(num_sent);
  for (Writing& writing : batch) {
    if (num_left == 0 || connection.is_closed()) return true;
    if (writing.num_sent == 0) on_begun(writing);
    const size_t num_here = std::min(num_left, writing.num_bytes() - writing.num_sent);
    writing.num_sent += num_here;
    num_left -= num_here;
    const bool is_whole = writing.num_sent == writing.num_bytes();
    connection.writing = is_whole ? std::nullopt : std::optional(writing);
    if (is_whole) on_written(connection, writing);
  }
  return true;
}

// Returns the number of bytes written; −1 if the rail is blocked now. A rail that can no longer be written may still
// have unread messages, after which its reader finds the end.
ssize_t SocketTransport::write_some(Connection& connection, std::span<const Writing> batch) noexcept {
  std::array<iovec, 2 * kMostFrames> parts;
  size_t num_parts = 0;
  const auto add = [&](const void* data, size_t num_bytes, size_t num_sent) {
    if (num_sent >= num_bytes) return;
    auto* const begin = static_cast<std::byte*>(const_cast<void*>(data)) + num_sent;
    parts[num_parts++] = {begin, num_bytes - num_sent};
  };
  for (const Writing& writing : batch) {
    add(&writing.header, sizeof writing.header, writing.num_sent);
    const size_t num_sent = std::max(writing.num_sent, sizeof writing.header) - sizeof writing.header;
    add(writing.payload.data, writing.payload.num_bytes, num_sent);
  }
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = num_parts;
  ssize_t num_sent = -1;
  do {
    num_sent = ::sendmsg(connection.socket.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (num_sent < 0 && errno == EINTR);
  if (num_sent >= 0) {
    connection.silence.note_sent();
    if (!is_timer_on_) [[unlikely]]
      start_timer();
    return num_sent;
  }
  const bool has_room_later = errno == EAGAIN || errno == ENOBUFS || errno == ENOMEM;
  if (!has_room_later) ::shutdown(connection.socket.get(), SHUT_RDWR);
  connection.is_blocked = true;
  if (has_room_later) change(connection, EPOLLIN | EPOLLOUT);
  if (!is_timer_on_) start_timer();
  return -1;
}

// Returns the rail over which a message may be written right now; null if it must wait.
SocketTransport::Connection* SocketTransport::idle_rail_of(Link& link) noexcept {
  if (link.connections.empty() || !link.queue.empty() || !link.cleared.empty()) return nullptr;
  Connection& rail = *link.connections.front();
  return rail.is_blocked || rail.writing ? nullptr : &rail;
}

// The first bytes of the frame are written.
void SocketTransport::on_begun(const Writing& written) noexcept {
  if (written.message == nullptr) return;
  Outgoing& message = *written.message;
  Link& link = message.link;
  message.unlink();
  if (written.header.kind == FrameKind::kRts) {
    message.is_announced = true;
    return link.announced.push_back(message);
  }
  const bool is_data = written.header.kind == FrameKind::kData;
  if (is_data) message.num_begun += written.payload.num_bytes;
  const bool has_more = is_data && message.num_begun < message.payload.num_bytes;
  (has_more ? link.cleared : link.in_writing).push_back(message);
}

// All bytes of the frame are written.
void SocketTransport::on_written(Connection& connection, const Writing& written) noexcept {
  if (written.header.kind == FrameKind::kBye) {
    connection.has_said_bye = true;
    if (connection.has_heard_bye) close(connection);
    return;
  }
  if (written.header.kind == FrameKind::kRts) return;
  Outgoing& message = *written.message;
  message.num_written += written.payload.num_bytes;
  if (written.header.kind == FrameKind::kData && message.num_written < message.payload.num_bytes) return;
  end(message, Status());
}

// ---- Reading

unsigned SocketTransport::poll_sockets() noexcept {
  std::array<epoll_event, kMostEvents> events;
  const int num_events = epoll_wait(events_.get(), events.data(), kMostEvents, 0);
  unsigned num_moved = 0;
  for (int i = 0; i < num_events; ++i) {
    const epoll_event& event = events[static_cast<size_t>(i)];
    if (event.data.ptr == &arrivals_) continue;  // progress() looks for these itself
    if (event.data.ptr == &timer_) {
      on_tick();
      continue;
    }
    auto& connection = *static_cast<Connection*>(event.data.ptr);
    if (connection.is_closed()) continue;
    if ((event.events & EPOLLOUT) != 0) {
      connection.is_blocked = false;
      change(connection, EPOLLIN);
      schedule(connection.link);
    }
    if ((event.events & ~uint32_t{EPOLLOUT}) != 0) num_moved += read(connection);
  }
  return num_moved;
}

unsigned SocketTransport::read(Connection& connection) noexcept {
  const std::span scratch(scratch_.get(), kScratchBytes);
  auto parts = connection.reader.prepare(scratch);
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  const ssize_t num_read = ::recvmsg(connection.socket.get(), &message, MSG_DONTWAIT);
  if (num_read > 0) [[likely]] {
    hot_ = &connection;
    if (connection.reader.consume(static_cast<size_t>(num_read), scratch, connection)) return 1;
    receiver_->on_refused("bytes over a rail for messages that no transport of ours sends");
    lose(connection.link, {ErrorCode::kPeerLost, "it has sent bytes that no transport of ours sends"});
    return 1;
  }
  if (num_read < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  lose(connection.link, {ErrorCode::kPeerLost,
                         "its connection broke: " + (num_read == 0 ? "the other end has closed it" : last_error())});
  return 1;
}

void SocketTransport::change(Connection& connection, uint32_t events) noexcept {
  epoll_event event{.events = events, .data = {.ptr = &connection}};
  epoll_ctl(events_.get(), EPOLL_CTL_MOD, connection.socket.get(), &event);
}

}  // namespace axon::transport
