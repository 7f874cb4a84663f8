// The notifications that peers have sent to a runtime, in the order of their arrival, until the program takes them.
//
//   if (!notifications.push(connection, tag)) …           // full: the peer's transfer fails
//   if (notifications.wait(engine, nullptr, deadline))    // or watch(), for event loops
//     for (auto& [connection, tag] : notifications.take(nullptr)) …
//
// Bounded in number and in bytes. Any thread.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/intrusive_list.hpp"
#include "base/sync.hpp"
#include "engine/engine.hpp"

namespace axon::rpc {

class Connection;

struct Notification {
  std::shared_ptr<Connection> from;  // shared with the runtime; the connection may have ended
  std::string tag;
};

class Notifications {
 public:
  static constexpr size_t kMost = 65'536;
  static constexpr size_t kMostNumBytes = size_t{256} << 20;  // of tags
  static constexpr size_t kLongest = 65'536;                  // bytes of one tag

  // Returns false, and keeps nothing, if the queue is full. The caller nudges the engine.
  bool push(std::shared_ptr<Connection> from, std::span<const std::byte> tag);
  // Returns all notifications, or those of one connection.
  std::vector<Notification> take(const Connection* from);
  // Returns up to `most` notifications, the earliest first.
  std::vector<Notification> take_first(size_t most);

  // Waits until there is a notification, of this connection if it is not null, or the queue is closed. Returns false at
  // the deadline. Another thread may take the notification first.
  bool wait(engine::Engine& engine, const Connection* from, Clock::time_point deadline);
  // Calls `on_arrival` once, after the next push, on the thread that pushes and holds the token: it may only put
  // something into a queue. Returns false, and does not call it, if there is a notification, or the queue is closed.
  bool watch(std::function<void()> on_arrival);

  // No further notifications are expected: waits end. The caller nudges the engine. What is there can be taken.
  void close();
  // Returns whether it is closed, and nothing is left for take(from).
  bool is_over(const Connection* from);

 private:
  struct Waiter : ListNode<Waiter> {
    explicit Waiter(const Connection* wanted) noexcept : from(wanted) {}
    const Connection* const from;  // null: any
    sync::atomic<bool> ends{false};
  };

  bool has(const Connection* from) const noexcept;

  std::mutex mutex_;  // guards the following members
  std::deque<Notification> queue_;
  size_t num_bytes_ = 0;
  IntrusiveList<Waiter> waiters_;
  std::function<void()> on_arrival_;
  bool is_closed_ = false;
};

}  // namespace axon::rpc
