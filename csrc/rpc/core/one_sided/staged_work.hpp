// Moves blocks between memory of a local device and memory of a peer that the device cannot use directly. They pass
// through slots of pinned host memory: the device copies between the blocks and a slot, and a transfer of host memory
// between the slot and the peer. Several slots are under way at a time, so both run beside each other.
//
//   write:  device ──copy──► slot ──transfer──► peer          read:  device ◄──copy── slot ◄──transfer── peer
//
//   transfer->add(std::make_unique<StagedWork>(*transfer, StagedWork::Parts{.device = &device, .blocks = …}));
//
// Progress owner only, except for the constructor.
#pragma once

#include <memory>
#include <vector>

#include "rpc/core/one_sided/block_cutter.hpp"
#include "rpc/core/one_sided/device_memory.hpp"
#include "rpc/core/one_sided/staging_slots.hpp"
#include "rpc/core/one_sided/transfer.hpp"

namespace axon::rpc {

class StagedWork final : public DeviceWork, private StagingSlots::Waiter, private engine::FlagWaiter {
 public:
  static constexpr size_t kMostSegments = 4;  // under way, of one transfer

  struct Block {
    std::shared_ptr<RemoteMemory> remote;  // shared with the transfer and others
    uint64_t offset = 0;                   // in the remote memory
    std::byte* local = nullptr;            // memory of the device
    uint64_t num_bytes = 0;

    Block from(uint64_t begin, uint64_t length) const {
      return {.remote = remote, .offset = offset + begin, .local = local + begin, .num_bytes = length};
    }
  };
  struct Parts {
    Device* device = nullptr;
    StagingSlots* slots = nullptr;
    std::vector<Block> blocks;
    Owner owner;                                        // of the local memory
    const std::atomic<uint32_t>* start_flag = nullptr;  // the blocks may be used once it is set; null: at once
    Owner flag_owner;
  };

  StagedWork(Transfer& transfer, Parts parts) noexcept;
  ~StagedWork() override;

  void begin() noexcept override;
  void stop() noexcept override;

 private:
  class Segment;
  class Child;
  struct Lease;

  void on_slot() noexcept override { pump(); }
  void on_no_slot(const Status& why) noexcept override;
  void on_flag_set() noexcept override;
  void pump() noexcept;
  bool has_blocks() const noexcept { return cutter_.has_next(parts_.blocks); }
  void on_segment_end(Segment& segment, Status status, Text text) noexcept;
  void end_if_over() noexcept;

  const bool writes_;
  Parts parts_;
  BlockCutter<Block> cutter_;
  std::vector<std::unique_ptr<Segment>> segments_;  // under way
  Status status_;
  Text text_ = Text::kBare;  // of the status
  bool awaits_flag_ = false;
  bool is_stopped_ = false;
  bool has_ended_ = false;
  bool is_pumping_ = false;
  bool leaks_ = false;  // the device may still use the memory
};

}  // namespace axon::rpc
