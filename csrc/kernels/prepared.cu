#include "kernels/prepared.hpp"

#include <algorithm>
#include <cstddef>

#include "cuda/memory.hpp"
#include "kernels/device.cuh"
#include "kernels/ll/packet.cuh"

namespace axon::kernels {
namespace {

constexpr int kThreads = 512;
constexpr int kWaitThreads = 128;
constexpr uint64_t kBytesPerBlock = uint64_t{32} << 10;
constexpr uint64_t kLlBytesPerBlock = uint64_t{8} << 10;
constexpr uint32_t kMostBlocks = 64;  // of one launch: they fill the links

static_assert(offsetof(TransferFault, peer) == offsetof(cuda::FaultReport, peer));
static_assert(offsetof(TransferFault, partition) == offsetof(cuda::FaultReport, sequence));
static_assert(offsetof(TransferFault, ours) == offsetof(cuda::FaultReport, ours));
static_assert(offsetof(TransferFault, tag) == offsetof(cuda::FaultReport, our_tag));
static_assert(offsetof(TransferFault, misuse) == offsetof(cuda::FaultReport, their_tag));
static_assert(sizeof(TransferFault) == sizeof(cuda::FaultReport));
static_assert(detail::kNotStarted == static_cast<uint32_t>(Misuse::kNotStarted));
static_assert(detail::kNoSender == static_cast<uint32_t>(Misuse::kNoSender));
static_assert(detail::kMisuse == static_cast<uint32_t>(cuda::FaultCode::kMisuse));

__host__ __device__ __forceinline__ uint64_t ll_packets_of(uint64_t num_bytes) {
  return (num_bytes + ll::kPayloadBytes - 1) / ll::kPayloadBytes;
}

// Called by one thread. Returns false if the last start has not been waited for.
__device__ __forceinline__ bool begin_start(const PreparedTransfer& transfer) {
  if (load_relaxed(transfer.started) == load_relaxed(transfer.waited)) return true;
  return detail::report(transfer, detail::kMisuse, 0, detail::kNotWaited);
}

__global__ void start_kernel(PreparedTransfer* transfer, uint32_t, uint32_t) {
  await_stream();
  let_next_in();
  if (!begin_start(*transfer)) return;
  const uint32_t count = load_relaxed(transfer->started) + 1;
  store_relaxed(transfer->started, count);
  if (transfer->is_sender == 0) store_release(transfer->credit, count);  // its tensor is free: earlier work has ended
}

// Called by all threads of each block that takes part, when it is done. Returns whether this thread is the last one.
__device__ __forceinline__ bool is_last_thread(const PreparedTransfer& transfer, uint64_t partition,
                                               uint32_t num_blocks) {
  __syncthreads();
  return threadIdx.x == 0 && detail::is_last_block(transfer, partition, num_blocks);
}

// Called by one thread. Ends a step that is both start and wait.
__device__ __forceinline__ void end_start(const PreparedTransfer& transfer, uint32_t count) {
  store_relaxed(transfer.started, count);
  store_relaxed(transfer.waited, count);
}

// Several blocks copy a partition. Returns whether this thread is the last one to finish.
__device__ __forceinline__ bool copy_part(const PreparedTransfer& transfer, uint64_t partition, uint32_t block,
                                          uint32_t num_blocks) {
  const uint64_t offset = partition * transfer.partition_bytes;
  detail::copy_share(transfer.tensor + offset, transfer.target + offset, transfer.partition_bytes,
                     uint64_t{block} * blockDim.x + threadIdx.x, uint64_t{num_blocks} * blockDim.x);
  return is_last_thread(transfer, partition, num_blocks);
}

__global__ void __launch_bounds__(kThreads)
    ready_kernel(PreparedTransfer* transfer, uint32_t first, uint32_t blocks_each) {
  await_stream();
  const uint64_t partition = first + blockIdx.x / blocks_each;
  uint32_t count = 0;
  if (__syncthreads_and(threadIdx.x != 0 || detail::begin_partition(*transfer, partition, count)) == 0) return;
  if (!copy_part(*transfer, partition, blockIdx.x % blocks_each, blocks_each)) return;
  detail::publish_partition(*transfer, partition, count);
}

// The transfer has one partition. The blocks before the last one still see the former counts.
__global__ void __launch_bounds__(kThreads) send_kernel(PreparedTransfer* transfer, uint32_t, uint32_t) {
  await_stream();
  const uint32_t count = load_relaxed(transfer->started) + 1;
  const auto begin = [&] { return begin_start(*transfer) && detail::await(*transfer, transfer->credit, count, 0); };
  if (__syncthreads_and(threadIdx.x != 0 || begin()) == 0) return;
  if (!copy_part(*transfer, 0, blockIdx.x, gridDim.x)) return;
  detail::publish_partition(*transfer, 0, count);
  end_start(*transfer, count);
}

// Small tensors go as LL packets into slots of the receiver's record: no fence, and a sender may be one start ahead.
// The count of the start is the packets' epoch, its parity selects the slot. The receiver copies them into its tensor
// when it waits, and then grants the slot again.

__device__ __forceinline__ cuda::LlPacket* slot_of(const PreparedTransfer& transfer, uint32_t count) {
  return reinterpret_cast<cuda::LlPacket*>(transfer.slots) + (count & 1) * ll_packets_of(transfer.partition_bytes);
}

__global__ void __launch_bounds__(kThreads) send_ll_kernel(PreparedTransfer* transfer, uint32_t, uint32_t) {
  await_stream();
  let_next_in();
  const uint32_t count = load_relaxed(transfer->waited) + 1;
  if (__syncthreads_and(threadIdx.x != 0 || detail::await(*transfer, transfer->credit, count - 2, 0)) == 0) return;
  cuda::LlPacket* const slot = slot_of(*transfer, count);
  const ll::InputSpan tensor(reinterpret_cast<const std::byte*>(transfer->tensor), transfer->partition_bytes);
  for (uint32_t k = blockIdx.x * blockDim.x + threadIdx.x; k < tensor.count(); k += gridDim.x * blockDim.x) {
    store_packet(slot + k, ll::packet_of(tensor.load(k), count));
  }
  if (is_last_thread(*transfer, 0, gridDim.x)) end_start(*transfer, count);
}

__global__ void __launch_bounds__(kThreads) wait_ll_kernel(PreparedTransfer* transfer, uint32_t, uint32_t) {
  await_stream();
  let_next_in();
  const uint32_t count = load_relaxed(transfer->waited) + 1;
  const cuda::LlPacket* const slot = slot_of(*transfer, count);
  const ll::OutputSpan tensor(reinterpret_cast<std::byte*>(transfer->tensor), transfer->partition_bytes);
  for (uint32_t k = blockIdx.x * blockDim.x + threadIdx.x; k < tensor.count(); k += gridDim.x * blockDim.x) {
    cuda::LlPacket packet{};
    const auto is_there = [&] { return ll::is_of(packet = load_packet(slot + k), count); };
    if (!detail::await(*transfer, 0, is_there)) return;
    tensor.store(k, {packet.low, packet.high});
  }
  if (!is_last_thread(*transfer, 0, gridDim.x)) return;
  end_start(*transfer, count);
  store_release(transfer->credit, count);
}

__device__ __forceinline__ bool await_partitions(const PreparedTransfer& transfer, uint32_t first, uint32_t end) {
  bool have_arrived = true;
  for (uint32_t partition = first + threadIdx.x; have_arrived && partition < end; partition += blockDim.x) {
    have_arrived = detail::await_partition(transfer, partition);
  }
  return __syncthreads_and(have_arrived) != 0;
}

__global__ void __launch_bounds__(kWaitThreads)
    arrived_kernel(PreparedTransfer* transfer, uint32_t first, uint32_t end) {
  await_stream();
  let_next_in();
  (void)await_partitions(*transfer, first, end);
}

__global__ void __launch_bounds__(kWaitThreads) wait_kernel(PreparedTransfer* transfer, uint32_t, uint32_t) {
  await_stream();
  let_next_in();
  const auto num_partitions = static_cast<uint32_t>(transfer->num_partitions);
  if (!await_partitions(*transfer, 0, num_partitions) || threadIdx.x != 0) return;
  store_relaxed(transfer->waited, load_relaxed(transfer->started));
}

template <typename Kernel>
const void* address_of(Kernel kernel) {
  return reinterpret_cast<const void*>(kernel);
}

}  // namespace

TransferKernel kernel_of(const TransferCall& call) noexcept {
  const auto blocks_of = [&](uint64_t bytes_per_block, uint32_t most) {
    const uint64_t wanted = (call.partition_bytes + bytes_per_block - 1) / bytes_per_block;
    return static_cast<uint32_t>(std::clamp<uint64_t>(wanted, 1, std::max(most, 1u)));
  };
  const auto made = [&](auto kernel, uint32_t num_blocks, int num_threads, uint32_t second = 0) {
    return TransferKernel{.kernel = address_of(kernel),
                          .shape = {.num_blocks = static_cast<int>(num_blocks), .num_threads = num_threads},
                          .transfer = call.transfer,
                          .first = call.first,
                          .second = second};
  };
  switch (call.step) {
    case TransferStep::kStart:
      return made(&start_kernel, 1, 1);
    case TransferStep::kSend:
      return made(&send_kernel, blocks_of(kBytesPerBlock, kMostBlocks), kThreads);
    case TransferStep::kSendLl:
      return made(&send_ll_kernel, blocks_of(kLlBytesPerBlock, kMostBlocks), kThreads);
    case TransferStep::kWaitLl:
      return made(&wait_ll_kernel, blocks_of(kLlBytesPerBlock, kMostBlocks), kThreads);
    case TransferStep::kReady: {
      const uint32_t count = call.end - call.first, each = blocks_of(kBytesPerBlock, kMostBlocks / count);
      return made(&ready_kernel, count * each, kThreads, each);
    }
    case TransferStep::kArrived:
      return made(&arrived_kernel, 1, kWaitThreads, call.end);
    case TransferStep::kWait:
      return made(&wait_kernel, 1, kWaitThreads);
  }
  return {};
}

Status launch(const TransferCall& call, cuda::StreamView stream) {
  TransferKernel kernel = kernel_of(call);
  void* arguments[] = {&kernel.transfer, &kernel.first, &kernel.second};
  return cuda::launch(kernel.kernel, kernel.shape, arguments, stream);
}

// Each of the first words has its own sector, since other GPUs write the credit.
TransferRecord TransferRecord::of(uint32_t num_partitions, uint64_t ll_bytes) noexcept {
  constexpr size_t kSector = 32, kLine = 128;
  const auto aligned = [](size_t offset) { return (offset + kLine - 1) / kLine * kLine; };
  const size_t counts = aligned(sizeof(PreparedTransfer));
  const size_t done = counts + kLine, finished = aligned(done + num_partitions * sizeof(uint32_t));
  const size_t slots = aligned(finished + num_partitions * sizeof(uint32_t));
  return {.started = counts,
          .waited = counts + kSector,
          .credit = counts + 2 * kSector,
          .drain = counts + 3 * kSector,
          .done = done,
          .num_finished = finished,
          .slots = slots,
          .num_bytes = slots + 2 * ll_packets_of(ll_bytes) * sizeof(cuda::LlPacket)};
}

Status write_transfer(const TransferWaits& waits, const TransferEnds& ends, cuda::StreamView stream) {
  const TransferRecord at = TransferRecord::of(ends.num_partitions, ends.ll_bytes);
  const auto word = [](std::byte* record, size_t offset) { return reinterpret_cast<uint32_t*>(record + offset); };
  std::byte* const of_sender = ends.is_sender ? ends.record : ends.peer_record;
  std::byte* const of_receiver = ends.is_sender ? ends.peer_record : ends.record;
  uint64_t call = 0;
  static_assert(sizeof(call) == sizeof(ends.call));
  std::copy_n(reinterpret_cast<const std::byte*>(&ends.call), sizeof(call), reinterpret_cast<std::byte*>(&call));
  const PreparedTransfer transfer{.is_sender = ends.is_sender ? 1u : 0u,
                                  .num_partitions = ends.num_partitions,
                                  .partition_bytes = ends.num_bytes / ends.num_partitions,
                                  .tensor = reinterpret_cast<unsigned char*>(ends.tensor),
                                  .target = reinterpret_cast<unsigned char*>(ends.peer_tensor),
                                  .arrived = ends.host_arrived ? ends.host_arrived : word(of_receiver, at.done),
                                  .done = word(ends.record, at.done),
                                  .num_finished = word(ends.record, at.num_finished),
                                  .credit = ends.host_credit ? ends.host_credit : word(of_sender, at.credit),
                                  .started = word(ends.record, at.started),
                                  .waited = word(ends.record, at.waited),
                                  .group_fault = waits.fault,
                                  .abort = &waits.control->abort,
                                  .gone = &waits.control->gone,
                                  .report = reinterpret_cast<TransferFault*>(&waits.control->report),
                                  .call = call,
                                  .timeout_ns = waits.timeout_ns,
                                  .slots = reinterpret_cast<unsigned char*>(of_receiver + at.slots),
                                  .peer = ends.peer,
                                  .tag = ends.tag};
  AXON_TRY(cuda::copy_async(ends.record, &transfer, sizeof(transfer), stream));
  return stream.synchronize();
}

Status load_transfer_kernels() {
  for (const void* kernel :
       {address_of(&start_kernel), address_of(&send_kernel), address_of(&ready_kernel), address_of(&arrived_kernel),
        address_of(&wait_kernel), address_of(&send_ll_kernel), address_of(&wait_ll_kernel)}) {
    AXON_TRY(cuda::load(kernel));
  }
  return Status();
}

}  // namespace axon::kernels
