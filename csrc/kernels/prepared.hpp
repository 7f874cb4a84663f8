// The host's steps of a partitioned transfer (kernels/device.cuh), each enqueued as one kernel. They take nothing but
// the transfer's address and numbers, so graphs may hold them, and other steps may be taken by kernels of the user.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.hpp"
#include "cuda/device_types.hpp"
#include "cuda/launch.hpp"
#include "cuda/stream.hpp"

namespace axon {
struct PreparedTransfer;
}  // namespace axon

namespace axon::kernels {

// Errors in the use of a transfer that kernels report to the host. The same as detail::Misuse (kernels/device.cuh).
enum class Misuse : uint32_t { kNotStarted = 1, kNotWaited = 2, kNoPartition = 3, kReadyTwice = 4, kNoSender = 5 };

enum class TransferStep : uint8_t {
  kStart,    // sender: partitions may become ready; receiver: the sender may write into the tensor
  kSend,     // sender: start, all partitions become ready, wait
  kReady,    // sender: copies these partitions
  kArrived,  // waits for these partitions
  kWait,     // waits for all partitions, and ends what kStart has begun
  kSendLl,   // the two steps of a small tensor; the receiver's is also its start
  kWaitLl,
};

// Tensors up to this size, if they are sent as a whole, go as LL packets.
inline constexpr uint64_t kMostLlBytes = uint64_t{64} << 10;

// A step of a transfer with partitions of this size. kReady and kArrived concern the partitions from `first` to
// `end` − 1.
struct TransferCall {
  PreparedTransfer* transfer;
  TransferStep step{};
  uint32_t first = 0;
  uint32_t end = 0;
  uint64_t partition_bytes = 0;
};

// A kernel with its arguments, to be launched or added to a graph.
struct TransferKernel {
  const void* kernel = nullptr;
  cuda::LaunchShape shape;
  PreparedTransfer* transfer = nullptr;
  uint32_t first = 0;
  uint32_t second = 0;
};
TransferKernel kernel_of(const TransferCall& call) noexcept;

Status launch(const TransferCall& call, cuda::StreamView stream);

// The layout of a transfer's record, which is memory of one rank's GPU: offsets in bytes. The rank's PreparedTransfer
// comes first, then its flags.
struct TransferRecord {
  size_t started = 0, waited = 0, credit = 0, drain = 0, done = 0, num_finished = 0, slots = 0, num_bytes = 0;
  static TransferRecord of(uint32_t num_partitions, uint64_t ll_bytes) noexcept;
};

// The words and the timeout that end waits of a rank's kernels.
struct TransferWaits {
  uint32_t* fault = nullptr;  // in device memory
  cuda::TeamControl* control = nullptr;
  uint64_t timeout_ns = 0;
};

// A rank's view of both ends.
struct TransferEnds {
  bool is_sender = false;
  uint32_t num_partitions = 0;
  uint64_t num_bytes = 0;
  uint64_t ll_bytes = 0;  // num_bytes if it goes as LL packets, otherwise 0
  std::byte* tensor = nullptr;
  std::byte* record = nullptr;
  std::byte* peer_tensor = nullptr;  // as this GPU sees it
  std::byte* peer_record = nullptr;
  int peer = -1;  // its local index
  uint32_t tag = 0;
  cuda::DeviceDescriptor call{};
  // Set for a sender whose kernels cannot reach the peer: they signal the host instead (kernels/host_partitions.hpp).
  uint32_t* host_arrived = nullptr;
  uint32_t* host_credit = nullptr;
};
// Writes this rank's PreparedTransfer to the beginning of its record, in stream order.
Status write_transfer(const TransferWaits& waits, const TransferEnds& ends, cuda::StreamView stream);

// Loads the kernels onto the current device.
Status load_transfer_kernels();

}  // namespace axon::kernels
