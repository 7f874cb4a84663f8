// A device for the tests of one-sided transfers. Its memory is the host's, at shifted addresses, so that a host access
// to them fails.
//
//   FakeDevice device(4);                                  // slots for peers, and for transfers of this process
//   FakeDevice::Memory memory(1000); memory.address()       // as regions and transfers name it
//   device.hold(); … device.let_go();                      // copies wait meanwhile
#pragma once

#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "rpc/core/one_sided/device_memory.hpp"
#include "rpc/core/one_sided/staging_slots.hpp"

namespace axon::rpc {

class FakeDevice final : public Device {
 public:
  static constexpr uint64_t kShift = uint64_t{1} << 62;

  class Memory {
   public:
    explicit Memory(size_t num_bytes) : bytes(num_bytes) {}
    std::byte* data() noexcept { return reinterpret_cast<std::byte*>(address()); }
    uint64_t address() const noexcept { return reinterpret_cast<uint64_t>(bytes.data()) + kShift; }

    std::vector<std::byte> bytes;  // as the device sees them
  };

  explicit FakeDevice(size_t num_slots)
      : slot_memory_(2 * num_slots * kSegmentNumBytes),
        for_peers_(slots(0, num_slots), {}),
        for_transfers_(slots(num_slots, num_slots), {}),
        thread_([this] { run(); }) {}
  ~FakeDevice() {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  void start(DeviceCopy& copy) noexcept override {
    const std::lock_guard lock(mutex_);
    copies_.push_back(&copy);
    changed_.notify_all();
  }
  void allocate(NewSlot& slot) noexcept override {
    const std::lock_guard lock(mutex_);
    new_slots_.push_back(&slot);
    changed_.notify_all();
  }
  StagingSlots& slots_for_peers() noexcept override { return for_peers_; }
  StagingSlots& slots_for_transfers() noexcept { return for_transfers_; }

  void hold() {
    const std::lock_guard lock(mutex_);
    is_held_ = true;
  }
  void let_go() {
    const std::lock_guard lock(mutex_);
    is_held_ = false;
    changed_.notify_all();
  }
  // Later copies fail.
  void break_down() {
    const std::lock_guard lock(mutex_);
    is_broken_ = true;
  }
  // Later slots cannot be allocated.
  void run_out_of_memory() {
    const std::lock_guard lock(mutex_);
    is_out_of_memory_ = true;
  }
  // Returns whether it uses no engine and no memory: both may be destroyed then.
  bool is_idle() {
    const std::lock_guard lock(mutex_);
    return copies_.empty() && new_slots_.empty() && !is_copying_;
  }
  size_t num_copies() {
    const std::lock_guard lock(mutex_);
    return num_copies_;
  }
  // The thread that starts copies. It must not drive an engine.
  std::thread::id thread_id() const noexcept { return thread_.get_id(); }

 private:
  std::vector<Buffer> slots(size_t first, size_t count) {
    std::vector<Buffer> made;
    for (size_t i = first; i < first + count; ++i) {
      made.push_back({.data = slot_memory_.data() + i * kSegmentNumBytes, .num_bytes = kSegmentNumBytes});
    }
    return made;
  }

  template <typename Byte>
  static Byte* seen(Byte* address) noexcept {
    const auto number = reinterpret_cast<uint64_t>(address);
    return reinterpret_cast<Byte*>(number >= kShift ? number - kShift : number);
  }

  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return is_over_ || !new_slots_.empty() || (!copies_.empty() && !is_held_); });
      for (NewSlot* slot : std::exchange(new_slots_, {})) slot->made(slot_memory());
      if (is_over_ && copies_.empty()) return;
      if (copies_.empty() || (is_held_ && !is_over_)) continue;
      DeviceCopy& copy = *copies_.front();
      copies_.pop_front();
      ++num_copies_;
      is_copying_ = true;
      const bool fails = is_broken_;
      lock.unlock();
      fails ? copy.failed(Status(ErrorCode::kInternal, "the device is broken")) : move(copy);
      lock.lock();
      is_copying_ = false;
    }
  }

  Result<NewSlot::Memory> slot_memory() const {
    if (is_out_of_memory_) return Status(ErrorCode::kInternal, "the host is out of memory");
    auto memory = std::make_shared<std::vector<std::byte>>(kSegmentNumBytes);
    std::byte* const data = memory->data();
    return NewSlot::Memory{.data = data, .owner = Owner::of(std::move(memory))};
  }

  // The bytes arrive after the launch, as they do on a device.
  static void move(DeviceCopy& copy) {
    const std::vector<CopiedBlock> blocks = copy.blocks;
    const auto flag = std::make_shared<std::atomic<uint32_t>>(0);
    copy.launched(*flag, Owner::of(flag));
    for (const CopiedBlock& block : blocks) std::memcpy(seen(block.target), seen(block.source), block.num_bytes);
    flag->store(1, std::memory_order_release);
  }

  std::vector<std::byte> slot_memory_;
  StagingSlots for_peers_;
  StagingSlots for_transfers_;
  std::mutex mutex_;  // guards the following members
  std::condition_variable changed_;
  std::deque<DeviceCopy*> copies_;
  std::vector<NewSlot*> new_slots_;
  size_t num_copies_ = 0;
  bool is_held_ = false;
  bool is_copying_ = false;
  bool is_broken_ = false;
  bool is_out_of_memory_ = false;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace axon::rpc
