// One-shot all_reduce: every rank sends its whole input to every peer and reduces all n inputs in rank order.
//
// Steps: 1. Bytes sent by a rank: (n−1)·S, twice that on the wire. Wins for small S, where the second step of two-shot
// costs more than the bytes: up to 128 KB at 4 ranks, always at 2 ranks. Source: NCCL's LL protocol, flattened.
#include "kernels/dispatch.cuh"
#include "kernels/ll/exchange.cuh"
#include "kernels/ll/launch.hpp"

namespace axon::kernels::ll {

template <typename Arithmetic, int kGroup>
class OneShot {
 public:
  __device__ __forceinline__ OneShot(const cuda::DeviceTeam&, Workers workers, const LlArguments& call)
      : workers_(workers), plan_(call.plan), input_(call.input, call.num_bytes), output_(call.output, call.num_bytes) {
    if (workers.first < input_.count()) first_ = input_.load(workers.first);
  }

  __device__ __forceinline__ void send(const EpochContext& context) const {
    send_run(context, workers_, {input_, first_}, context.team.rank * input_.count());
  }

  __device__ __forceinline__ void receive(const EpochContext& context) const {
    reduce_run<Arithmetic, kGroup>(context, workers_, {input_.count(), input_.count(), plan_}, {input_, first_},
                                   [this](uint32_t index, Payload total) { output_.store(index, total); });
  }

 private:
  Workers workers_;
  const ReducePlan& plan_;
  InputSpan input_;
  OutputSpan output_;
  Payload first_{};
};

const void* ll_one_shot_kernel(DataType dtype, Reduction reduction, int num_ranks) {
  return with_arithmetic(dtype, reduction, [num_ranks]<typename Arithmetic>(Arithmetic) {
    return with_group(num_ranks, [](auto group) {
      return reinterpret_cast<const void*>(&ll_kernel<OneShot<Arithmetic, decltype(group)::value>>);
    });
  });
}

size_t one_shot_region_packets(int num_ranks, size_t num_bytes) noexcept {
  return num_ranks * (1 + packets_for(num_bytes));
}

Status all_reduce_one_shot(const cuda::DeviceTeam& team, const LlCollective& call, cuda::StreamView stream) {
  const size_t num_bytes = call.num_elements * size_of(call.dtype);
  return launch(team, call,
                {.operation = cuda::DeviceOperation::kAllReduceOneShot,
                 .kernel = ll_one_shot_kernel(call.dtype, call.reduction, team.num_ranks),
                 .region_packets = one_shot_region_packets(team.num_ranks, num_bytes),
                 .num_packets = packets_for(num_bytes)},
                stream);
}

}  // namespace axon::kernels::ll
