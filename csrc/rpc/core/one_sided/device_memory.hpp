// Device memory as one-sided transfers see it. This folder calls no device: rpc/python/cuda implements these classes,
// and tests do, with host memory in place of a device's.
//
// The owner of a region says in DeviceRegion where its memory is, and which device copies it. An initiator adds
// DeviceWork to a transfer for blocks that a device of its own moves.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/engine.hpp"
#include "memory/buffer.hpp"
#include "memory/owner.hpp"

namespace axon::rpc {

class Transfer;

// Says where a peer of the same host finds the memory, in the terms of the device's driver. This folder only passes it
// on.
struct DeviceLocation {
  uint64_t incarnation = 0;   // of what the owner exports of that device
  uint64_t export_table = 0;  // its address at the owner; 0: peers cannot map the memory
  std::array<uint8_t, 16> uuid{};
  int32_t ordinal = -1;  // of the device, in the owner's process
  uint32_t reserved = 0;

  bool is_mappable() const noexcept { return export_table != 0; }
};
static_assert(sizeof(DeviceLocation) == 40);

struct CopiedBlock {
  const std::byte* source = nullptr;
  std::byte* target = nullptr;
  uint64_t num_bytes = 0;
};

// Copies between a device and host memory, which run in the background.
//
//   copy.blocks = …; device.start(copy);   // copy.on_copied() follows
class DeviceCopy : public engine::Submission, private engine::FlagWaiter {
 public:
  explicit DeviceCopy(engine::Engine& engine) noexcept : engine_(engine) {}
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;

  std::vector<CopiedBlock> blocks;

  // Called once by the progress owner: nothing moves any more. kAborted: the engine has ended first, so bytes may still
  // be moving, and the memory must be leaked.
  virtual void on_copied(Status status) noexcept = 0;

  // For the device; any thread. The flag is set once the bytes are visible at their target; `kept` lives until then.
  void launched(const std::atomic<uint32_t>& flag, Owner kept) noexcept {
    flag_ = &flag;
    kept_ = std::move(kept);
    go_on();
  }
  void failed(Status why) noexcept {
    flag_ = nullptr;
    status_ = std::move(why);
    go_on();
  }

 protected:
  ~DeviceCopy() = default;

 private:
  // The device's thread must not drive the engine: it could run callbacks of the user, and wait for Python's lock,
  // while copies wait for it.
  void go_on() noexcept {
    engine::Engine& engine = engine_;  // this object may be destroyed within the call
    engine.submit_to_drivers(*this);
  }
  void begin() noexcept override {
    flag_ == nullptr ? on_copied(std::exchange(status_, Status())) : engine_.wait_for_flag(*this, *flag_);
  }
  void complete() noexcept override {}
  // Called without the flag, too, once the engine has ended.
  void on_flag_set() noexcept override {
    if (flag_->load(std::memory_order_acquire) != 0) {
      kept_ = Owner();
      return on_copied(Status());
    }
    [[maybe_unused]] auto* const leaked = new Owner(std::move(kept_));
    on_copied(Status(ErrorCode::kAborted, "the engine has ended"));
  }

  engine::Engine& engine_;
  const std::atomic<uint32_t>* flag_ = nullptr;
  Owner kept_;
  Status status_;
};

class NewSlot;
class StagingSlots;

// A device of this process. Lives as long as the process.
class Device {
 public:
  // Never blocks; any thread. The host side of the blocks is memory of slots(), or any that the device can use.
  virtual void start(DeviceCopy& copy) noexcept = 0;
  // Never blocks; any thread. Leads to slot.made().
  virtual void allocate(NewSlot& slot) noexcept = 0;
  // Slots for requests of peers. Progress owner only.
  virtual StagingSlots& slots_for_peers() noexcept = 0;

 protected:
  ~Device() = default;
};

// The additional facts of a region of device memory.
struct DeviceRegion {
  Device* device = nullptr;  // null: host memory
  DeviceLocation location;
  std::vector<uint64_t> mapped_addresses;  // of the extents, for peers that map them; empty unless mappable
};

// Memory of a peer's device that a device of this process can use directly. Only the part that made it knows more.
class DeviceMapping {
 public:
  virtual ~DeviceMapping() = default;
};

// The blocks of a transfer that a device of this process moves. Begun with the transfer; the transfer is not drained
// before the work has ended.
class DeviceWork {
 public:
  explicit DeviceWork(Transfer& transfer) noexcept : transfer_(transfer) {}
  virtual ~DeviceWork() = default;
  DeviceWork(const DeviceWork&) = delete;
  DeviceWork& operator=(const DeviceWork&) = delete;

  // Progress owner. begin() is called once, unless the engine has ended before; it leads to end().
  virtual void begin() noexcept = 0;
  // The transfer has failed: nothing more is begun. May be called before begin().
  virtual void stop() noexcept = 0;

 protected:
  // Says whether the text of a failure names the peer and the region already.
  enum class Text : uint8_t { kBare, kNamesPeer };
  // Once: no byte moves any more. May be called within begin() and stop().
  void end(const Status& status, Text text = Text::kBare) noexcept;
  Transfer& transfer() const noexcept { return transfer_; }

 private:
  Transfer& transfer_;
};

}  // namespace axon::rpc
