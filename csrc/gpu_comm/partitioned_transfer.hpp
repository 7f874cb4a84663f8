// One end of a partitioned transfer between two GPUs. The tensor is sent again and again, each partition when it is
// ready. The host enqueues the steps, or kernels of the program take them (kernels/device.cuh).
//
//   TransferAddress ours = address_of(group, end);       // sent to the peer, which does the same
//   auto transfer = PartitionedTransfer::open(group, end, theirs);
//   transfer.value().enqueue({.step = kStart}, stream);   // any number of times; capturable
//
// If kernels of the two cannot reach each other's GPU, the transfer has partitions and passes through host memory. Then
// the ends send each other no address, and open_through_host() takes the place of open().
//
// The caller owns the memory of tensor and record, and keeps both until no kernel of the two ends can run. A peer whose
// end is open may write to the flags of the record, whatever this end does.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "gpu_comm/device_group.hpp"
#include "gpu_comm/host_transfer.hpp"
#include "kernels/prepared.hpp"

namespace axon::gpu_comm {

// The location of a rank's tensor and record, as sent to the peer.
struct TransferAddress {
  cuda::IpcLocation tensor{}, record{};
  uint64_t tensor_address = 0, record_address = 0;  // for a peer in the same process
};

struct TransferEnd {
  bool is_sender = false;
  int peer = -1;
  uint32_t tag = 0;
  DataType dtype{};
  std::byte* tensor = nullptr;
  size_t num_bytes = 0;
  uint32_t num_partitions = 0;  // divides num_bytes; 0: the tensor is sent as a whole, by its start
  std::byte* record = nullptr;  // zero-initialised
  std::chrono::milliseconds timeout{0};
};

// Returns the size of an end's record.
size_t record_bytes(const TransferEnd& end) noexcept;

// Returns whether the kernel of kStart waits for the peer's.
bool waits_for_credit_at_start(const TransferEnd& end) noexcept;

// Fails if the peer cannot map the memory. Ask after has_link().
Result<TransferAddress> address_of(DeviceGroup& group, const TransferEnd& end);

class PartitionedTransfer {
 public:
  enum class Step : uint8_t { kStart, kReady, kArrived, kWait };

  // Waits until the peer's memory is mapped here, at most some seconds. The end's group must have a link to the peer,
  // and outlive the transfer. Writes to the record on `stream`, and waits for that.
  static Result<PartitionedTransfer> open(DeviceGroup& group, const TransferEnd& end, const TransferAddress& of_peer,
                                          cuda::StreamView stream);
  // Does not wait for the peer. See HostTransfer::open() for the tag and the draining stream.
  static Result<PartitionedTransfer> open_through_host(DeviceGroup& group, const TransferEnd& end, uint32_t first_tag,
                                                       cuda::StreamView draining, cuda::StreamView stream);

  // Enqueues a step; nothing, if this step of a whole tensor needs no kernel. kReady and kArrived concern the
  // partitions from `first` to `end` − 1.
  Status enqueue(Step step, cuda::StreamView stream, uint32_t first = 0, uint32_t end = 0);

  // Adds the step to a graph as a node that depends on these nodes. Fails if the tensor is sent as a whole, or through
  // host memory.
  Result<cudaGraphNode_t> add_to(cudaGraph_t graph, std::span<const cudaGraphNode_t> dependencies, Step step,
                                 uint32_t first = 0, uint32_t end = 0);

  // Call it after the last step, if the group still exists. Returns events that pass when no step is queued any more.
  Result<std::vector<cuda::Event>> close();

  // Returns the argument of the functions in kernels/device.cuh.
  axon::PreparedTransfer* device_handle() const noexcept;

 private:
  PartitionedTransfer(DeviceGroup& group, const TransferEnd& end, ipc::LaunchLedger::Hold hold) noexcept
      : group_(&group), end_(end), hold_(std::move(hold)) {}
  std::optional<kernels::TransferStep> step_of(Step step) const noexcept;
  kernels::TransferCall call_of(kernels::TransferStep step, uint32_t first, uint32_t end) const noexcept;

  DeviceGroup* group_;
  TransferEnd end_;
  std::unique_ptr<HostTransfer> host_;     // if kernels do not reach the peer
  std::vector<cuda::StreamView> streams_;  // that have held steps
  ipc::LaunchLedger::Hold hold_;           // until close(): steps are not noted, and kernels of the user take some
};

}  // namespace axon::gpu_comm
