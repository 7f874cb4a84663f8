// Kernels of a partitioned transfer whose peer is out of their reach: its data passes through pinned memory, which the
// host engine sends and receives (engine/partitioned_message.hpp).
//
//   sender:    kernels copy each partition into the memory and set its flag there, as if it were the receiver's tensor
//   receiver:  a kernel copies each partition out of the memory when its flag is set, and says that it has arrived
//
// So functions of kernels/device.cuh are the same as for other transfers. Flags and turns hold counts of starts, which
// leave out 0 when they wrap. Every wait ends as those of other transfers do.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.hpp"
#include "cuda/stream.hpp"
#include "kernels/prepared.hpp"

namespace axon::kernels {

// The pinned memory of one end. Does not own it.
struct HostPartitions {
  std::byte* data = nullptr;  // equal to the tensor's address modulo 16
  uint32_t* flags = nullptr;  // [partition], and one more: that the request is closed
  uint32_t* turn = nullptr;
  uint32_t num_partitions = 0;
  uint64_t partition_bytes = 0;
};

inline constexpr uint32_t kMostHostPartitions = 4096;  // a block notes in shared memory which ones it has copied

// The words of a record at TransferRecord::drain.
struct DrainWords {
  uint32_t fault;         // in place of the group's
  uint32_t num_resident;  // blocks of the receiver's kernel that have begun
  uint32_t draining;      // the start for which all of them have
  uint32_t num_ended;     // blocks that have copied their share of all partitions
};
DrainWords* drain_words_of(std::byte* record, uint32_t num_partitions) noexcept;

// Begins a start, as TransferStep::kStart.
Status launch_host_start(PreparedTransfer* transfer, cuda::StreamView stream);
// Receiver. Enqueues the kernel that copies the partitions of the present start into the tensor. It stays on the GPU
// until all have arrived, so it needs a stream of its own.
Status launch_drain(PreparedTransfer* transfer, const HostPartitions& partitions, DrainWords* words,
                    cuda::StreamView stream);
// Waits until all blocks of that kernel are resident. Otherwise later kernels that wait for partitions might take their
// places.
Status launch_await_drain(PreparedTransfer* transfer, DrainWords* words, cuda::StreamView stream);
// Tells the host that no kernel makes a partition ready any more, when all earlier ones have run.
Status launch_close(PreparedTransfer* transfer, const HostPartitions& partitions, cuda::StreamView stream);

// Loads the kernels onto the current device.
Status load_host_partition_kernels();

}  // namespace axon::kernels
