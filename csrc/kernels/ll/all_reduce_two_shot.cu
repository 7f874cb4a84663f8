// Two-shot all_reduce: rank r reduces shard r of all inputs in rank order, and sends the total to every peer.
//
// Steps: 2. Bytes sent by a rank: 2(n−1)/n·S, twice that on the wire. There is no barrier between the shots: each
// packet goes on as soon as its n parts have arrived. Source: reduce_scatter + all_gather (Rabenseifner, 2004) over
// direct links.
#include "kernels/dispatch.cuh"
#include "kernels/ll/exchange.cuh"
#include "kernels/ll/launch.hpp"

namespace axon::kernels::ll {

template <typename Arithmetic, int kGroup>
class TwoShot {
 public:
  __device__ __forceinline__ TwoShot(const cuda::DeviceTeam& team, Workers workers, const LlArguments& call)
      : workers_(workers), call_(call), shards_{call.num_packets * kPayloadBytes, call.num_bytes} {
    load_parts(team, workers.first, 0);
    for (int k = 0; k < kGroup; ++k) {
      if (k == team.rank) own_ = parts_[k];
    }
    if (team.rank >= kGroup && workers.first < shard(team.rank).count()) own_ = shard(team.rank).load(workers.first);
  }

  __device__ __forceinline__ void send(const EpochContext& context) {
    for (uint32_t index = workers_.first; index < call_.num_packets; index += workers_.count) {
      for (int first_rank = 0; first_rank < context.team.num_ranks; first_rank += kGroup) {
        if (index != workers_.first || first_rank != 0) load_parts(context.team, index, first_rank);
        send_parts(context, index, first_rank);
      }
    }
  }

  __device__ __forceinline__ void receive(const EpochContext& context) const {
    const cuda::DeviceTeam& team = context.team;
    const uint32_t totals = team.num_ranks * call_.num_packets;  // following the slots of the first shot
    const OutputSpan output = shards_.of(team.rank, call_.output);
    const InputSpan own = shard(team.rank);
    reduce_run<Arithmetic, kGroup>(context, workers_, {own.count(), call_.num_packets, call_.plan}, {own, own_},
                                   [&](uint32_t index, Payload total) {
                                     context.send_to_peers(totals + team.rank * call_.num_packets + index, total);
                                     output.store(index, total);
                                   });
    gather_shards<kGroup>(context, workers_, shards_, context.slots(team.rank) + totals, call_.output);
  }

 private:
  __device__ __forceinline__ InputSpan shard(int rank) const { return shards_.of(rank, call_.input); }

  // Loads packet `index` of kGroup ranks' shards, with all loads in flight together.
  __device__ __forceinline__ void load_parts(const cuda::DeviceTeam& team, uint32_t index, int first_rank) {
#pragma unroll
    for (int k = 0; k < kGroup; ++k) {
      const int rank = first_rank + k;
      if (rank < team.num_ranks && index < shard(rank).count()) parts_[k] = shard(rank).load(index);
    }
  }

  __device__ __forceinline__ void send_parts(const EpochContext& context, uint32_t index, int first_rank) const {
    const cuda::DeviceTeam& team = context.team;
#pragma unroll
    for (int k = 0; k < kGroup; ++k) {
      const int rank = first_rank + k;
      if (rank >= team.num_ranks || rank == team.rank || index >= shard(rank).count()) continue;
      store_packet(context.slots(rank) + (team.rank * call_.num_packets + index), packet_of(parts_[k], context.epoch));
    }
  }

  Workers workers_;
  const LlArguments& call_;
  StridedShards shards_;
  Payload parts_[kGroup]{};
  Payload own_{};
};

const void* ll_two_shot_kernel(DataType dtype, Reduction reduction, int num_ranks) {
  return with_arithmetic(dtype, reduction, [num_ranks]<typename Arithmetic>(Arithmetic) {
    return with_group(num_ranks, [](auto group) {
      return reinterpret_cast<const void*>(&ll_kernel<TwoShot<Arithmetic, decltype(group)::value>>);
    });
  });
}

size_t shard_packets(int num_ranks, size_t num_bytes) {
  return (packets_for(num_bytes) + num_ranks - 1) / num_ranks;
}

size_t two_shot_region_packets(int num_ranks, size_t num_bytes) noexcept {
  return num_ranks * (1 + 2 * shard_packets(num_ranks, num_bytes));
}

Status all_reduce_two_shot(const cuda::DeviceTeam& team, const LlCollective& call, cuda::StreamView stream) {
  const size_t num_bytes = call.num_elements * size_of(call.dtype);
  return launch(team, call,
                {.operation = cuda::DeviceOperation::kAllReduceTwoShot,
                 .kernel = ll_two_shot_kernel(call.dtype, call.reduction, team.num_ranks),
                 .region_packets = two_shot_region_packets(team.num_ranks, num_bytes),
                 .num_packets = shard_packets(team.num_ranks, num_bytes)},
                stream);
}

}  // namespace axon::kernels::ll
