// Two-shot all_reduce: rank r reduces shard r of all inputs, in rank order, and sends the total to every peer.
//
// Steps: 2. Bytes out a rank: 2(n−1)/n·S, twice that on the wire. No barrier between the shots: each packet goes on as
// soon as its n parts are there. Source: reduce_scatter + all_gather (Rabenseifner, 2004) over direct edges.
#include "device/dispatch.cuh"
#include "device/packet_exchange.cuh"
#include "device/packet_launch.hpp"

namespace axon {
namespace device {

template <typename T, typename Op, int kGroup>
struct TwoShot {
  static __device__ __forceinline__ Shards shards_of(const PacketArguments& call) {
    return {call.num_packets * kPayloadBytes, call.num_bytes};
  }

  static __device__ __forceinline__ void send(const Turn& turn, const Workers& workers, const PacketArguments& call) {
    const DeviceTeam& team = turn.team;
    const Shards shards = shards_of(call);
    for (uint32_t index = workers.first; index < call.num_packets; index += workers.count) {
      for (int step = 1; step < team.num_ranks; ++step) {
        const int peer = team.rank + step < team.num_ranks ? team.rank + step : team.rank + step - team.num_ranks;
        if (index >= shards.num_packets(peer)) continue;
        const Payload part = load_payload(call.input + shards.begin(peer), shards.num_bytes(peer), index);
        turn.send(turn.region(peer) + team.rank * size_t{call.num_packets} + index, part);
      }
    }
  }

  static __device__ __forceinline__ void receive(const Turn& turn, const Workers& workers,
                                                 const PacketArguments& call) {
    const DeviceTeam& team = turn.team;
    const Shards shards = shards_of(call);
    const size_t mine = shards.begin(team.rank), num_bytes = shards.num_bytes(team.rank);
    const size_t totals = team.num_ranks * size_t{call.num_packets};  // behind the slots of the first shot
    const Run shard{call.input + mine, num_bytes, shards.num_packets(team.rank), call.num_packets};
    reduce_run<T, Op, kGroup>(turn, workers, shard, [&](uint32_t index, Payload total) {
      turn.send_to_peers(totals + team.rank * size_t{call.num_packets} + index, total);
      store_payload(call.output + mine, num_bytes, index, total);
    });
    gather_shards<kGroup>(turn, workers, shards, turn.region(team.rank) + totals, call.output);
  }
};

size_t shard_packets(int num_ranks, size_t num_bytes) {
  return (packets_for(num_bytes) + num_ranks - 1) / num_ranks;
}

const void* two_shot_kernel(DataType dtype, Reduction reduction, int num_ranks) {
  return reducing_kernel<TwoShot>(dtype, reduction, num_ranks);
}

}  // namespace device

size_t two_shot_region_packets(int num_ranks, size_t num_bytes) noexcept {
  return num_ranks * (1 + 2 * device::shard_packets(num_ranks, num_bytes));
}

Status all_reduce_two_shot(const DeviceTeam& team, const PacketCollective& call, StreamView stream) {
  const size_t num_bytes = call.num_elements * size_of(call.dtype);
  return device::launch_packets(team, call,
                                {.operation = DeviceOperation::kAllReduceTwoShot,
                                 .kernel = device::two_shot_kernel(call.dtype, call.reduction, team.num_ranks),
                                 .region_packets = two_shot_region_packets(team.num_ranks, num_bytes),
                                 .num_packets = device::shard_packets(team.num_ranks, num_bytes)},
                                stream);
}

}  // namespace axon
