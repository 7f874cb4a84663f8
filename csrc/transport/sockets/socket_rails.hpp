// The rails of SocketTransport: writes frames to them, reads and looks after them.
//
//   AXON_TRY(rails.open());
//   rails.add(link, std::move(socket), RailOpener::kThis);
//   rails.progress();                       // reads, and writes what is scheduled
//
// Owns the sockets and the epoll set. The progress owner calls everything. A rail that is closed lives until
// free_closed(), because what has closed it may be within one of its calls.
#pragma once

#include <array>
#include <list>
#include <memory>
#include <span>

#include "base/file_descriptor.hpp"
#include "transport/sockets/interval_timer.hpp"
#include "transport/sockets/socket_link.hpp"
#include "transport/sockets/socket_messages.hpp"
#include "transport/sockets/socket_owner.hpp"

namespace axon::transport {

// The process that has connected a rail.
enum class RailOpener : uint8_t { kThis, kPeer };

class SocketRails {
 public:
  SocketRails(uint64_t own_name, SocketMessages& messages, SocketOwner& owner);
  ~SocketRails();

  Status open();
  // Becomes readable with any rail, with the timer, and with what wake_for() was called for.
  int event_fd() const noexcept { return events_.get(); }
  Status wake_for(const FileDescriptor& event) noexcept { return watch(event, nullptr); }

  void add(SocketLink& link, FileDescriptor socket, RailOpener opener) noexcept;
  // Returns whether a rail that the peer opens now is of a new connection: the peer must have lost this process. A
  // process opens one rail per connection, and two that connect at once do so within a short time.
  static bool is_new_connection(const SocketLink& link) noexcept;
  static bool has_unread(const SocketLink& link) noexcept;
  // Returns whether the other host has acknowledged everything that was written.
  static bool has_delivered(const SocketLink& link) noexcept;
  void close_all_of(SocketLink& link) noexcept;
  void free_closed() noexcept;

  // Returns how many bytes of the frame could be written at once: 0 if others wait.
  size_t write_at_once(SocketLink& link, const FrameWriting& writing) noexcept;
  // The rest of what write_at_once() has begun to write follows as this message.
  static void continue_with(OutgoingMessage& message, const FrameWriting& begun) noexcept;
  // Writes what is scheduled for the link.
  void write_to(SocketLink& link) noexcept;

  unsigned progress() noexcept;
  // For SocketRail. The other process writes nothing more over this rail, and reads until this one has said BYE, too.
  bool receive_bye(SocketRail& rail) noexcept;

  // While rails await acknowledgements, and once it was started, the timer runs out every Silence::kLookInterval.
  void start_timer() noexcept;
  void stop_timer() noexcept { timer_.stop(); }
  // Loses processes whose hosts have fallen silent.
  void look_after() noexcept;
  bool are_to_be_looked_after() const noexcept;

 private:
  // The most that one system call reads, except into places: at least the largest frame but DATA.
  static constexpr size_t kScratchBytes = size_t{128} << 10;

  Status watch(const FileDescriptor& descriptor, void* mark) noexcept;
  void close(SocketRail& rail) noexcept;
  unsigned write_scheduled() noexcept;
  unsigned write(SocketRail& rail) noexcept;
  static size_t gather(const SocketRail& rail, std::span<FrameWriting> batch) noexcept;
  bool write_batch(SocketRail& rail, std::span<FrameWriting> batch) noexcept;
  ssize_t write_some(SocketRail& rail, std::span<const FrameWriting> batch) noexcept;
  void on_written(SocketRail& rail, const FrameWriting& written) noexcept;
  static SocketRail* idle_rail_of(const SocketLink& link) noexcept;
  void change(SocketRail& rail, uint32_t events) noexcept;
  unsigned poll() noexcept;
  unsigned read(SocketRail& rail) noexcept;

  const uint64_t own_name_;
  SocketMessages& messages_;
  SocketOwner& owner_;
  FileDescriptor events_;  // an epoll set: the connector's event, the timer, and all rails
  IntervalTimer timer_;
  std::list<SocketRail> rails_;
  size_t num_open_ = 0;        // rails that are not closed
  bool has_closed_ = false;    // some are
  SocketRail* hot_ = nullptr;  // the rail that was read last, which progress() reads first
  unsigned num_polls_ = 0;
  std::unique_ptr<std::byte[]> scratch_;
};

}  // namespace axon::transport
