// What the packet algorithms are made of: reduce a run of packets over all ranks; gather the shards of all ranks.
//
// kGroup ranks are waited for at once, and kInFlight / kGroup packets of each, so that a thread has kInFlight loads
// under way: waiting for one source after the other would cost an L2 round trip each.
#pragma once

#include "device/packet_kernel.cuh"
#include "device/reduce.cuh"

namespace axon::device {

inline constexpr int kInFlight = 8;

// A tensor cut in one shard a rank, `stride` bytes apart; the last ones may be short or empty.
struct Shards {
  size_t stride;
  size_t total;

  __device__ __forceinline__ size_t begin(int rank) const { return min(rank * stride, total); }
  __device__ __forceinline__ size_t num_bytes(int rank) const { return min(stride, total - begin(rank)); }
  __device__ __forceinline__ uint32_t num_packets(int rank) const {
    return static_cast<uint32_t>((num_bytes(rank) + kPayloadBytes - 1) / kPayloadBytes);
  }
};

// A run of the input which all ranks have sent here: rank r's packet i to slot r * slot_stride + i of the own region.
struct Run {
  const std::byte* own;  // this rank's part of it
  size_t num_bytes;
  uint32_t num_packets;
  uint32_t slot_stride;
};

__device__ __forceinline__ void report_missing(const Turn& turn, FaultCode fault, int peer) {
  report_fault(turn.team, {fault, peer, turn.epoch, {}});
}

// Hands each reduced packet to sink(index, payload).
template <typename T, typename Op, int kGroup, typename Sink>
__device__ __forceinline__ void reduce_run(const Turn& turn, const Workers& workers, const Run& run, Sink sink) {
  constexpr int kBatch = kInFlight / kGroup;
  const DeviceTeam& team = turn.team;
  const Packet* inbox = turn.region(team.rank);
  for (uint32_t start = workers.first; start < run.num_packets; start += kBatch * workers.count) {
    Accumulator<T, Op> totals[kBatch];
    for (int first_rank = 0; first_rank < team.num_ranks; first_rank += kGroup) {
      Receipt<kInFlight> receipt;
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        const int rank = first_rank + k % kGroup;
        const uint32_t index = start + k / kGroup * workers.count;
        const bool exists = rank < team.num_ranks && index < run.num_packets;
        receipt.payloads[k] = {};
        receipt.sources[k] = exists && rank != team.rank ? inbox + rank * size_t{run.slot_stride} + index : nullptr;
        if (exists && rank == team.rank) receipt.payloads[k] = load_payload(run.own, run.num_bytes, index);
      }
      if (const FaultCode fault = receipt.await(turn); fault != FaultCode::kNone) {
        return report_missing(turn, fault, first_rank + receipt.missing % kGroup);
      }
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        const int rank = first_rank + k % kGroup;
        if (rank == 0) totals[k / kGroup].set(receipt.payloads[k]);
        if (rank > 0 && rank < team.num_ranks) totals[k / kGroup].add(receipt.payloads[k]);
      }
    }
#pragma unroll
    for (int batch = 0; batch < kBatch; ++batch) {
      const uint32_t index = start + batch * workers.count;
      if (index < run.num_packets) sink(index, totals[batch].result(team.num_ranks));
    }
  }
}

// Receives every peer's shard into `output`: rank r's packet i comes to slot first_slot + r * shard_packets + i.
template <int kGroup>
__device__ __forceinline__ void gather_shards(const Turn& turn, const Workers& workers, const Shards& shards,
                                              const Packet* inbox, std::byte* output) {
  constexpr int kBatch = kInFlight / kGroup;
  const DeviceTeam& team = turn.team;
  const uint32_t shard_packets = shards.num_packets(0);
  for (uint32_t start = workers.first; start < shard_packets; start += kBatch * workers.count) {
    for (int first_rank = 0; first_rank < team.num_ranks; first_rank += kGroup) {
      Receipt<kInFlight> receipt;
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        const int rank = first_rank + k % kGroup;
        const uint32_t index = start + k / kGroup * workers.count;
        const bool comes = rank < team.num_ranks && rank != team.rank && index < shards.num_packets(rank);
        receipt.payloads[k] = {};
        receipt.sources[k] = comes ? inbox + rank * size_t{shard_packets} + index : nullptr;
      }
      if (const FaultCode fault = receipt.await(turn); fault != FaultCode::kNone) {
        return report_missing(turn, fault, first_rank + receipt.missing % kGroup);
      }
#pragma unroll
      for (int k = 0; k < kInFlight; ++k) {
        if (receipt.sources[k] == nullptr) continue;
        const int rank = first_rank + k % kGroup;
        const uint32_t index = start + k / kGroup * workers.count;
        store_payload(output + shards.begin(rank), shards.num_bytes(rank), index, receipt.payloads[k]);
      }
    }
  }
}

}  // namespace axon::device
