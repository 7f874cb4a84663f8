#include "transport/sockets/socket_rails.hpp"

#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "base/resources.hpp"
#include "base/tcp_socket.hpp"
#include "transport/sockets/socket_rail.hpp"

namespace axon::transport {

// Frames of one system call.
static constexpr size_t kMostFrames = 16;
// Calls for one rail before others have their turn.
static constexpr unsigned kMostWrites = 8;
static constexpr int kMostEvents = 32;
// The other rails are polled in every fourth call of progress(); the latest one in every call.
static constexpr unsigned kPollInterval = 4;
// Two rails that connect the same processes at once are opened within this time. A peer that has lost this process by
// its silence opens another rail only later.
static constexpr std::chrono::seconds kMostApart = Silence::kMost;

// ---- Opening and closing

SocketRails::SocketRails(uint64_t own_name, SocketMessages& messages, SocketOwner& owner)
    : own_name_(own_name),
      messages_(messages),
      owner_(owner),
      scratch_(std::make_unique_for_overwrite<std::byte[]>(kScratchBytes)) {}

SocketRails::~SocketRails() = default;

Status SocketRails::open() {
  events_ = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  if (!events_.valid()) return out_of("epoll_create1", errno);
  AXON_TRY(timer_.open());
  return watch(timer_.descriptor(), &timer_);
}

Status SocketRails::watch(const FileDescriptor& descriptor, void* mark) noexcept {
  epoll_event event{.events = EPOLLIN, .data = {.ptr = mark}};
  if (epoll_ctl(events_.get(), EPOLL_CTL_ADD, descriptor.get(), &event) == 0) return Status();
  return out_of("epoll_ctl", errno);
}

void SocketRails::add(SocketLink& link, FileDescriptor socket, RailOpener opener) noexcept {
  if (!link.loss.ok()) return;
  SocketRail& rail = rails_.emplace_back(*this, messages_, link, std::move(socket), opener);
  ++num_open_;
  link.rails.push_back(&rail);
  link.was_connected = true;
  if (Status watched = watch(rail.socket, &rail); !watched.ok())
    return owner_.lose(link, {ErrorCode::kPeerLost, "its connection cannot be watched: " + watched.message()});
  link.is_to_connect = false;
  if (link.rails.size() == 2) {
    const RailOpener stays = own_name_ < link.name ? RailOpener::kThis : RailOpener::kPeer;
    if (opener == stays) std::swap(link.rails[0], link.rails[1]);
    link.rails[1]->is_to_leave = true;
  }
  messages_.schedule(link);
}

bool SocketRails::is_new_connection(const SocketLink& link) noexcept {
  const auto then = std::chrono::steady_clock::now() - kMostApart;
  return std::ranges::any_of(link.rails, [then](const SocketRail* rail) {
    return rail->opener == RailOpener::kPeer || rail->opened_at < then;
  });
}

bool SocketRails::has_unread(const SocketLink& link) noexcept {
  return std::ranges::any_of(link.rails, [](const SocketRail* rail) {
    std::byte next;
    return ::recv(rail->socket.get(), &next, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
  });
}

bool SocketRails::has_delivered(const SocketLink& link) noexcept {
  return std::ranges::all_of(link.rails, [](const SocketRail* rail) {
    int num_bytes = 0;
    return !rail->writing && ioctl(rail->socket.get(), SIOCOUTQ, &num_bytes) == 0 && num_bytes == 0;
  });
}

void SocketRails::close(SocketRail& rail) noexcept {
  epoll_ctl(events_.get(), EPOLL_CTL_DEL, rail.socket.get(), nullptr);  // a forked child may hold a copy
  rail.socket = FileDescriptor();
  std::erase(rail.link.rails, &rail);
  if (hot_ == &rail) hot_ = nullptr;
  --num_open_;
  has_closed_ = true;
}

void SocketRails::close_all_of(SocketLink& link) noexcept {
  while (!link.rails.empty()) close(*link.rails.back());
}

void SocketRails::free_closed() noexcept {
  if (!has_closed_) [[likely]]
    return;
  has_closed_ = false;
  rails_.remove_if([](const SocketRail& rail) { return rail.is_closed(); });
}

bool SocketRails::receive_bye(SocketRail& rail) noexcept {
  if (std::exchange(rail.has_heard_bye, true)) return false;
  if (rail.has_said_bye) close(rail);
  return true;
}

// ---- Looking after rails

void SocketRails::start_timer() noexcept {
  timer_.start(Silence::kLookInterval);
}

void SocketRails::look_after() noexcept {
  for (SocketRail& rail : rails_) {
    if (rail.is_closed()) continue;
    if (rail.silence.look(rail.socket, rail.is_blocked))
      owner_.lose(rail.link, {ErrorCode::kPeerLost, "its connection broke: " + rail.silence.describe()});
  }
}

bool SocketRails::are_to_be_looked_after() const noexcept {
  return std::ranges::any_of(rails_, [](const SocketRail& rail) {
    return !rail.is_closed() && (rail.is_blocked || rail.silence.is_awaited());
  });
}

// ---- Writing

unsigned SocketRails::write_scheduled() noexcept {
  unsigned num_moved = 0;
  IntrusiveList<SocketLink> unfinished;
  while (SocketLink* const link = messages_.take_scheduled()) {
    bool is_unfinished = false;
    for (size_t i = 0; i < link->rails.size(); ++i) {
      SocketRail& rail = *link->rails[i];
      const unsigned num_written = write(rail);
      num_moved += num_written;
      is_unfinished |= num_written == kMostWrites;
    }
    if (is_unfinished) unfinished.push_back(*link);
  }
  while (SocketLink* const link = unfinished.pop_front()) messages_.schedule(*link);
  return num_moved;
}

// Returns the number of system calls that have written something.
unsigned SocketRails::write(SocketRail& rail) noexcept {
  for (unsigned num_written = 0; num_written < kMostWrites; ++num_written) {
    if (rail.is_blocked || rail.is_closed()) return num_written;
    std::array<FrameWriting, kMostFrames> batch;
    const size_t num_frames = gather(rail, batch);
    if (num_frames == 0 || !write_batch(rail, std::span(batch).first(num_frames))) return num_written;
  }
  return kMostWrites;
}

// Collects what the rail is to write next: the rest of a frame, frames in the queue, and then a part of the long
// message whose turn it is.
size_t SocketRails::gather(const SocketRail& rail, std::span<FrameWriting> batch) noexcept {
  const size_t num_frames = rail.writing ? 1 : 0;
  if (rail.writing) batch.front() = *rail.writing;
  if (!rail.is_to_leave) {
    const size_t num_bytes = rail.writing ? rail.writing->num_bytes() : 0;
    return SocketMessages::gather(rail.link, batch, num_frames, num_bytes, rail.most_at_once);
  }
  const bool has_left = rail.has_said_bye || num_frames != 0;
  if (has_left) return num_frames;
  batch.front() = {.header = {.kind = FrameKind::kBye, .message = {}}, .payload = {}};
  return 1;
}

// Returns whether something was written.
bool SocketRails::write_batch(SocketRail& rail, std::span<FrameWriting> batch) noexcept {
  const ssize_t num_sent = write_some(rail, batch);
  if (num_sent <= 0) return false;
  auto num_left = static_cast<size_t>(num_sent);
  for (FrameWriting& writing : batch) {
    if (num_left == 0 || rail.is_closed()) return true;
    if (writing.num_sent == 0) SocketMessages::on_begun(writing);
    const size_t num_here = std::min(num_left, writing.num_bytes() - writing.num_sent);
    writing.num_sent += num_here;
    num_left -= num_here;
    const bool is_whole = writing.num_sent == writing.num_bytes();
    rail.writing = is_whole ? std::nullopt : std::optional(writing);
    if (is_whole) on_written(rail, writing);
  }
  return true;
}

// Returns the number of bytes written; −1 if the rail is blocked now. A rail that can no longer be written may still
// have unread messages, after which its reader finds the end.
ssize_t SocketRails::write_some(SocketRail& rail, std::span<const FrameWriting> batch) noexcept {
  std::array<iovec, 2 * kMostFrames> parts;
  size_t num_parts = 0;
  const auto add = [&](const void* data, size_t num_bytes, size_t num_sent) {
    if (num_sent >= num_bytes) return;
    auto* const begin = static_cast<std::byte*>(const_cast<void*>(data)) + num_sent;
    parts[num_parts++] = {begin, num_bytes - num_sent};
  };
  for (const FrameWriting& writing : batch) {
    add(&writing.header, sizeof writing.header, writing.num_sent);
    const size_t num_sent = std::max(writing.num_sent, sizeof writing.header) - sizeof writing.header;
    add(writing.payload.data, writing.payload.num_bytes, num_sent);
  }
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = num_parts;
  ssize_t num_sent = -1;
  do {
    num_sent = ::sendmsg(rail.socket.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (num_sent < 0 && errno == EINTR);
  if (num_sent >= 0) {
    rail.silence.note_sent();
    if (!timer_.is_on()) [[unlikely]]
      start_timer();
    return num_sent;
  }
  const bool has_room_later = may_go_on(errno);
  if (!has_room_later) ::shutdown(rail.socket.get(), SHUT_RDWR);
  rail.is_blocked = true;
  if (has_room_later) change(rail, EPOLLIN | EPOLLOUT);
  start_timer();
  return -1;
}

// Returns the rail over which a message may be written right now; null if it must wait.
SocketRail* SocketRails::idle_rail_of(const SocketLink& link) noexcept {
  if (link.rails.empty() || !link.queue.empty() || !link.cleared.empty()) return nullptr;
  SocketRail& rail = *link.rails.front();
  return rail.is_blocked || rail.writing ? nullptr : &rail;
}

size_t SocketRails::write_at_once(SocketLink& link, const FrameWriting& writing) noexcept {
  SocketRail* const rail = idle_rail_of(link);
  if (rail == nullptr) return 0;
  return static_cast<size_t>(std::max<ssize_t>(write_some(*rail, {&writing, 1}), 0));
}

void SocketRails::continue_with(OutgoingMessage& message, const FrameWriting& begun) noexcept {
  FrameWriting& rest = message.link.rails.front()->writing.emplace(begun);
  rest.message = &message;
  SocketMessages::on_begun(rest);
}

void SocketRails::write_to(SocketLink& link) noexcept {
  if (!link.rails.empty()) (void)write(*link.rails.front());
}

// All bytes of the frame are written.
void SocketRails::on_written(SocketRail& rail, const FrameWriting& written) noexcept {
  if (written.header.kind == FrameKind::kBye) {
    rail.has_said_bye = true;
    if (rail.has_heard_bye) close(rail);
    return;
  }
  messages_.on_written(written);
}

// ---- Reading

unsigned SocketRails::progress() noexcept {
  unsigned num_moved = 0;
  if (hot_ != nullptr) num_moved += read(*hot_);
  const bool is_turn_of_all = hot_ == nullptr || ++num_polls_ % kPollInterval == 0;
  if (is_turn_of_all && (num_open_ != 0 || timer_.is_on())) num_moved += poll();
  if (messages_.has_scheduled()) num_moved += write_scheduled();
  return num_moved;
}

unsigned SocketRails::poll() noexcept {
  std::array<epoll_event, kMostEvents> events;
  const int num_events = epoll_wait(events_.get(), events.data(), kMostEvents, 0);
  unsigned num_moved = 0;
  for (int i = 0; i < num_events; ++i) {
    const epoll_event& event = events[static_cast<size_t>(i)];
    if (event.data.ptr == nullptr) continue;  // the transport looks for these itself
    if (event.data.ptr == &timer_) {
      timer_.clear();
      owner_.on_tick();
      continue;
    }
    auto& rail = *static_cast<SocketRail*>(event.data.ptr);
    if (rail.is_closed()) continue;
    if ((event.events & EPOLLOUT) != 0) {
      rail.is_blocked = false;
      change(rail, EPOLLIN);
      messages_.schedule(rail.link);
    }
    if ((event.events & ~uint32_t{EPOLLOUT}) != 0) num_moved += read(rail);
  }
  return num_moved;
}

unsigned SocketRails::read(SocketRail& rail) noexcept {
  const std::span scratch(scratch_.get(), kScratchBytes);
  auto parts = rail.reader.prepare(scratch);
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = parts.size();
  const ssize_t num_read = ::recvmsg(rail.socket.get(), &message, MSG_DONTWAIT);
  if (num_read > 0) [[likely]] {
    hot_ = &rail;
    if (rail.reader.consume(static_cast<size_t>(num_read), scratch, rail)) return 1;
    owner_.on_refused("bytes over a rail for messages that no transport of ours sends");
    owner_.lose(rail.link, {ErrorCode::kPeerLost, "it has sent bytes that no transport of ours sends"});
    return 1;
  }
  if (num_read < 0 && may_go_on(errno)) return 0;
  owner_.lose(rail.link, {ErrorCode::kPeerLost,
                          "its connection broke: " + (num_read == 0 ? "the other end has closed it" : last_error())});
  return 1;
}

void SocketRails::change(SocketRail& rail, uint32_t events) noexcept {
  epoll_event event{.events = events, .data = {.ptr = &rail}};
  epoll_ctl(events_.get(), EPOLL_CTL_MOD, rail.socket.get(), &event);
}

}  // namespace axon::transport
