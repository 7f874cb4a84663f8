// Reductions over direct edges, in one pipeline: every contributor sends shard r of its input to rank r; rank r folds
// the parts of each frame as soon as all are there, in rank order, keeps the total and sends it to every receiver.
//
// Steps: 2 (reduce_scatter: 1). Bytes out a rank: all_reduce 2(n−1)/n·S, 16/15 on the wire. Sources: reduce_scatter +
// all_gather (Rabenseifner, 2004) over direct edges. Totals have lanes of their own, behind those of the contributions:
// senders wait for folding warps, folding warps for senders and for the receivers of totals, and these for nobody, so
// nothing can wait in a circle.
#pragma once

#include "device/fold.cuh"
#include "device/line_kernel.cuh"

namespace axon::device {

struct FoldArguments {
  DeviceDescriptor descriptor;
  FoldPlan plan;
  uint32_t contributors;  // a bit a rank: has an input
  uint32_t receivers;     // gets the totals of all shards
  uint32_t first_total_lane;
  JobTable jobs;
  const std::byte* inputs[kMaxTeamRanks];  // shard r of this rank's input
  std::byte* outputs[kMaxTeamRanks];       // where the total of shard r goes here; null: nowhere
  uint64_t shard_bytes[kMaxTeamRanks];
};

// Totals take registers: fewer frames at a time where they are wider than what travels.
template <typename Arithmetic>
inline constexpr uint32_t kFoldBatch = sizeof(typename Arithmetic::Element) < 4 ? 2 : 4;

// The parts of a batch of frames, folded.
template <typename Arithmetic, uint32_t kBatch>
class Fold {
 public:
  __device__ __forceinline__ explicit Fold(const FoldPlan& plan) : plan_(plan) {}

  __device__ __forceinline__ void take(const Share (&parts)[kBatch]) {
#pragma unroll
    for (uint32_t k = 0; k < kBatch; ++k) {
      if (is_first_) {
        totals_[k][0].set(plan_, parts[k].first);
        totals_[k][1].set(plan_, parts[k].second);
      } else {
        totals_[k][0].add(plan_, parts[k].first);
        totals_[k][1].add(plan_, parts[k].second);
      }
    }
    is_first_ = false;
  }

  __device__ __forceinline__ void result(Share (&totals)[kBatch]) const {
#pragma unroll
    for (uint32_t k = 0; k < kBatch; ++k) totals[k] = {totals_[k][0].result(plan_), totals_[k][1].result(plan_)};
  }

 private:
  const FoldPlan& plan_;
  bool is_first_ = true;
  Accumulator<Arithmetic, Granule> totals_[kBatch][2];
};

template <typename Arithmetic>
__device__ __forceinline__ void fold_shard(const Site& site, const FoldArguments& call, const Job& job) {
  constexpr uint32_t kBatch = kFoldBatch<Arithmetic>;
  const DeviceTeam& team = site.team;
  const uint32_t peers = ~(1u << team.rank);
  const InputMessage own(call.inputs[team.rank], call.shard_bytes[team.rank]);
  const OutputMessage output(call.outputs[team.rank], call.shard_bytes[team.rank]);
  InLanes in(site, call.contributors & peers, job.lane);
  OutLanes out(site, call.receivers & peers, call.first_total_lane + job.lane);
  for (Stride<kBatch> stride(own.num_frames(), job.num_lanes, job.lane); stride.has_more(); stride.advance()) {
    Fold<Arithmetic, kBatch> fold(call.plan);
    Share shares[kBatch];
    for (int rank = 0; rank < team.num_ranks; ++rank) {
      if ((call.contributors >> rank & 1) == 0) continue;
      if (rank == team.rank) {
        load(own, stride, shares);
      } else if (!in.receive(rank, stride.batch_size(), shares)) {
        return;
      }
      fold.take(shares);
    }
    fold.result(shares);
    if (!out.await_room(stride.batch_size())) return;
    for (int rank = 0; rank < team.num_ranks; ++rank) {
      if (rank != team.rank && (call.receivers >> rank & 1) != 0) out.send(rank, stride.batch_size(), shares);
    }
    if (call.outputs[team.rank] != nullptr) store(output, stride, shares);
  }
  in.finish();
  out.finish();
}

template <typename Arithmetic>
__global__ void __launch_bounds__(32 * kMaxWarps)
    fold_kernel(const __grid_constant__ DeviceTeam team, const __grid_constant__ FoldArguments call) {
  Job job;
  if (!find_job(call.jobs, job) || load_relaxed(&team.state->fault) != 0) return;
  if (job.group == kControlGroup) return meet(team, call.descriptor, call.descriptor);
  const Site site{team, team.layout.channels[static_cast<int>(Channel::kCollective)], call.descriptor};
  if (job.group == kOwnGroup) return fold_shard<Arithmetic>(site, call, job);
  const bool sends = job.group < kInGroups;
  const int owner = rank_of_peer(team.rank, job.group - (sends ? kOutGroups : kInGroups));
  if (sends) {
    OutLanes out(site, 1u << owner, job.lane);
    send_message(out, InputMessage(call.inputs[owner], call.shard_bytes[owner]), owner, job);
  } else {
    InLanes in(site, 1u << owner, call.first_total_lane + job.lane);
    receive_message(in, OutputMessage(call.outputs[owner], call.shard_bytes[owner]), owner, job);
  }
}

}  // namespace axon::device
