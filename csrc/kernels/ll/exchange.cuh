// Building blocks of the LL algorithms: send a run to all peers, reduce a run over all ranks, gather all shards.
//
// Mostly a worker has one packet, and its own payload is in a register before the epoch is known. Then only the
// instructions between arrival and result matter. With more packets than workers, a worker keeps kInFlight accesses in
// flight, since each would cost a round trip on its own. Therefore kBatch packets of kGroup ranks are processed at
// once, and kBatch = 1 is tried first.
#pragma once

#include "kernels/ll/kernel.cuh"
#include "kernels/reduce.cuh"

namespace axon::kernels::ll {

inline constexpr int kMaxGroup = 8;  // ranks waited for at once
inline constexpr int kInFlight = 8;

// A tensor divided into one shard per rank, `stride` bytes apart. The last shards may be short or empty.
struct StridedShards {
  size_t stride;
  size_t total;

  template <typename Byte>
  __device__ __forceinline__ PayloadSpan<Byte> of(int rank, Byte* data) const {
    const size_t begin = min(rank * stride, total);
    return {data + begin, min(stride, total - begin)};
  }
};

// A run is the packets that every rank sends here: those of rank r start at slot r * slot_stride. This rank's own
// packets come from its input.
struct Run {
  uint32_t count;
  uint32_t slot_stride;
  const ReducePlan& plan;
};

// This rank's part of a run, and the preloaded payload of this worker's first packet.
struct OwnRun {
  InputSpan input;
  Payload first;
};

// Sends to the slots from slot_begin of every peer.
__device__ __forceinline__ void send_run(const EpochContext& context, const Workers& workers, const OwnRun& own,
                                         uint32_t slot_begin) {
  const InputSpan& input = own.input;
  const uint32_t count = input.count();
  if (workers.first < count) context.send_to_peers(slot_begin + workers.first, own.first);
  for (uint32_t start = workers.first + workers.count; start < count; start += kInFlight * workers.count) {
    Payload payloads[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const uint32_t index = start + k * workers.count;
      if (index < count) payloads[k] = input.load(index);
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const uint32_t index = start + k * workers.count;
      if (index < count) context.send_to_peers(slot_begin + index, payloads[k]);
    }
  }
}

// Packet k of a receipt is number start + k / kGroup * workers.count of rank first_rank + k % kGroup. Returns whether
// all arrived.
template <int kGroup, int kCount>
__device__ __forceinline__ bool await_group(const EpochContext& context, Receipt<kCount>& receipt, int first_rank) {
  const auto rank_of = [first_rank](int k) { return first_rank + k % kGroup; };
  const cuda::FaultCode fault = receipt.await_all(context, rank_of);
  if (fault == cuda::FaultCode::kNone) return true;
  report_fault(context.team,
               {.code = fault, .peer = rank_of(receipt.missing()), .sequence = context.epoch, .ours = context.ours});
  return false;
}

// own(index) returns this rank's payload; sink(index, payload) receives the reduced ones.
template <typename Arithmetic, int kGroup, int kBatch, typename Own, typename Sink>
__device__ __forceinline__ void reduce_batches(const EpochContext& context, const Workers& workers, const Run& run,
                                               Own own, Sink sink) {
  const cuda::DeviceTeam& team = context.team;
  const cuda::LlPacket* inbox = context.slots(team.rank);
  for (uint32_t start = workers.first; start < run.count; start += kBatch * workers.count) {
    Payload mine[kBatch];
#pragma unroll
    for (int batch = 0; batch < kBatch; ++batch) {
      const uint32_t index = start + batch * workers.count;
      if (index < run.count) mine[batch] = own(index);
    }
    Accumulator<Arithmetic, Payload> totals[kBatch];
    int first_rank = 0;
    do {
      Receipt<kBatch * kGroup> receipt;
#pragma unroll
      for (int k = 0; k < kBatch * kGroup; ++k) {
        const int rank = first_rank + k % kGroup;
        const uint32_t index = start + k / kGroup * workers.count;
        const bool comes = rank < team.num_ranks && rank != team.rank && index < run.count;
        receipt.sources[k] = comes ? inbox + (rank * run.slot_stride + index) : nullptr;
      }
      if (!await_group<kGroup>(context, receipt, first_rank)) return;
#pragma unroll
      for (int k = 0; k < kBatch * kGroup; ++k) {
        const int rank = first_rank + k % kGroup;
        const Payload payload = rank == team.rank ? mine[k / kGroup] : receipt.payloads[k];
        if (rank == 0) {
          totals[k / kGroup].set(run.plan, payload);
        } else if (rank < team.num_ranks) {
          totals[k / kGroup].add(run.plan, payload);
        }
      }
      first_rank += kGroup;
    } while (kGroup == kMaxGroup && first_rank < team.num_ranks);
#pragma unroll
    for (int batch = 0; batch < kBatch; ++batch) {
      const uint32_t index = start + batch * workers.count;
      if (index < run.count) sink(index, totals[batch].result(run.plan));
    }
  }
}

// sink(index, payload) receives the reduced packets.
template <typename Arithmetic, int kGroup, typename Sink>
__device__ __forceinline__ void reduce_run(const EpochContext& context, const Workers& workers, const Run& run,
                                           const OwnRun& own, Sink sink) {
  if (run.count <= workers.count) {
    reduce_batches<Arithmetic, kGroup, 1>(context, workers, run, [&own](uint32_t) { return own.first; }, sink);
  } else {
    reduce_batches<Arithmetic, kGroup, kInFlight / kGroup>(
        context, workers, run, [&own](uint32_t index) { return own.input.load(index); }, sink);
  }
}

template <int kGroup, int kBatch>
__device__ __forceinline__ void gather_batches(const EpochContext& context, const Workers& workers,
                                               const StridedShards& shards, const cuda::LlPacket* inbox,
                                               std::byte* output) {
  const cuda::DeviceTeam& team = context.team;
  const uint32_t slot_stride = shards.of(0, output).count();
  for (uint32_t start = workers.first; start < slot_stride; start += kBatch * workers.count) {
    int first_rank = 0;
    do {
      Receipt<kBatch * kGroup> receipt;
#pragma unroll
      for (int k = 0; k < kBatch * kGroup; ++k) {
        const int rank = first_rank + k % kGroup;
        const uint32_t index = start + k / kGroup * workers.count;
        const bool comes = rank < team.num_ranks && rank != team.rank && index < shards.of(rank, output).count();
        receipt.sources[k] = comes ? inbox + (rank * slot_stride + index) : nullptr;
      }
      if (!await_group<kGroup>(context, receipt, first_rank)) return;
#pragma unroll
      for (int k = 0; k < kBatch * kGroup; ++k) {
        if (receipt.sources[k] == nullptr) continue;
        shards.of(first_rank + k % kGroup, output).store(start + k / kGroup * workers.count, receipt.payloads[k]);
      }
      first_rank += kGroup;
    } while (kGroup == kMaxGroup && first_rank < team.num_ranks);
  }
}

// Receives every peer's shard of `output`. The packets of rank r start at inbox[r * c], with c packets in the first
// shard.
template <int kGroup>
__device__ __forceinline__ void gather_shards(const EpochContext& context, const Workers& workers,
                                              const StridedShards& shards, const cuda::LlPacket* inbox,
                                              std::byte* output) {
  if (shards.of(0, output).count() <= workers.count) {
    gather_batches<kGroup, 1>(context, workers, shards, inbox, output);
  } else {
    gather_batches<kGroup, kInFlight / kGroup>(context, workers, shards, inbox, output);
  }
}

}  // namespace axon::kernels::ll
