// The frame of every packet kernel: read the epoch, send, advance the epoch, receive.
//
// Each block ends in one control warp, which does what is not data: advances the epoch and, in block 0, exchanges the
// descriptors. The other threads, the workers, run the algorithm, a class with
//   Algorithm(const DeviceTeam&, Workers, const PacketArguments&)   loads what it can while the epoch is on its way
//   void send(const Turn&)                                          everything that needs no peer
//   void receive(const Turn&)                                       the rest
#pragma once

#include "device/packet.cuh"

namespace axon::device {

inline constexpr int kControlThreads = 32;
inline constexpr int kMaxWorkers = 512;  // in a block

struct PacketArguments {
  PacketDescriptor descriptor;
  uint32_t num_packets;  // of the run, or of a rank's shard, that the algorithm deals in
  const std::byte* input;
  std::byte* output;
  size_t num_bytes;  // of the input
};

// The workers of all blocks, numbered; worker `first` takes packets first, first + count, …
struct Workers {
  uint32_t first;
  uint32_t count;
};

// By the control warp, a lane a peer.
__device__ __forceinline__ void announce(const Turn& turn, const PacketDescriptor& ours) {
  const DeviceTeam& team = turn.team;
  const int peer = threadIdx.x % kControlThreads;
  if (peer >= team.num_ranks || peer == team.rank) return;
  const Payload payload = *reinterpret_cast<const Payload*>(&ours);
  store_packet(turn.descriptors(peer) + team.rank, packet_of(payload, turn.epoch));
}

__device__ __forceinline__ void verify(const Turn& turn, const PacketDescriptor& ours) {
  const DeviceTeam& team = turn.team;
  const int peer = threadIdx.x % kControlThreads;
  if (peer >= team.num_ranks || peer == team.rank) return;
  Receipt<1> receipt{{turn.descriptors(team.rank) + peer}, {}};
  FaultCode fault = receipt.await(turn);
  const Payload theirs = receipt.payloads[0];
  const Payload expected = *reinterpret_cast<const Payload*>(&ours);
  if (fault == FaultCode::kNone && (theirs.low != expected.low || theirs.high != expected.high)) {
    fault = FaultCode::kMismatch;
  }
  if (fault == FaultCode::kNone) return;
  report_fault(team, fault, peer, turn.epoch, *reinterpret_cast<const PacketDescriptor*>(&theirs));
}

// A packet that nobody has written for 2³² epochs would match again. So once in kEpochsPerWipe, at two epochs running,
// block 0 stamps the region that is idle in this epoch, with this epoch, whose parity never matches there. Peers enter
// the next epoch, and write to that region, only after they have block 0's descriptor, which the fence orders behind.
inline constexpr uint32_t kEpochsPerWipe = 1u << 20;

__device__ __noinline__ inline void wipe_idle_region(const DeviceTeam& team, uint32_t epoch) {
  Packet* idle = team.packets[team.rank] + (~epoch & 1) * team.region_packets;
  for (uint32_t index = threadIdx.x; index < team.region_packets; index += blockDim.x) {
    store_packet(idle + index, packet_of({}, epoch));
  }
  __threadfence_system();
  __syncthreads();
}

template <typename Algorithm>
__global__ void __launch_bounds__(kMaxWorkers + kControlThreads)
    packet_kernel(const __grid_constant__ DeviceTeam team, const __grid_constant__ PacketArguments arguments) {
  const uint32_t epoch = current_epoch(team);
  const bool has_failed = load_relaxed(&team.state->fault) != 0;
  const uint32_t num_workers = blockDim.x - kControlThreads;
  const bool is_worker = threadIdx.x < num_workers;
  const Workers workers{blockIdx.x * num_workers + threadIdx.x, gridDim.x * num_workers};
  Algorithm algorithm(team, workers, arguments);

  const Turn turn(team, epoch);
  if (blockIdx.x == 0 && epoch % kEpochsPerWipe <= 1) wipe_idle_region(team, epoch);
  if (is_worker && !has_failed) algorithm.send(turn);
  if (!is_worker && !has_failed && blockIdx.x == 0) announce(turn, arguments.descriptor);
  if (__syncthreads_or(has_failed)) return;
  if (is_worker) return algorithm.receive(turn);
  advance_epoch(team, epoch);
  if (blockIdx.x == 0) verify(turn, arguments.descriptor);
}

}  // namespace axon::device
