// All_gather by LL packets: every rank sends its input to every peer. The rank's own shard is copied meanwhile.
//
// Steps: 1. Bytes sent by a rank: (n−1)·S, twice that on the wire. Wins up to some tens of KB per rank; above, plain
// stores and one flag move half the bytes. Elements are only moved, so one kernel serves all types.
#include "kernels/dispatch.cuh"
#include "kernels/ll/exchange.cuh"
#include "kernels/ll/launch.hpp"

namespace axon::kernels::ll {

template <int kGroup>
class AllGather {
 public:
  __device__ __forceinline__ AllGather(const cuda::DeviceTeam&, Workers workers, const LlArguments& call)
      : workers_(workers), call_(call), input_(call.input, call.num_bytes) {
    if (workers.first < input_.count()) first_ = input_.load(workers.first);
  }

  __device__ __forceinline__ void send(const EpochContext& context) const {
    send_run(context, workers_, {input_, first_}, context.team.rank * input_.count());
  }

  __device__ __forceinline__ void receive(const EpochContext& context) const {
    const cuda::DeviceTeam& team = context.team;
    const StridedShards shards{call_.num_bytes, team.num_ranks * call_.num_bytes};
    copy_own(shards.of(team.rank, call_.output));
    gather_shards<kGroup>(context, workers_, shards, context.slots(team.rank), call_.output);
  }

 private:
  __device__ __forceinline__ void copy_own(const OutputSpan& output) const {
    for (uint32_t index = workers_.first; index < input_.count(); index += workers_.count) {
      output.store(index, index == workers_.first ? first_ : input_.load(index));
    }
  }

  Workers workers_;
  const LlArguments& call_;
  InputSpan input_;
  Payload first_{};
};

const void* ll_all_gather_kernel(int num_ranks) {
  return with_group(num_ranks, [](auto group) {
    return reinterpret_cast<const void*>(&ll_kernel<AllGather<decltype(group)::value>>);
  });
}

Status all_gather(const cuda::DeviceTeam& team, const LlCollective& call, cuda::StreamView stream) {
  const size_t num_bytes = call.num_elements * size_of(call.dtype);
  return launch(team, call,
                {.operation = cuda::DeviceOperation::kAllGather,
                 .kernel = ll_all_gather_kernel(team.num_ranks),
                 .region_packets = one_shot_region_packets(team.num_ranks, num_bytes),
                 .num_packets = packets_for(num_bytes)},
                stream);
}

}  // namespace axon::kernels::ll
