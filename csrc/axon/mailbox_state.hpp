// The state of a mailbox: messages in the sending order of each peer, and waiting receivers.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "axon/mailbox.hpp"
#include "base/sync.hpp"
#include "engine/engine.hpp"
#include "rpc/core/connection.hpp"

namespace axon::library {

class Mailbox::State {
 public:
  State(engine::Engine& engine, size_t capacity) : engine_(engine), capacity_(capacity) {}

  size_t probe() const noexcept;
  Result<Mail> take(std::chrono::milliseconds timeout);
  // Receives a message: the function that peers call.
  void arrive(Invocation& invocation);
  // Notes that no further message of this peer with a lower number will arrive.
  void settle(const std::shared_ptr<rpc::Connection>& sender, int64_t settled);
  void drop(const std::shared_ptr<rpc::Connection>& sender);
  // Fails all waiting receivers. Messages that have arrived may still be taken.
  void close(Status reason);

 private:
  struct Message {
    Mail mail;
    Invocation invocation;
    int64_t num_waiting;  // number of messages queued after it at its sender
  };
  // The order of one peer's messages, since large ones may arrive late.
  struct Order {
    int64_t next = 0;
    std::map<int64_t, Message> early;  // at most the granted messages and one more
    size_t num_granted = 0;            // messages that were granted and have not arrived
  };
  struct Waiter {
    sync::atomic<bool> is_over{false};
    std::optional<Mail> mail;
  };
  struct Accepted {
    Invocation invocation;
    int64_t num_granted;
  };
  using Answers = std::vector<Accepted>;

  // Called with `mutex_` held. They collect the answers, which are sent without it, because answers may run users'
  // functions.
  void settle(Order& order, int64_t settled, Answers& accepted);
  void put(Message message, Answers& accepted);
  // Uses up the grants of messages that have arrived or will not arrive.
  void use_grants(Order& order, size_t at_most) noexcept;
  // Returns how many more messages the sender may have in flight.
  int64_t grant_for(Invocation& invocation, int64_t num_waiting) noexcept;
  static void answer(Answers& accepted);

  engine::Engine& engine_;
  const size_t capacity_;
  mutable std::mutex mutex_;  // guards the following members
  std::deque<Mail> here_;
  std::deque<Message> waiting_for_room_;  // one per sender, or messages whose room other messages took
  size_t num_granted_ = 0;                // in all orders
  std::deque<Waiter*> waiting_;
  std::unordered_map<std::shared_ptr<rpc::Connection>, Order> orders_;  // shared with the runtime
  Status closed_;
};

}  // namespace axon::library
