// Reductions over direct links in one pipeline. Every contributor sends shard r of its input to rank r. Rank r reduces
// the parts of each chunk in rank order, as soon as all have arrived. It keeps the total and sends it to every
// receiver.
//
// Steps: 2 (reduce_scatter: 1). Bytes sent by a rank: all_reduce 2(n−1)/n·S, 16/15 of that on the wire. Source:
// reduce_scatter + all_gather (Rabenseifner, 2004) over direct links.
//
// Totals have channels of their own, numbered after those of the contributions. Within a channel, senders wait for
// reducing jobs, and reducing jobs wait for senders and for the receivers of totals. The receivers wait for nothing but
// the totals, so there is no circular wait.
#pragma once

#include "kernels/ll128/kernel.cuh"
#include "kernels/reduce.cuh"

namespace axon::kernels::ll128 {

struct ReduceArguments {
  cuda::DeviceDescriptor descriptor;
  ReducePlan plan;
  uint32_t contributors;  // one bit per rank that has an input
  uint32_t receivers;     // ranks that get the totals of all shards
  uint32_t first_total_channel;
  When when;
  JobTable jobs;
  const std::byte* inputs[cuda::kMaxTeamRanks];  // shard r of this rank's input
  std::byte* outputs[cuda::kMaxTeamRanks];       // destination of the total of shard r; null if not kept here
  uint64_t shard_bytes[cuda::kMaxTeamRanks];
};

// Kernels for short messages reduce one chunk at a time, with less code to fetch before the first is done. Kernels for
// long messages process more at once, and use the registers for it.
struct ShortReduce {
  static constexpr uint32_t kChunks = 1;
  static constexpr int kWarps = kMostWarpsPerBlock;
};
struct LongReduce {
  static constexpr uint32_t kChunks = 4;
  static constexpr int kWarps = kMostWarpsPerLongReduceBlock;
};

// The reduction of the parts of a batch of chunks.
template <typename Arithmetic, uint32_t kChunks>
class BatchTotals {
 public:
  __device__ __forceinline__ explicit BatchTotals(const ReducePlan& plan) : plan_(plan) {}

  __device__ __forceinline__ void set(const Share (&part)[kChunks]) {
#pragma unroll
    for (uint32_t k = 0; k < kChunks; ++k) {
      totals_[k][0].set(plan_, part[k].first);
      totals_[k][1].set(plan_, part[k].second);
    }
  }

  __device__ __forceinline__ void add(const Share (&part)[kChunks]) {
#pragma unroll
    for (uint32_t k = 0; k < kChunks; ++k) {
      totals_[k][0].add(plan_, part[k].first);
      totals_[k][1].add(plan_, part[k].second);
    }
  }

  __device__ __forceinline__ void result(Share (&totals)[kChunks]) {
#pragma unroll
    for (uint32_t k = 0; k < kChunks; ++k) totals[k] = {totals_[k][0].result(plan_), totals_[k][1].result(plan_)};
  }

 private:
  const ReducePlan& plan_;
  Accumulator<Arithmetic, Vector16> totals_[kChunks][2];
};

// One warp's part in reducing the rank's own shard. Two loads are in flight: this rank's part of the next batch, and
// the part of the next peer.
template <typename Arithmetic, uint32_t kChunks>
class Reducer {
 public:
  __device__ __forceinline__ Reducer(const WaitContext& wait_context, const ReduceArguments& call, const Job& job)
      : rank_(wait_context.team.rank),
        contributors_(call.contributors),
        receivers_(call.receivers & ~(1u << rank_)),
        input_(call.inputs[rank_], call.shard_bytes[rank_]),
        output_(call.outputs[rank_], call.outputs[rank_] == nullptr ? 0 : call.shard_bytes[rank_]),
        in_(wait_context, peers(), job.channel),
        out_(wait_context, receivers_, call.first_total_channel + job.channel),
        totals_(call.plan),
        stride_(input_.num_chunks(), job.num_channels, job.channel) {
    begin_own(stride_);
    in_.poll(first_of(peers()), stride_.batch_size(), part_);
  }

  __device__ __forceinline__ void run() {
    for (; stride_.has_more(); stride_.advance()) {
      if (!take_parts() || !pass_on()) return;
    }
    in_.finish();
    out_.finish();
  }

 private:
  static __device__ __forceinline__ int first_of(uint32_t ranks) { return __ffs(static_cast<int>(ranks)) - 1; }
  __device__ __forceinline__ uint32_t peers() const { return contributors_ & ~(1u << rank_); }

  __device__ __forceinline__ void begin_own(const Stride<kChunks>& stride) {
    if ((contributors_ >> rank_ & 1) != 0) load(input_, stride, own_);
  }

  // Takes all parts of one batch. Returns false after a fault.
  __device__ __forceinline__ bool take_parts() {
    const Stride<kChunks> next = stride_.batches_on(1);
    for (uint32_t left = contributors_; left != 0; left &= left - 1) {
      const bool is_first = left == contributors_;
      const int rank = first_of(left);
      if (rank == rank_) {
        is_first ? totals_.set(own_) : totals_.add(own_);
        begin_own(next);
        continue;
      }
      if (!in_.await(rank, stride_.batch_size(), part_)) return false;
      is_first ? totals_.set(part_) : totals_.add(part_);
      const uint32_t later = left & (left - 1) & peers();
      in_.poll(first_of(later != 0 ? later : peers()), (later != 0 ? stride_ : next).batch_size(), part_);
    }
    return true;
  }

  // Returns false after a fault.
  __device__ __forceinline__ bool pass_on() {
    Share totals[kChunks];
    totals_.result(totals);
    if (!out_.await_room(stride_.batch_size())) return false;
    for (uint32_t left = receivers_; left != 0; left &= left - 1) {
      out_.send(first_of(left), stride_.batch_size(), totals);
    }
    store(output_, stride_, totals);
    return true;
  }

  int rank_;
  uint32_t contributors_;
  uint32_t receivers_;
  InputMessage input_;
  OutputMessage output_;
  ReceiveChannels in_;
  SendChannels out_;
  BatchTotals<Arithmetic, kChunks> totals_;
  Stride<kChunks> stride_;
  Share own_[kChunks];
  Share part_[kChunks];
};

template <typename Arithmetic, typename Span>
__device__ __forceinline__ void do_job(const cuda::DeviceTeam& team, const ReduceArguments& call, const Job& job,
                                       uint32_t fault) {
  if (job.group == kControlGroup) {
    meet(team, fault, call.when, call.descriptor, call.descriptor);
    return;
  }
  const WaitContext wait_context{team, team.layout.traffic[static_cast<int>(cuda::TrafficClass::kCollective)],
                                 call.descriptor, fault};
  if (job.group == kOwnGroup) {
    Reducer<Arithmetic, Span::kChunks> reducer(wait_context, call, job);
    if (wait_context.is_sound()) reducer.run();
    return;
  }
  const bool sends = job.group < kInGroups;
  const int owner = rank_of_peer(team.rank, job.group - (sends ? kOutGroups : kInGroups));
  if (sends) {
    SendChannels out(wait_context, 1u << owner, job.channel);
    Sender sender(out, InputMessage(call.inputs[owner], call.shard_bytes[owner]), job);
    if (wait_context.is_sound()) sender.run(owner);
  } else {
    ReceiveChannels in(wait_context, 1u << owner, call.first_total_channel + job.channel);
    Receiver receiver(in, OutputMessage(call.outputs[owner], call.shard_bytes[owner]), owner, job);
    if (wait_context.is_sound()) receiver.run();
  }
}

template <typename Arithmetic, typename Span>
__global__ void __launch_bounds__(32 * Span::kWarps)
    ll128_reduce_kernel(const __grid_constant__ cuda::DeviceTeam team, const __grid_constant__ ReduceArguments call) {
  await_stream();
  const uint32_t fault = load_relaxed(&team.state->fault);
  Job job;
  if (!find_job(call.jobs, job) || !has_work(team, call.when)) return;
  do {
    do_job<Arithmetic, Span>(team, call, job, fault);
  } while (job.advance());
}

}  // namespace axon::kernels::ll128
