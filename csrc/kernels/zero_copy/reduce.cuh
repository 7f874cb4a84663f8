// Reductions that read the peers' inputs and write the peers' outputs. Rank r reads shard r of all inputs, reduces it
// in rank order and stores the total wherever it belongs.
//
// Steps: 1. Bytes received by a rank: (n−1)/n·S; for all_reduce it sends as many. Source: reduce_scatter + all_gather
// (Rabenseifner, 2004), both one-sided. Each warp has a ring of stages in shared memory. Asynchronous copies fill a
// stage with a chunk of each input, the warp reduces these in place, and the totals are stored. So few multiprocessors
// can saturate the links.
#pragma once

#include "kernels/ll128/message.cuh"
#include "kernels/reduce.cuh"
#include "kernels/staged_copies.cuh"
#include "kernels/zero_copy/handshake.cuh"

namespace axon::kernels::zero_copy {

inline constexpr uint32_t kZeroCopyReduceWarps = 8;
inline constexpr uint32_t kZeroCopyReduceStages = 3;

struct ZeroCopyReduceArguments {
  ZeroCopyHandshake handshake;
  ReducePlan plan;
  const std::byte* input;  // the rank's own shard of its own input
  std::byte* output;       // … of its own output; null if the total is not kept here
  uint64_t shard_bytes;
  uint32_t chunk_bytes;  // of each input, per stage
};

// One warp's part: chunks first, first + step, … Thread r holds the state for rank r. Loads may begin before it is
// certain that all ranks agree, since loads have no side effects.
template <typename Arithmetic>
class ZeroCopyReducer {
 public:
  using Copies = StagedCopies<kZeroCopyReduceStages>;

  __device__ __forceinline__ ZeroCopyReducer(const ZeroCopyReduceArguments& call, int own_rank, uint32_t first,
                                             uint32_t step, std::byte* stages, typename Copies::Barriers& barriers)
      : call_(call),
        thread_(ll128::thread_of_warp()),
        num_ranks_(static_cast<uint32_t>(call.plan.num_ranks)),
        is_own_(static_cast<int>(thread_) == own_rank),
        first_(first),
        step_(step),
        stages_(stages),
        num_chunks_(static_cast<uint32_t>((call.shard_bytes + call.chunk_bytes - 1) / call.chunk_bytes)),
        copies_(barriers) {}

  // Starts loading all stages but one.
  __device__ __forceinline__ void begin(const RemoteTensors (&remotes)[cuda::kMaxTeamRanks]) {
    if (thread_ < num_ranks_) source_ = is_own_ ? call_.input : remotes[thread_].readable;
    copies_.begin();
    for (uint32_t stage = 0; stage < kBegun; ++stage) load(first_ + stage * step_, stage);
  }

  __device__ __forceinline__ void run(const RemoteTensors (&remotes)[cuda::kMaxTeamRanks]) {
    if (thread_ < num_ranks_) target_ = is_own_ ? call_.output : remotes[thread_].writable;
    uint32_t number = 0;
    for (uint32_t chunk = first_; chunk < num_chunks_; chunk += step_, ++number) {
      copies_.release_stages();  // the previous one is loaded again next
      load(chunk + kBegun * step_, (number + kBegun) % kZeroCopyReduceStages);
      const uint32_t stage = number % kZeroCopyReduceStages;
      copies_.await_loads(stage, number / kZeroCopyReduceStages);
      take(chunk, parts_of(stage));
    }
    copies_.finish();
  }

  // Called instead of run(): waits for loads that have begun, and discards them.
  __device__ __forceinline__ void abandon() { copies_.await_first_loads(); }

 private:
  static constexpr uint32_t kBegun = kZeroCopyReduceStages - 1;

  // Returns the chunks of all ranks in a stage. That of rank 0 becomes the total.
  __device__ __forceinline__ StageParts parts_of(uint32_t stage) const {
    return {
        .shared = stages_ + stage * num_ranks_ * call_.chunk_bytes, .stride = call_.chunk_bytes, .count = num_ranks_};
  }

  __device__ __forceinline__ uint64_t offset_of(uint32_t chunk) const { return uint64_t{chunk} * call_.chunk_bytes; }
  __device__ __forceinline__ uint32_t bytes_of(uint32_t chunk) const {
    return static_cast<uint32_t>(min(uint64_t{call_.chunk_bytes}, call_.shard_bytes - offset_of(chunk)));
  }

  // Loads all but the partial vector at the shard's end.
  __device__ __forceinline__ void load(uint32_t chunk, uint32_t stage) {
    const uint32_t num_whole = chunk < num_chunks_ ? bytes_of(chunk) / kVectorBytes * kVectorBytes : 0;
    copies_.load(stage, parts_of(stage), source_ + offset_of(chunk), num_whole);
  }

  // Reduces a chunk that has arrived, and stores the total.
  __device__ __forceinline__ void take(uint32_t chunk, StageParts parts) {
    const uint32_t num_bytes = bytes_of(chunk);
    const uint32_t num_rest = num_bytes % kVectorBytes, num_whole = num_bytes - num_rest;
    Vector16* cut = reinterpret_cast<Vector16*>(parts.shared + num_whole);
    if (num_rest != 0) {
      if (thread_ < num_ranks_) {
        cut[thread_ * (call_.chunk_bytes / kVectorBytes)] =
            ll128::load_partial_vector(source_ + offset_of(chunk) + num_whole, num_rest);
      }
      __syncwarp();
    }
    reduce(reinterpret_cast<Vector16*>(parts.shared), ll128::count_vectors(num_bytes));
    std::byte* const target = target_ != nullptr ? target_ + offset_of(chunk) : nullptr;
    copies_.store(target, parts, num_whole);
    if (num_rest != 0 && target != nullptr) ll128::store_partial_vector(target + num_whole, num_rest, 0, *cut);
  }

  // Processes kWide vectors per thread at a time, so that their loads do not wait for each other's sums. Beyond the
  // end, the first vector is processed again.
  __device__ __forceinline__ void reduce(Vector16* parts, uint32_t num_vectors) const {
    constexpr uint32_t kWide = 4;
    const uint32_t stride = call_.chunk_bytes / kVectorBytes;
#pragma unroll 1
    for (uint32_t first = thread_; first < num_vectors; first += 32 * kWide) {
      Accumulator<Arithmetic, Vector16> totals[kWide];
      Vector16 next[kWide];
      uint32_t indices[kWide];
#pragma unroll
      for (uint32_t k = 0; k < kWide; ++k) indices[k] = first + 32 * k < num_vectors ? first + 32 * k : first;
#pragma unroll
      for (uint32_t k = 0; k < kWide; ++k) next[k] = load_shared(&parts[indices[k]]);
#pragma unroll
      for (uint32_t k = 0; k < kWide; ++k) totals[k].set(call_.plan, next[k]);
#pragma unroll 1
      for (uint32_t rank = 1; rank < num_ranks_; ++rank) {
#pragma unroll
        for (uint32_t k = 0; k < kWide; ++k) next[k] = load_shared(&parts[rank * stride + indices[k]]);
#pragma unroll
        for (uint32_t k = 0; k < kWide; ++k) totals[k].add(call_.plan, next[k]);
      }
#pragma unroll
      for (uint32_t k = 0; k < kWide; ++k) {
        if (k == 0 || indices[k] != first) parts[indices[k]] = totals[k].result(call_.plan);
      }
    }
  }

  const ZeroCopyReduceArguments& call_;
  uint32_t thread_;
  uint32_t num_ranks_;
  bool is_own_;
  uint32_t first_;
  uint32_t step_;
  const std::byte* source_ = nullptr;
  std::byte* target_ = nullptr;
  std::byte* stages_;
  uint32_t num_chunks_;
  Copies copies_;
};

extern __shared__ __align__(128) std::byte reduce_stages[];

template <typename Arithmetic>
__global__ void __launch_bounds__(32 * kZeroCopyReduceWarps)
    zero_copy_reduce_kernel(const __grid_constant__ cuda::DeviceTeam team,
                            const __grid_constant__ ZeroCopyReduceArguments call) {
  __shared__ RemoteTensors remotes[cuda::kMaxTeamRanks];
  __shared__ typename ZeroCopyReducer<Arithmetic>::Copies::Barriers barriers[kZeroCopyReduceWarps];
  await_stream();
  const ZeroCopyContext context(team, call.handshake.descriptor, current_epoch(team, blockIdx.x));
  const uint32_t warp = threadIdx.x / 32;
  const uint32_t stage_bytes = kZeroCopyReduceStages * static_cast<uint32_t>(team.num_ranks) * call.chunk_bytes;
  ZeroCopyReducer<Arithmetic> reducer(call, team.rank, warp * gridDim.x + blockIdx.x, kZeroCopyReduceWarps * gridDim.x,
                                      reduce_stages + warp * stage_bytes, barriers[warp]);
  const bool is_early = find_remote_tensors(context, call.handshake, remotes);
  if (is_early) reducer.begin(remotes);
  const Action action = agree(context, call.handshake, remotes);
  if (action == Action::kMove) {
    if (!is_early) reducer.begin(remotes);
    reducer.run(remotes);
  } else if (is_early) {
    reducer.abandon();
  }
  finish(context, call.handshake, action, remotes);
}

}  // namespace axon::kernels::zero_copy
