// The thread that connects and accepts rails, and runs their handshakes. Its port is open from the start; connections
// that arrive before start() wait in the kernel's queue.
//
// A process that does not know the token costs at most one of kMostStrangers connections, for as long as a handshake
// may take. Descriptors that the process may need otherwise are left alone: rails for stripes are neither connected nor
// accepted then.
//
// Two transports may share a port: one for rails that carry stripes (transport/rails), one for those that carry whole
// messages (transport/sockets).
//
//   Result<std::unique_ptr<RailHandshakes>> handshakes = RailHandshakes::open(own_address);
//   handshakes.value()->serve(RailUse::kStripes, &handler);   // any thread; a null pointer: no longer
//   AXON_TRY(handshakes.value()->start());
//   handshakes.value()->connect({.peer = peer, .rail = 0, .address = address});   // any thread
#pragma once

#include <array>
#include <chrono>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "transport/rails/rail_address.hpp"
#include "transport/rails/rail_handshake.hpp"
#include "transport/rails/rail_thread.hpp"
#include "transport/transport.hpp"

namespace axon::transport {

enum class RailUse : uint8_t { kStripes, kMessages };

constexpr RailUse use_of(size_t rail) noexcept {
  return rail == kMessageRail ? RailUse::kMessages : RailUse::kStripes;
}

// A rail to be connected.
struct RailRequest {
  PeerId peer = 0;
  size_t rail = 0;
  std::shared_ptr<const RailAddress> address;  // shared by the peer and its requests
  std::chrono::steady_clock::time_point not_before{};
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  // Set by the thread: a port at one of the addresses has accepted a connection, whatever became of it.
  bool was_accepted = false;
};

class RailHandshakes final : private RailThread {
 public:
  static constexpr size_t kMostStrangers = 64;
  static constexpr std::chrono::seconds kTimeout{5};  // of a handshake, and of one address's connection
  static constexpr std::chrono::seconds kTimeoutWhenFull{1};
  // For the engine's other connections and the program: rails take no descriptor if fewer are left.
  static constexpr size_t kDescriptorsLeftAlone = 256;

  // Called on the thread, within a lock that serve() takes.
  class Handler {
   public:
    virtual void on_connected(const RailRequest& request, FileDescriptor socket, const Digest& key) noexcept = 0;
    virtual void on_not_connected(const RailRequest& request, Status why) noexcept = 0;
    virtual void on_accepted(uint64_t name, uint32_t rail, FileDescriptor socket, const Digest& key) noexcept = 0;
    virtual void on_stranger(const char* what) noexcept = 0;

   protected:
    ~Handler() = default;
  };

  // Opens a port of the system's choice, whose number address() has.
  static Result<std::unique_ptr<RailHandshakes>> open(RailAddress own);
  ~RailHandshakes() { stop(); }

  const RailAddress& address() const noexcept { return own_; }
  // Starts the thread, once.
  Status start();
  using RailThread::stop;

  // The handler is not called any more once another one, or null, has replaced it. Requests of a use without a handler
  // end without notice. Does nothing in a forked child, which lacks the thread that calls handlers.
  void serve(RailUse use, Handler* handler) noexcept;

  // Any thread. The handler learns how it ends.
  void connect(RailRequest request);
  // Any thread: soon ends the requests of this use to the peer. The handler learns nothing, unless one ends by itself
  // meanwhile. kUnopened spares those whose proof has been sent: the peer may take their rails as opened.
  enum class Which : uint8_t { kAll, kUnopened };
  void cancel(RailUse use, PeerId peer, Which which = Which::kAll);

 private:
  using Clock = std::chrono::steady_clock;

  struct Pending {
    FileDescriptor socket;
    RailHandshake handshake;
    Clock::time_point began;
    bool is_connected = false;
    std::optional<RailRequest> request;  // none: accepted
    size_t num_tried = 0;                // addresses
    Status failure;                      // of the latest address
  };

  RailHandshakes(RailAddress own, FileDescriptor listener) noexcept
      : own_(std::move(own)), listener_(std::move(listener)) {}

  void on_wake() noexcept override;
  void on_event(void* watched, uint32_t events) noexcept override;
  int on_round() noexcept override;

  struct Cancellation {
    RailUse use{};
    PeerId peer = 0;
    Which which = Which::kAll;

    bool is_of(const RailRequest& request) const noexcept {
      return request.peer == peer && use_of(request.rail) == use;
    }
  };

  Status start_thread();
  void accept_all() noexcept;
  bool is_own(const FileDescriptor& socket) const noexcept;
  bool has_descriptors(RailUse use) const noexcept;
  bool is_served(RailUse use) const noexcept;
  bool is_welcome(const Pending& pending) const noexcept;
  void begin_due(Clock::time_point now);
  void begin(RailRequest request);
  Status try_next_address(Pending& pending);
  // Return false if the handshake cannot go on.
  bool advance(Pending& pending) noexcept;
  bool receive(Pending& pending) noexcept;
  static bool send_output(Pending& pending) noexcept;
  void fail(Pending& pending, Status why) noexcept;
  void hand_over(Pending& pending) noexcept;
  void report_failure(const RailRequest& request, Status why) noexcept;
  void report_stranger() noexcept;
  void erase(Pending& pending) noexcept;
  void apply(const Cancellation& cancellation) noexcept;
  size_t num_strangers() const noexcept;
  Clock::time_point deadline_of(const Pending& pending) const noexcept;
  void look_for_room(Clock::time_point now) noexcept;

  const RailAddress own_;
  const FileDescriptor listener_;
  mutable std::mutex handlers_mutex_;   // guards handlers_, and is held while one of them is called
  std::array<Handler*, 2> handlers_{};  // by RailUse
  std::optional<Status> started_;       // once it was tried
  std::list<Pending> pending_;          // the thread's, as the next three
  std::vector<RailRequest> delayed_;
  bool accepts_ = true;
  Clock::time_point accepts_from_{};  // later, if the system had no room for a connection
  const uint32_t opened_after_ = num_forks();
  std::mutex mutex_;  // guards the following members, which on_wake() takes
  std::vector<RailRequest> requests_;
  std::vector<Cancellation> cancellations_;
};

}  // namespace axon::transport
