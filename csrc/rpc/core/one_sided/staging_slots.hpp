// Slots of host memory through which a device's memory passes on its way to peers and from them. Few and of fixed size,
// so they bound what is pinned. A transfer that finds none waits for its turn.
//
//   StagingSlots::Waiter waiter(engine, peer, device);   // derived: on_slot() takes a slot
//   if (std::optional<Buffer> slot = slots.take(waiter)) … // none is free: on_slot() is called later
//   slots.give_back(peer, *slot);
//
// A peer that does not take its data keeps its slots for as long as it is stopped, and must not stop transfers with
// others. So a peer holds kMostPerPeer at most, and the first one of each peer is its own: if none is free, a device
// allocates another one. The others are shared, and peers that wait for one take turns. There are never more slots than
// there were at the start, and one for each peer.
//
// Owned by a device. Progress owner only, except for the constructor.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/intrusive_list.hpp"
#include "base/status.hpp"
#include "engine/engine.hpp"
#include "memory/buffer.hpp"
#include "memory/owner.hpp"
#include "transport/transport.hpp"

namespace axon::rpc {

class Device;
class StagingSlots;

// Transfers of device memory that does not go directly are cut into messages of at most this.
inline constexpr size_t kSegmentNumBytes = size_t{4} << 20;

// A slot that a device allocates in the background. Owned by StagingSlots.
class NewSlot final : public engine::Submission {
 public:
  struct Memory {
    std::byte* data = nullptr;  // kSegmentNumBytes
    Owner owner;
  };

  NewSlot(engine::Engine& engine, StagingSlots& slots) noexcept : engine_(engine), slots_(slots) {}
  // For the device, once; any thread.
  void made(Result<Memory> memory) noexcept;

 private:
  void begin() noexcept override;
  void complete() noexcept override {}

  engine::Engine& engine_;
  StagingSlots& slots_;
  std::optional<Result<Memory>> memory_;
};

class StagingSlots {
 public:
  static constexpr size_t kMostPerPeer = 4;

  class Waiter : public ListNode<Waiter> {
   public:
    // Waits on behalf of a transfer between the peer and the device.
    Waiter(engine::Engine& engine, transport::PeerId peer, Device& device) noexcept
        : engine_(engine), peer_(peer), device_(device) {}
    // A slot is free: take() succeeds now.
    virtual void on_slot() noexcept = 0;
    // The peer has no slot, and none can be allocated. The waiter waits no longer.
    virtual void on_no_slot(const Status& why) noexcept = 0;
    transport::PeerId peer() const noexcept { return peer_; }

   protected:
    ~Waiter() = default;

   private:
    friend class StagingSlots;
    engine::Engine& engine_;
    const transport::PeerId peer_;
    Device& device_;
  };

  // Each buffer has kSegmentNumBytes. The memory is kept as long as this.
  StagingSlots(std::vector<Buffer> slots, Owner memory);
  StagingSlots(const StagingSlots&) = delete;
  StagingSlots& operator=(const StagingSlots&) = delete;

  // Returns nothing while the peer may have no further slot; the waiter's turn comes then.
  std::optional<Buffer> take(Waiter& waiter) noexcept;
  void give_back(transport::PeerId peer, Buffer slot) noexcept;

 private:
  friend class NewSlot;

  // The slots and the waiters of one peer. It is linked into `without_slot_` or `with_slot_` while it has waiters and
  // may take a slot.
  struct Account : ListNode<Account> {
    size_t num_held = 0;
    IntrusiveList<Waiter> waiters;
  };

  void follow(engine::Engine& engine) noexcept;
  bool may_take(const Account& account) const noexcept;
  void enlist(Account& account) noexcept;
  Account* next_account() noexcept;
  void serve() noexcept;
  size_t num_without_slot() noexcept;
  void grow() noexcept;
  void on_new_slot(const engine::Engine& engine, Result<NewSlot::Memory> made) noexcept;
  void fail_first(const Status& why) noexcept;

  std::vector<Buffer> free_;
  std::vector<Owner> memory_;
  const size_t most_shared_;  // slots beyond the first one of each peer
  size_t num_shared_ = 0;     // that are held
  size_t num_to_come_ = 0;    // that devices are allocating
  engine::Engine* engine_ = nullptr;
  std::map<transport::PeerId, Account> accounts_;
  IntrusiveList<Account> without_slot_;
  IntrusiveList<Account> with_slot_;
  Waiter* served_ = nullptr;  // whose turn it is
  bool is_serving_ = false;
};

}  // namespace axon::rpc
