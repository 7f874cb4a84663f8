// One-shot all_reduce: every rank sends its whole input to every peer and reduces all n of them, in rank order.
//
// Steps: 1. Bytes out a rank: (n−1)·S, twice that on the wire. Wins for small S, where the second flight of two-shot
// costs more than the bytes: to ~128 KB, at 2 ranks always. Source: the LL protocol of NCCL's tree and ring, flattened.
#include "device/dispatch.cuh"
#include "device/packet_exchange.cuh"
#include "device/packet_launch.hpp"

namespace axon {
namespace device {

template <typename T, typename Op, int kGroup>
struct OneShot {
  static __device__ __forceinline__ void send(const Turn& turn, const Workers& workers, const PacketArguments& call) {
    const size_t slot = turn.team.rank * size_t{call.num_packets};
    for (uint32_t index = workers.first; index < call.num_packets; index += workers.count) {
      turn.send_to_peers(slot + index, load_payload(call.input, call.num_bytes, index));
    }
  }

  static __device__ __forceinline__ void receive(const Turn& turn, const Workers& workers,
                                                 const PacketArguments& call) {
    const Run all{call.input, call.num_bytes, call.num_packets, call.num_packets};
    reduce_run<T, Op, kGroup>(turn, workers, all, [&call](uint32_t index, Payload total) {
      store_payload(call.output, call.num_bytes, index, total);
    });
  }
};

const void* one_shot_kernel(DataType dtype, Reduction reduction, int num_ranks) {
  return reducing_kernel<OneShot>(dtype, reduction, num_ranks);
}

}  // namespace device

size_t one_shot_region_packets(int num_ranks, size_t num_bytes) noexcept {
  return num_ranks * (1 + device::packets_for(num_bytes));
}

Status all_reduce_one_shot(const DeviceTeam& team, const PacketCollective& call, StreamView stream) {
  const size_t num_bytes = call.num_elements * size_of(call.dtype);
  return device::launch_packets(team, call,
                                {.operation = DeviceOperation::kAllReduceOneShot,
                                 .kernel = device::one_shot_kernel(call.dtype, call.reduction, team.num_ranks),
                                 .region_packets = one_shot_region_packets(team.num_ranks, num_bytes),
                                 .num_packets = device::packets_for(num_bytes)},
                                stream);
}

}  // namespace axon
