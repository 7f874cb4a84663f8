// Matching: compares the receives of one rank of one group with the messages that have arrived for it. It matches by
// the header, never by the order of arrival.
//
//   collectives     exact: (sequence, source, slot); the fingerprint is compared as soon as both sides are known
//   point to point  first posted, first matched among equal (source or any, tag), in the order in which the source
//                   sent; later parts of a long message exactly: (source, tag, number of the message, index)
//
// Calls that CUDA graphs hold match only each other: collectives by slots of their own, and messages by the number of
// the captured call besides their tag.
//
// Owned by a group, fed by the Messenger; progress owner only.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/chunked_table.hpp"
#include "base/forks.hpp"
#include "base/intrusive_list.hpp"
#include "base/size_class_pool.hpp"
#include "messaging/flow_control.hpp"
#include "messaging/request.hpp"
#include "messaging/team.hpp"

namespace axon::messaging {

// The slots of collectives that CUDA graphs hold begin here. Ranks may launch graphs in different orders, so their
// sequence numbers are not consecutive: see Operation::replay.
inline constexpr uint32_t kFirstReplaySlot = uint32_t{1} << 31;

// An unexpected message: it arrived before a matching receive was posted. Small payloads are copied to the memory
// following this header; large ones wait at the sender.
struct Unexpected : ListNode<Unexpected> {
  transport::MessageHeader header;
  transport::Payload payload;

  size_t num_bytes_copied() const noexcept { return payload.rendezvous == nullptr ? payload.num_bytes : 0; }
  size_t num_bytes_held() const noexcept { return sizeof(Unexpected) + num_bytes_copied(); }
};

// Keeps an unexpected message. release_copy() unlinks the copy and returns it to the pool from which it was allocated.
Unexpected& hold_copy(SizeClassPool& pool, const transport::MessageHeader& header, const transport::Payload& payload);
void release_copy(SizeClassPool& pool, Unexpected& message) noexcept;

// Notified of errors that matching finds, and of the group's control messages.
class InboxListener {
 public:
  // A message between members that belongs to no operation.
  virtual void on_control(const transport::ControlHeader& header, const transport::Payload& payload) noexcept = 0;
  // Another rank's operation differs from ours at the same sequence number. Returns the mismatch, for its sender.
  virtual Status on_mismatch(const transport::OperationHeader& theirs, const transport::Fingerprint& ours) noexcept = 0;
  // More unexpected messages have arrived than may be kept: messages are lost.
  virtual void on_overflow(Status reason) noexcept = 0;
  // Returns whether an entered collective has ended successfully, so that no rank sends for it any more.
  virtual bool has_ended(uint32_t sequence) noexcept = 0;

 protected:
  ~InboxListener() = default;
};

// More than 30 methods: collectives and point-to-point messages share one bound for unexpected messages, and one flow
// control.
class Inbox {
 public:
  // Memory for unexpected messages. Senders run out of credit before they reach it (flow_control.hpp): a rank that
  // exceeds it sends without credit, and the group fails rather than grow. In groups so large that the least allowances
  // add up to more, the bound is twice their sum.
  static constexpr size_t kMostUnexpectedBytes = size_t{256} << 20;

  Inbox(transport::Transport& transport, SizeClassPool& pool, const Team& team, InboxListener& listener);
  // Tests choose the allowance, which must be the same in all inboxes of a group.
  Inbox(transport::Transport& transport, SizeClassPool& pool, const Team& team, InboxListener& listener,
        Allowance allowance);
  ~Inbox();
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  const Team& team() const noexcept { return team_; }
  FlowControl& flow() noexcept { return flow_; }

  // This rank starts the collective `sequence`: its fingerprint is compared with those of messages already here.
  void enter(uint32_t sequence, const transport::Fingerprint& fingerprint) noexcept;

  // The collective has ended successfully: messages that remain for it were sent twice.
  void leave(uint32_t sequence) noexcept;

  // Posts a receive (returns true), or matches it at once with a message that is already here (returns false; the
  // request may be gone then).
  bool post(Request& receive) noexcept;

  // Called for a message from a rank of the team to this one.
  void on_message(const transport::OperationHeader& header, const transport::Payload& payload) noexcept;

  void on_control(const transport::ControlHeader& header, const transport::Payload& payload) noexcept {
    listener_.on_control(header, payload);
  }

  // Refuses the parts, after the first, of a long message whose receive has failed, now and when they arrive.
  void refuse_later_parts(uint32_t source, uint32_t number) noexcept;

  // The source has left the group after sending `num_sent` point-to-point messages to this rank. Receives of more than
  // those fail with this reason, now and later. Idempotent.
  void depart(uint32_t source, uint32_t num_sent, Status reason) noexcept;
  // A rank returns credit, or has left. In the latter case sends to it fail from now on, and so do sends that wait.
  void on_credit(const transport::CreditHeader& credit) noexcept;
  // Returns why nothing can be sent to a rank any more; ok while it has not left.
  const Status& departure_of(int rank) const noexcept { return departures_[static_cast<size_t>(rank)].reason; }
  // Returns whether a rank has left and all its point-to-point messages have arrived.
  bool is_spent(int rank) const noexcept {
    const auto source = static_cast<size_t>(rank);
    return !departures_[source].reason.ok() && numbers_[source].arrived == departures_[source].num_sent;
  }

  // Returns whether the two ranks have exchanged a message, or the other one has said that it awaits one. This rank
  // then tells it when it leaves the group.
  bool is_contact(int rank) const noexcept { return flow_.is_contact(static_cast<uint32_t>(rank)); }
  void note_contact(int rank) noexcept { flow_.note_contact(static_cast<uint32_t>(rank)); }
  // Returns whether the rank knows of this one: a message from it has arrived, or note_asked() was called.
  bool is_known_to(int rank) const noexcept {
    return flow_.has_heard_from(static_cast<uint32_t>(rank)) || flow_.has_asked(static_cast<uint32_t>(rank));
  }
  void note_asked(int rank) noexcept { flow_.note_asked(static_cast<uint32_t>(rank)); }

  // The number of repeated messages.
  uint64_t num_refused() const noexcept { return num_refused_; }

  // Messages for this inbox were lost, here or before they arrived here.
  void overflow(Status reason) noexcept { listener_.on_overflow(std::move(reason)); }

  // The header of the latest message from a rank, by arrival; null if there is none. For diagnosis.
  const transport::OperationHeader* latest_from(int rank) const noexcept {
    const transport::OperationHeader& latest = flow_.latest_from(static_cast<uint32_t>(rank));
    return latest.fingerprint.operation == transport::OperationKind{} ? nullptr : &latest;
  }

  // Returns the sequence number of the next point-to-point message to `destination`.
  uint32_t next_point_to_point(uint32_t destination) noexcept { return numbers_.writable(destination).sent++; }
  // Calls action(rank, count) with each rank to which point-to-point messages were sent, and their number.
  template <typename Action>
  void for_each_sent_to(Action action) const {
    numbers_.for_each_written([&](size_t rank, const Numbers& numbers) {
      if (numbers.sent != 0) action(static_cast<uint32_t>(rank), numbers.sent);
    });
  }
  // Returns the number of point-to-point messages sent to `destination`.
  uint32_t num_sent(int destination) const noexcept { return numbers_[static_cast<size_t>(destination)].sent; }

 private:
  static constexpr size_t kNumBuckets = 64;
  static constexpr size_t kNumEntered = 256;
  static constexpr size_t kNumFailed = 64;

  struct Entered {
    uint32_t sequence = 0;
    transport::Fingerprint fingerprint;  // without an operation: no collective has been entered
  };
  struct FailedMessage {
    uint32_t source = kAnySource;
    uint32_t number = 0;
  };
  // The number of the next point-to-point message to a rank, and of the next one from it.
  struct Numbers {
    uint32_t sent = 0;
    uint32_t arrived = 0;
  };
  struct Departure {
    Status reason;  // ok: the rank has not left
    uint32_t num_sent = 0;
  };

  static size_t bucket_of(uint32_t sequence) noexcept { return sequence % kNumBuckets; }

  void on_collective(const transport::OperationHeader& header, const transport::Payload& payload) noexcept;
  void on_point_to_point(const transport::OperationHeader& header, const transport::Payload& payload) noexcept;
  void serve_point_to_point(const transport::OperationHeader& header, const transport::Payload& payload) noexcept;
  void serve_early(uint32_t source) noexcept;
  void fail_hopeless() noexcept;
  const transport::Fingerprint* differing(const transport::OperationHeader& header) const noexcept;
  bool has_failed(const transport::OperationHeader& header) const noexcept;
  bool is_repeated(const transport::OperationHeader& header) noexcept;
  void hold(IntrusiveList<Unexpected>& list, const transport::OperationHeader& header,
            const transport::Payload& payload) noexcept;
  void let_go(Unexpected& message) noexcept;
  void hand_over(Request& receive, const transport::OperationHeader& header,
                 const transport::Payload& payload) noexcept;
  void relieve(uint32_t source) noexcept;
  void relieve_again() noexcept;
  bool has_receive_from(uint32_t source) noexcept;
  bool serve_from(IntrusiveList<Unexpected>& list, Request& receive) noexcept;
  void refuse(const transport::OperationHeader& header, const transport::Payload& payload) noexcept;
  void refuse_repeated(const transport::Payload& payload) noexcept;
  void drop(const transport::OperationHeader& header, const transport::Payload& payload, const Status& why) noexcept;

  transport::Transport& transport_;
  SizeClassPool& pool_;
  const Team& team_;
  InboxListener& listener_;
  FlowControl flow_;

  std::array<IntrusiveList<Request, InInbox>, kNumBuckets> posted_;  // collectives, by sequence
  std::array<IntrusiveList<Unexpected>, kNumBuckets> unexpected_;
  std::array<Entered, kNumEntered> entered_;  // the latest collectives, by sequence
  uint32_t latest_entered_ = 0;
  const size_t most_unexpected_bytes_;
  size_t num_unexpected_bytes_ = 0;
  bool has_withheld_ = false;  // relieve() has granted a sender nothing, since too much was held
  uint64_t num_refused_ = 0;

  IntrusiveList<Request, InInbox> posted_point_to_point_;
  IntrusiveList<Unexpected> unexpected_point_to_point_;
  IntrusiveList<Unexpected> early_;  // messages that overtook an earlier message of the same source
  std::array<FailedMessage, kNumFailed> failed_messages_;  // the latest ones
  size_t next_failed_ = 0;
  const uint32_t born_after_ = num_forks();
  ChunkedTable<Numbers> numbers_;       // by rank
  ChunkedTable<Departure> departures_;  // by rank
};

}  // namespace axon::messaging
