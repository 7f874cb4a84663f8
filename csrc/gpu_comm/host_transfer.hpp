// One end of a partitioned transfer whose peer is out of reach for this rank's kernels: on another host, or without
// peer access. Its pinned memory, its kernels (kernels/host_partitions.hpp), and the engine's part.
//
//   Result<std::unique_ptr<HostTransfer>> opened = HostTransfer::open(group, end, first_tag, draining);
//   write_transfer(opened.value()->complete(ends), ends, stream);
//   AXON_TRY(opened.value()->start(stream));        // any number of times; capturable
//   AXON_TRY(opened.value()->end_start(stream));    // at each wait
//   AXON_TRY(opened.value()->close(streams));
//
// A start also tells the engine: at once, or when a graph that holds it is launched. Graphs keep the pinned memory and
// the engine's part. The memory goes back to its pool when all of them and the engine's part have ended, and is used
// again when the kernels have run. Not thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "engine/partitioned_message.hpp"
#include "gpu_comm/device_group.hpp"
#include "kernels/host_partitions.hpp"
#include "kernels/host_slots.hpp"

namespace axon::gpu_comm {

struct TransferEnd;

class HostTransfer {
 public:
  // The messages of the partitions have the tags from `first_tag` on. `draining` is a stream that carries nothing that
  // waits for other work of the caller.
  static Result<std::unique_ptr<HostTransfer>> open(DeviceGroup& group, const TransferEnd& end, uint32_t first_tag,
                                                    cuda::StreamView draining);
  // Gives up the engine's part if close() was not called, or has failed.
  ~HostTransfer();
  HostTransfer(const HostTransfer&) = delete;
  HostTransfer& operator=(const HostTransfer&) = delete;

  // Adds what this end's kernels see to the ends, and returns what ends their waits.
  kernels::TransferWaits complete(kernels::TransferEnds& ends) const noexcept;

  Status start(cuda::StreamView stream);
  // The stream waits for the kernel that copies what has arrived. A capture ends only if it has joined that stream.
  Status end_start(cuda::StreamView stream);
  cuda::StreamView draining() const noexcept { return draining_; }
  // No step follows on these streams, which have held steps, nor elsewhere, but in launches that are queued. Ends the
  // kernels of a receive that has been started and not been waited for; blocks until the start before it has ended.
  Status close(std::span<const cuda::StreamView> streams);

 private:
  // In pinned memory of its own: the group reads it after the others have been given back.
  struct Control {
    cuda::TeamControl team{};
    kernels::SlotState failure{};
    std::atomic<uint32_t> has_expired{0};
  };
  struct Memory {
    std::shared_ptr<PinnedBlock> control;
    std::shared_ptr<PinnedBlock> data;  // the turn, the flags, and then the data
  };

  // Shared by this transfer and the graphs that hold starts of it.
  struct EnginePart {
    std::shared_ptr<const Memory> memory;
    std::shared_ptr<engine::PartitionedMessage> message;

    EnginePart(std::shared_ptr<const Memory> kept, std::shared_ptr<engine::PartitionedMessage> opened) noexcept
        : memory(std::move(kept)), message(std::move(opened)) {}
    EnginePart(const EnginePart&) = delete;
    EnginePart& operator=(const EnginePart&) = delete;
    ~EnginePart() { message->release(); }
  };

  HostTransfer(DeviceGroup& group, const TransferEnd& end, Memory memory, cuda::StreamView draining, cuda::Event event,
               cuda::Event drained);
  Status open_message(const TransferEnd& end, uint32_t first_tag);
  Control& control() const noexcept { return *reinterpret_cast<Control*>(memory_->control->data()); }
  std::atomic<uint32_t>* turn() const noexcept {
    return reinterpret_cast<std::atomic<uint32_t>*>(memory_->data->data());
  }
  std::atomic<uint32_t>* flags() const noexcept;
  Status note_last_use();
  PreparedTransfer* handle() const noexcept { return reinterpret_cast<PreparedTransfer*>(record_); }
  Status send_trigger(cuda::StreamView stream);
  Status drain(cuda::StreamView stream);
  Status abandon() noexcept;

  DeviceGroup& group_;
  const bool is_sender_;
  const std::chrono::nanoseconds longest_wait_;
  std::byte* const record_;
  const std::shared_ptr<const Memory> memory_;  // shared with the engine's part
  kernels::HostPartitions partitions_;
  kernels::DrainWords* const words_;
  const cuda::StreamView draining_;
  const cuda::Event event_;
  const cuda::Event drained_;  // of the last start that was waited for outside of graphs
  kernels::Trigger trigger_{};
  std::shared_ptr<EnginePart> part_;                // shared with graphs; until close()
  const std::shared_ptr<WatchedTransfer> watched_;  // shared with the group
  bool is_started_ = false;                         // outside of graphs, and not waited for
  bool is_captured_ = false;
};

}  // namespace axon::gpu_comm
