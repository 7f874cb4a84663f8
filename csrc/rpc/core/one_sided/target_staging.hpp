// A request of a peer for memory of a device: it passes through a slot of host memory, since the transport cannot use
// the device's.
//
//   write:  peer ──transport──► slot ──device──► region      read:  peer ◄──transport── slot ◄──device── region
//
// The request waits until a slot is free. Owned by Target; progress owner only.
#pragma once

#include <optional>
#include <vector>

#include "rpc/core/one_sided/device_memory.hpp"
#include "rpc/core/one_sided/staging_slots.hpp"

namespace axon::rpc {

class Connection;

class TargetStaging final : public DeviceCopy, public StagingSlots::Waiter {
 public:
  // Learns when the request may go on.
  class Listener {
   public:
    // The request has a slot.
    virtual void on_slot(TargetStaging& staging) noexcept = 0;
    // The device has copied, or has failed, or there is no slot. kAborted: see DeviceCopy.
    virtual void on_staged(TargetStaging& staging, Status status) noexcept = 0;

   protected:
    ~Listener() = default;
  };

  // The places are memory of the device. Their bytes lie in the slot one after the other.
  TargetStaging(const Connection& connection, Listener& listener, Device& device, std::vector<Buffer> places) noexcept;
  ~TargetStaging() {
    StagingSlots::Waiter::unlink();
    if (slot_) device_.slots_for_peers().give_back(peer(), *slot_);
  }

  // Leads to on_slot(), perhaps at once.
  void ask_for_slot() noexcept { on_slot(); }
  // Returns whether it waits for a slot.
  bool is_waiting() const noexcept { return !slot_ && !is_abandoned_; }
  // Its slot, cut to the bytes of the request.
  Buffer slot() const noexcept { return slot_->slice(0, num_bytes()); }
  uint64_t num_bytes() const noexcept;

  enum class Direction : uint8_t { kToDevice, kFromDevice };
  // Leads to on_staged().
  void copy(Direction direction) noexcept;
  bool is_copying() const noexcept { return is_copying_; }
  // The engine has ended: the slot is of no use any more, and the listener is not called again.
  void abandon() noexcept {
    slot_.reset();
    is_abandoned_ = true;
  }

  // The data of a write: what waits at the peer, or the bytes that arrived with the message.
  void* rendezvous = nullptr;
  std::vector<std::byte> bytes;

 private:
  void on_slot() noexcept override {
    slot_ = device_.slots_for_peers().take(*this);
    if (slot_) listener_.on_slot(*this);
  }
  void on_no_slot(const Status& why) noexcept override;
  void on_copied(Status status) noexcept override {
    if (is_abandoned_) return;
    is_copying_ = false;
    listener_.on_staged(*this, std::move(status));
  }

  Listener& listener_;
  Device& device_;
  const std::vector<Buffer> places_;
  std::optional<Buffer> slot_;
  bool is_copying_ = false;
  bool is_abandoned_ = false;
};

}  // namespace axon::rpc
