// All_gather by packets: every rank sends its input to every peer; the own shard is copied on the way.
//
// Steps: 1. Bytes out a rank: (n−1)·S, twice that on the wire. Wins to some tens of KB a rank; above, plain stores and
// one flag move half the bytes. Elements are only moved, so one kernel serves all types.
#include "device/dispatch.cuh"
#include "device/packet_exchange.cuh"
#include "device/packet_launch.hpp"

namespace axon {
namespace device {

template <int kGroup>
struct AllGather {
  static __device__ __forceinline__ void send(const Turn& turn, const Workers& workers, const PacketArguments& call) {
    const size_t slot = turn.team.rank * size_t{call.num_packets};
    std::byte* own = call.output + turn.team.rank * call.num_bytes;
    for (uint32_t index = workers.first; index < call.num_packets; index += workers.count) {
      const Payload payload = load_payload(call.input, call.num_bytes, index);
      turn.send_to_peers(slot + index, payload);
      if (own != call.input) store_payload(own, call.num_bytes, index, payload);
    }
  }

  static __device__ __forceinline__ void receive(const Turn& turn, const Workers& workers,
                                                 const PacketArguments& call) {
    const Shards shards{call.num_bytes, turn.team.num_ranks * call.num_bytes};
    gather_shards<kGroup>(turn, workers, shards, turn.region(turn.team.rank), call.output);
  }
};

const void* all_gather_kernel(int num_ranks) {
  return with_group(num_ranks, [](auto group) {
    return reinterpret_cast<const void*>(&packet_kernel<AllGather<decltype(group)::value>>);
  });
}

}  // namespace device

Status all_gather_packets(const DeviceTeam& team, const PacketCollective& call, StreamView stream) {
  const size_t num_bytes = call.num_elements * size_of(call.dtype);
  return device::launch_packets(team, call,
                                {.operation = DeviceOperation::kAllGather,
                                 .kernel = device::all_gather_kernel(team.num_ranks),
                                 .region_packets = one_shot_region_packets(team.num_ranks, num_bytes),
                                 .num_packets = device::packets_for(num_bytes)},
                                stream);
}

}  // namespace axon
