// Back-pressure: how far a rank of a group may send ahead of another rank's receives.
//
// A sender holds credit for each rank: a number of messages, and a number of bytes that they may carry eagerly.
//
//   within both                      eager: the receiver holds the message until a receive matches it
//   beyond the bytes                 rendezvous: the payload waits at its sender, the receiver holds only the header
//   beyond the messages              the whole message waits at its sender, in the order of the sends
//
// The receiver returns the credit of eager messages in batches, after receives have matched them. A rendezvous returns
// its own credit when it ends, which its sender sees. So an exchange of small messages needs no additional message, and
// a rank holds at most the sum of its senders' allowances. If no held message matches a receive, and its sender has
// spent its messages, the receiver grants that sender more (advance). The reason is that the awaited message may wait
// after the held ones. A rank that leaves the group notifies the ranks whose messages it holds, and later each rank
// that still sends (Messenger). Their further sends fail at once.
// docs/adr/0034-hold-messages-at-their-sender-by-credit.md has the reasons.
//
// Owned by an inbox; progress owner only.
#pragma once

#include <cstdint>
#include <vector>

#include "base/chunked_table.hpp"
#include "base/intrusive_list.hpp"
#include "messaging/request.hpp"
#include "messaging/team.hpp"

namespace axon::messaging {

// What a rank may have sent to another rank of its group that the other one has not received.
struct Allowance {
  uint32_t num_messages = 0;
  uint32_t num_bytes = 0;  // of payloads that are sent eagerly

  // All ranks of a group compute the same allowance. It bounds what a rank holds for all others: 64 MiB of payloads in
  // groups of up to 512 ranks, and 256 Ki headers in those of up to 1024.
  static Allowance in_group_of(int num_ranks) noexcept;
};

class FlowControl : public ListNode<FlowControl> {
 public:
  enum class Protocol : uint8_t { kEager, kRendezvous };

  FlowControl(transport::Transport& transport, const Team& team, Allowance allowance);
  ~FlowControl() { unlink(); }

  const Allowance& allowance() const noexcept { return allowance_; }

  // ---- As a sender

  bool may_send(uint32_t destination) const noexcept { return ranks_[destination].num_messages_left > 0; }
  // Takes the credit of a message that is about to be sent.
  Protocol take(uint32_t destination, size_t num_bytes) noexcept {
    Rank& rank = ranks_.writable(destination);
    rank.is_contact = true;
    --rank.num_messages_left;
    const bool is_eager = num_bytes <= largest_eager_ && static_cast<int64_t>(num_bytes) <= rank.num_bytes_left;
    if (!is_eager) return Protocol::kRendezvous;
    rank.num_bytes_left -= static_cast<int32_t>(num_bytes);
    return Protocol::kEager;
  }
  // Queues a send that may_send() does not allow. Its exchange transmits it when there is credit, unless it is unlinked
  // before.
  void enqueue(Request& send) noexcept;
  // A rendezvous to that rank has ended, or its operation has given up on it.
  void regain(uint32_t destination) noexcept { add_messages(destination, 1); }
  // The other rank returns credit.
  void on_credit(const transport::CreditHeader& credit) noexcept;
  // Fails the sends that wait for credit of a rank that has left, each with its operation.
  void fail_waiting(uint32_t destination, const Status& reason) noexcept;
  // Returns whether only the lack of credit makes a payload of this size take a rendezvous.
  bool is_short_of_credit(size_t num_bytes) const noexcept { return num_bytes <= largest_eager_; }

  // ---- As a receiver

  void note_latest(const transport::OperationHeader& header) noexcept {
    Rank& rank = ranks_.writable(header.source);
    rank.latest = header;
    rank.is_contact = true;
  }
  // Returns whether a message from that rank has arrived, so that it knows of this one.
  bool has_heard_from(uint32_t source) const noexcept {
    return ranks_[source].latest.fingerprint.operation != transport::OperationKind{};
  }
  const transport::OperationHeader& latest_from(uint32_t source) const noexcept { return ranks_[source].latest; }
  // An eager message has been received or dropped: the inbox no longer holds its payload.
  void note_consumed(uint32_t source, size_t num_bytes) noexcept {
    Rank& rank = ranks_.writable(source);
    ++rank.num_messages_owed;
    rank.num_bytes_owed += static_cast<uint32_t>(num_bytes);
    if (is_worth_returning(rank)) [[unlikely]]
      mark_due(source);
  }
  void note_held(uint32_t source) noexcept { ++ranks_.writable(source).num_held; }
  void note_released(uint32_t source) noexcept { --ranks_.writable(source).num_held; }
  // Returns whether the sender may have no credit left for further messages.
  bool has_spent_all(uint32_t source) const noexcept;
  // Grants a sender further messages, although none of its held messages have been received.
  void advance(uint32_t source) noexcept;
  // Called when the inbox ends: notifies the senders of held messages, which may wait for credit. Messages to an inbox
  // that has ended are dropped when they arrive, and rendezvous are refused. `num_sent(rank)`: the point-to-point
  // messages to it.
  template <typename NumSent>
  void dismiss(NumSent num_sent) noexcept {
    ranks_.for_each_written([&](size_t source, const Rank& rank) {
      if (rank.num_held <= 0) return;
      tell_of_leave(transport_, team_, static_cast<uint32_t>(source), num_sent(static_cast<int>(source)));
    });
  }
  // Notifies one rank that this rank of the team has left, and of the number of point-to-point messages sent to it.
  static void tell_of_leave(transport::Transport& transport, const Team& team, uint32_t rank,
                            uint32_t num_sent) noexcept;

  // ---- Both

  // Returns whether a message has been sent to that rank or has arrived from it, or note_contact() was called for it.
  bool is_contact(uint32_t rank) const noexcept { return ranks_[rank].is_contact; }
  void note_contact(uint32_t rank) noexcept { ranks_.writable(rank).is_contact = true; }
  // Returns whether note_asked() was called for that rank: this rank has told it that it awaits a message.
  bool has_asked(uint32_t rank) const noexcept { return ranks_[rank].has_asked; }
  void note_asked(uint32_t rank) noexcept { ranks_.writable(rank).has_asked = true; }

  // Credit is returned, and waiting messages are sent, when the owner of this list calls settle(). That is not done at
  // once, since a message to this very process is delivered within its send(). Null: never from now on.
  void settle_by(IntrusiveList<FlowControl>* due) noexcept {
    unlink();
    settled_by_ = due;
  }
  void settle() noexcept;

 private:
  // All that the path of small messages accesses, in one cache line.
  struct alignas(64) Rank {
    transport::OperationHeader latest;  // the latest message from it; without an operation: no message yet
    int32_t num_messages_left = 0;      // messages that may be sent to it; 0 while messages wait for credit
    int32_t num_bytes_left = 0;
    int32_t num_messages_owed = 0;  // credit to return to it; negative if granted in advance
    uint32_t num_bytes_owed = 0;
    int32_t num_held = 0;  // messages from it that wait for a matching receive
    bool is_contact = false;
    bool has_asked = false;
  };
  static_assert(sizeof(Rank) == 64);

  // State that only waiting messages need.
  struct Backlog {
    IntrusiveList<Request, InInbox> waiting;  // sends to it
    int32_t num_regained = 0;                 // credit that the waiting sends may use
    int32_t num_advanced = 0;                 // messages to grant it in advance

    bool has_any() const noexcept { return num_regained != 0 || !waiting.empty(); }
  };

  bool is_worth_returning(const Rank& rank) const noexcept {
    return rank.num_messages_owed >= num_messages_to_return_ || rank.num_bytes_owed >= num_bytes_to_return_;
  }
  void add_messages(uint32_t destination, int32_t num_messages) noexcept;
  void mark_due(uint32_t rank) noexcept;
  void return_credit(uint32_t source) noexcept;
  void send_credit(uint32_t source, int32_t num_messages, uint32_t num_bytes) noexcept;
  void send_waiting(uint32_t destination) noexcept;

  transport::Transport& transport_;
  const Team& team_;
  const Allowance allowance_;
  const size_t largest_eager_;
  const int32_t num_messages_to_return_;
  const uint32_t num_bytes_to_return_;
  ChunkedTable<Rank> ranks_;                          // a large group's ranks exchange messages with few others
  ChunkedTable<Backlog> backlogs_;                    // and few messages wait for credit
  std::vector<uint32_t> due_;                         // ranks, each once
  IntrusiveList<FlowControl>* settled_by_ = nullptr;  // owned by the messenger, which outlives this
};

}  // namespace axon::messaging
