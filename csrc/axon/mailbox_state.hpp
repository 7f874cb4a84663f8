// What is behind a mailbox: messages in the order in which each peer has sent them, and those who wait for some.
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
  // What peers call.
  void arrive(Invocation& invocation);
  // None of a lower number will come from this peer that has not.
  void settle(const std::shared_ptr<rpc::Connection>& sender, int64_t settled);
  void drop(const std::shared_ptr<rpc::Connection>& sender);
  // Nobody waits any more; what has come may still be taken.
  void close(Status reason);

 private:
  struct Message {
    Mail mail;
    Invocation invocation;
    int64_t num_waiting;  // at its sender, behind it
  };
  // Of one peer's messages: large ones may come later.
  struct Order {
    int64_t next = 0;
    std::map<int64_t, Message> early;  // no more than were granted, and one
    size_t num_granted = 0;            // that have not come
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

  // With `mutex_` held, which they leave the answers for: those may run others' functions.
  void settle(Order& order, int64_t settled, Answers& accepted);
  void put(Message message, Answers& accepted);
  // A message that has come, or will not, needs its place no more, or has it otherwise.
  void use_grants(Order& order, size_t at_most) noexcept;
  // How many more messages its sender may have on their way.
  int64_t grant_for(Invocation& invocation, int64_t num_waiting) noexcept;
  static void answer(Answers& accepted);

  engine::Engine& engine_;
  const size_t capacity_;
  mutable std::mutex mutex_;  // guards what follows
  std::deque<Mail> here_;
  std::deque<Message> waiting_for_room_;  // one of each sender's, or those for whom others took the room
  size_t num_granted_ = 0;                // by all orders
  std::deque<Waiter*> waiting_;
  std::unordered_map<std::shared_ptr<rpc::Connection>, Order> orders_;  // owned with the runtime
  Status closed_;
};

}  // namespace axon::library
