// A device in a test: it holds the data of an operation, and passes it through slots like a GPU.
#pragma once

#include <atomic>
#include <vector>

#include "collectives/patterns.hpp"
#include "engine/engines.hpp"

namespace axon::engine {

class TestDevice final : public DeviceSegments {
 public:
  // Divides a collective into `num_segments`, and a message as the engine divides it.
  TestDevice(TestOperation& operation, size_t num_segments, size_t num_slots = kMostSlots)
      : operation_(operation),
        count_(operation.direction == Direction::kCollective ? num_segments
                                                             : SegmentedExchange::count_segments(num_bytes())),
        slots_(std::min(num_slots, count_)) {
    for (Slot& slot : slots_) slot.data.resize(num_bytes());
    operation.device_segments = this;
  }

  // Waits until the slot is free, copies the segment there, and hands it over.
  void fill(size_t segment) {
    Slot& slot = slot_of(segment);
    if (!await_turn(segment)) return;
    const collectives::Range range = range_of(segment);
    if (operation_.direction != Direction::kReceive) std::copy_n(data() + range.begin, range.length, slot.data.data());
    slot.turn.store(kEnginesTurn, std::memory_order_release);
  }

  // Waits until the engine has returned the segment's slot, and takes the result. Returns whether it has succeeded.
  bool take(size_t segment) {
    if (!await_turn(segment)) return false;
    const collectives::Range range = range_of(segment);
    std::copy_n(slot_of(segment).data.data(), range.length, data() + range.begin);
    return true;
  }

  // What a GPU's stream does for the operation: fills and takes all segments.
  void run() {
    for (size_t segment = 0; segment < count_; ++segment) {
      if (segment >= slots_.size()) take(segment - slots_.size());
      fill(segment);
    }
    for (size_t segment = count_ - slots_.size(); segment < count_; ++segment) take(segment);
  }

  // What it does for a send.
  void fill_all() {
    for (size_t segment = 0; segment < count_; ++segment) fill(segment);
  }

  bool has_failed() const noexcept { return failed_.load(); }

  size_t count() const noexcept override { return count_; }
  size_t num_slots() const noexcept override { return slots_.size(); }
  Buffers buffers(size_t segment) noexcept override {
    Slot& slot = slot_of(segment);
    slot.output = {slot.data.data(), range_of(segment).length};
    slot.input = slot.output;
    if (operation_.direction == Direction::kSend) return {.inputs = {&slot.input, 1}, .outputs = {}};
    return {.inputs = {}, .outputs = {&slot.output, 1}};
  }
  const std::atomic<uint32_t>& turn(size_t slot) const noexcept override { return slots_[slot].turn; }
  void give_back(size_t segment) noexcept override {
    slot_of(segment).turn.store(kDevicesTurn, std::memory_order_release);
  }
  void fail() noexcept override { failed_.store(true); }

 private:
  struct Slot {
    std::vector<std::byte> data;
    std::atomic<uint32_t> turn{kDevicesTurn};
    Buffer output;
    ConstBuffer input;
  };

  size_t num_bytes() const noexcept { return operation_.data.size() * sizeof(int32_t); }
  std::byte* data() noexcept { return reinterpret_cast<std::byte*>(operation_.data.data()); }
  Slot& slot_of(size_t segment) noexcept { return slots_[segment % slots_.size()]; }
  collectives::Range range_of(size_t segment) const noexcept {
    if (operation_.direction == Direction::kCollective) {
      return collectives::Partition(num_bytes(), static_cast<int>(count_))[static_cast<int>(segment)];
    }
    return collectives::Chunks(num_bytes(), SegmentedExchange::segment_bytes(num_bytes()))[segment];
  }
  bool await_turn(size_t segment) {
    const Slot& slot = slot_of(segment);
    while (slot.turn.load(std::memory_order_acquire) != kDevicesTurn) {
      if (failed_.load()) return false;
      std::this_thread::yield();
    }
    return true;
  }

  TestOperation& operation_;
  const size_t count_;
  std::vector<Slot> slots_;
  std::atomic<bool> failed_{false};
};

}  // namespace axon::engine
