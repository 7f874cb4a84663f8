// The receiver's end of a mailbox: restores each sender's order, bounds what is held, and hands messages to receivers.
// MailSender is the other end.
//
// A message is accepted when a receiver takes it or there is room for it. Only then its call is answered. The answer
// grants the sender further messages: its share of the room that is neither used nor granted, at most what it has
// queued. A sender may always have one message in flight without a grant, which waits here while there is no room.
//
//   Mailbox mailbox(64);
//   mailbox.arrive(std::make_unique<ClientMail>(invocation, header));  // the runtime
//   auto receiver = std::make_shared<MailReceiver>();                  // a thread that wants a message
//   mailbox.receive(receiver);
//   wait_for(receiver->over());
//   std::unique_ptr<Mail> mail = receiver->take();  // null: the mailbox is closed
//
// Threads: any. Answers are sent and receivers notified outside of the lock, since both may run users' functions.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "base/status.hpp"
#include "base/sync.hpp"
#include "rpc/core/mailboxes/mail.hpp"

namespace axon::rpc {

// Waits for one message. Shared by the mailbox and the thread that waits.
class MailReceiver {
 public:
  MailReceiver() = default;
  virtual ~MailReceiver() = default;
  MailReceiver(const MailReceiver&) = delete;
  MailReceiver& operator=(const MailReceiver&) = delete;

  // True once it has a message or the mailbox is closed.
  const sync::atomic<bool>& over() const noexcept { return is_over_; }
  // Call it once, when it is over, on the thread that waits. Null: the mailbox is closed.
  std::unique_ptr<Mail> take() noexcept { return std::move(mail_); }

 protected:
  // Called once, outside of the lock, unless the receiver was over when receive() returned.
  virtual void on_over() noexcept {}

 private:
  friend class Mailbox;

  std::unique_ptr<Mail> mail_;  // set before is_over_, once it has been accepted
  sync::atomic<bool> is_over_{false};
};

class Mailbox {
 public:
  using Receiver = std::shared_ptr<MailReceiver>;  // shared with the thread that waits

  explicit Mailbox(size_t capacity) noexcept : capacity_(capacity) {}

  // Returns how many messages have arrived and not been taken.
  size_t probe() const noexcept;
  // Takes the next message; null if there is none.
  std::unique_ptr<Mail> take_arrived();
  // Gives the receiver the next message, now or once there is one.
  void receive(const Receiver& receiver);
  // Ends the wait of a receiver. A message that it has been given and has not taken becomes the next one again.
  void give_up(const Receiver& receiver);
  // Ends the wait of a receiver unless it is over. Returns whether it was not.
  bool withdraw(const Receiver& receiver);

  // The following two return whether they are the first to hear of the sender. The client then calls drop() if the
  // sender's connection has ended, since it may have reported that before.
  [[nodiscard]] bool arrive(std::unique_ptr<Mail> mail);
  // Notes that no further message of this sender with a lower number will arrive.
  [[nodiscard]] bool settle(Connection& sender, int64_t settled);
  // Forgets a sender whose connection has ended, and what it was granted.
  void drop(Connection& sender);

  // Ends the waits of all receivers. Messages that have arrived may still be taken.
  void close(Status reason);
  // Returns why it was closed, or ok.
  Status closed() const;

 private:
  // The order of one sender's messages, since large ones may arrive late.
  struct Order {
    int64_t next = 0;
    std::map<int64_t, std::unique_ptr<Mail>> early;  // at most the granted messages and one more
    size_t num_granted = 0;                          // messages that were granted and have not arrived
  };
  using Orders = std::unordered_map<std::shared_ptr<Connection>, Order>;  // shared with the runtime

  // Actions that a function carries out after it has released the lock.
  struct Effects {
    struct Accepted {
      Invocation* call;
      int64_t num_granted;
    };
    std::vector<Accepted> accepted{};
    std::vector<Receiver> over{};

    void carry_out() noexcept;
  };

  // Called with `mutex_` held.
  void settle(Order& order, int64_t settled, Effects& effects);
  void put_next(Order& order, std::unique_ptr<Mail> mail, Effects& effects);
  void put(std::unique_ptr<Mail> mail, Effects& effects);
  bool give_to_receiver(std::unique_ptr<Mail>& mail, Effects& effects);
  std::unique_ptr<Mail> next(Effects& effects);
  void accept(Mail& mail, Effects& effects);
  // Uses up the grants of messages that have arrived or will not arrive.
  void use_grants(Order& order, size_t at_most) noexcept;
  // Returns how many more messages the sender may have in flight.
  int64_t grant_for(const Mail& mail) noexcept;
  static void end(MailReceiver& receiver, std::unique_ptr<Mail> mail = nullptr) noexcept;

  const size_t capacity_;
  mutable std::mutex mutex_;  // guards the following members
  std::deque<std::unique_ptr<Mail>> here_;
  std::deque<std::unique_ptr<Mail>> waiting_for_room_;  // one per sender, or messages whose room other messages took
  size_t num_granted_ = 0;                              // in all orders
  std::deque<Receiver> receivers_;
  Orders orders_;
  Status closed_;
};

}  // namespace axon::rpc
