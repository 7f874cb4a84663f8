// Passes the messages that a transport delivers to the inbox that they name, and resumes the coroutines whose messages
// have moved. One per engine, owned by it; progress owner only.
//
// An inbox is addressed by its key, which only the group's store reveals. A message with another key is not from a
// member of a group and is refused. So a stranger that connects to this process's port cannot reach an inbox.
#pragma once

#include <algorithm>
#include <array>
#include <coroutine>
#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/intrusive_list.hpp"
#include "base/size_class_pool.hpp"
#include "memory/scratch.hpp"
#include "messaging/early_messages.hpp"
#include "messaging/inbox.hpp"
#include "transport/transport.hpp"

namespace axon::messaging {

// A suspended coroutine in the queue of those that can resume.
class Wakeable : public ListNode<Wakeable> {
 public:
  void set_waiter(std::coroutine_handle<> waiter) noexcept { waiter_ = waiter; }
  bool has_waiter() const noexcept { return static_cast<bool>(waiter_); }
  void wake() noexcept { std::exchange(waiter_, nullptr).resume(); }

 private:
  std::coroutine_handle<> waiter_;
};

// Takes the messages between runtimes whose key is its own.
class Addressee {
 public:
  virtual void on_message(const transport::CallHeader& header, const transport::Payload& payload) noexcept = 0;
  virtual void on_message(const transport::OneSidedHeader& header, const transport::Payload& payload) noexcept = 0;

 protected:
  ~Addressee() = default;
};

// Notified of peers that the transport can no longer reach.
class LossListener {
 public:
  virtual void on_peer_lost(transport::PeerId peer, Status reason) noexcept = 0;

 protected:
  ~LossListener() = default;
};

class Messenger final : public transport::Receiver {
 public:
  Messenger(transport::Transport& transport, LossListener& loss_listener);
  ~Messenger();

  transport::Transport& transport() noexcept { return transport_; }
  SizeClassPool& size_class_pool() noexcept { return size_class_pool_; }
  ScratchPool& scratch_pool() noexcept { return scratch_pool_; }

  // Records that this key has been given out: messages for it are kept until its inbox is attached.
  void expect(uint64_t key) { early_.expect(key); }
  bool expects(uint64_t key) const noexcept { return early_.expects(key); }
  // No inbox will be attached under this key any more: messages for it are dropped. Does nothing after one was
  // attached.
  void retire(uint64_t key) noexcept;
  // The same for all keys with this upper half (messaging/early_messages.hpp).
  void expect_series(uint32_t upper_half) { early_.expect_series(upper_half); }
  void retire_series(uint32_t upper_half) noexcept;

  // From here on the inbox gets its group's messages, and its listener the control messages, starting with those that
  // arrived before. If some of them could not be kept, the inbox is notified. Its key is no longer expected.
  void attach(Inbox& inbox);
  // Detaches the inbox. Later messages for the group are dropped, and their senders are notified that this rank has
  // left.
  void detach(Inbox& inbox) noexcept;
  // The same for calls, which have keys of their own. Returns false if some earlier messages could not be kept.
  bool attach(uint64_t key, Addressee& addressee);
  void detach(uint64_t key) noexcept;

  // Moves data and resumes every coroutine that can continue. Returns 0 if nothing moved.
  unsigned progress() noexcept;
  void run_ready() noexcept;
  void schedule(Wakeable& wakeable) noexcept { ready_.push_back(wakeable); }

  // Refuses the messages kept for groups that have not been formed.
  void discard_early() noexcept { early_.discard_all(); }

  // Marks a peer as gone: its messages that have arrived still count, but nothing more is sent to it or expected from
  // it. The reason of the first call counts.
  void mark_lost(transport::PeerId peer, std::string why);
  bool is_lost(transport::PeerId peer) const noexcept { return peer < lost_.size() && lost_[peer]; }
  // Returns why the peer is gone; it must be.
  const std::string& loss_of(transport::PeerId peer) const noexcept { return losses_.find(peer)->second; }

  // Keeps a request whose operation is gone, but which the transport may still complete.
  void adopt(Request& orphan) noexcept { orphans_.push_back(orphan); }

  // Messages for groups that are gone, and those beyond the bound for groups not formed yet.
  uint64_t num_dropped() const noexcept { return early_.num_dropped(); }
  // Messages that no member of a group can have sent, and those that the transport has refused itself. The former have
  // an unknown key or an unknown kind, are between other ranks, or are repeated.
  uint64_t num_refused() const noexcept;

  void on_message(const transport::MessageHeader& header, const transport::Payload& payload) noexcept override;
  void on_peer_lost(transport::PeerId peer, Status reason) noexcept override;
  void on_refused(const char* what) noexcept override;

 private:
  // The keys that were added latest; the oldest are forgotten.
  class Recent {
   public:
    void add(uint64_t key) noexcept { ring_[num_added_++ % ring_.size()] = key; }
    bool contains(uint64_t key) const noexcept {
      const auto end = ring_.begin() + std::min<size_t>(num_added_, ring_.size());
      return std::find(ring_.begin(), end, key) != end;
    }

   private:
    std::array<uint64_t, 1024> ring_{};
    size_t num_added_ = 0;
  };
  // A group that this process has left.
  struct Left {
    uint64_t key;
    Team team;                                          // without its topology
    std::vector<bool> are_told;                         // by rank
    std::unordered_map<uint32_t, uint32_t> num_sent{};  // by rank: the point-to-point messages to it, if there are any
  };
  // Late senders to the latest of these groups are notified. Sends to earlier ones fail when their operations time out.
  static constexpr size_t kMostLeft = 64;
  static constexpr size_t kMostRanksLeft = size_t{1} << 14;  // of all but the latest one

  void remember(const Inbox& inbox);
  void deliver(Inbox& inbox, const transport::MessageHeader& header, const transport::Payload& payload) noexcept;
  void take_unowned(const transport::MessageHeader& header, const transport::Payload& payload) noexcept;
  void answer_late(const transport::MessageHeader& header) noexcept;
  void refuse(const transport::MessageHeader& header, const transport::Payload& payload) noexcept;

  transport::Transport& transport_;
  LossListener& loss_listener_;
  SizeClassPool size_class_pool_;
  ScratchPool scratch_pool_;
  IntrusiveList<Wakeable> ready_;
  IntrusiveList<FlowControl> due_;  // with credit to return, or messages that may be sent now
  IntrusiveList<Request, InExchange> orphans_;
  std::unordered_map<uint64_t, Inbox*> inboxes_;         // by key
  std::unordered_map<uint64_t, Addressee*> addressees_;  // by key
  Addressee* latest_addressee_ = nullptr;                // a cache: the next message is often for the same one
  uint64_t latest_key_ = 0;
  EarlyMessages early_;
  Recent retired_;             // keys that are gone, whether a group was formed or not
  std::deque<Left> left_;      // oldest first
  size_t num_ranks_left_ = 0;  // of all of them
  std::vector<bool> lost_;     // by peer
  std::unordered_map<transport::PeerId, std::string> losses_;
  uint64_t num_refused_ = 0;  // by the messenger, the transport, and inboxes that are gone
};

// Refuses a payload that waits at its sender, and is not wanted. Others need nothing.
inline void drop_payload(Messenger& messenger, const transport::Payload& payload,
                         const Status& why = Status()) noexcept {
  if (payload.rendezvous != nullptr) messenger.transport().refuse(payload.rendezvous, why);
}

}  // namespace axon::messaging
