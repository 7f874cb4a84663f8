// Code shared by LL128 kernels: a warp finds its jobs (ll128/launch.hpp) and does them.
//
// A job waits for jobs of other ranks, never for one of its own rank. It waits only for those of its own channel, and
// for these not in a circle. All warps are resident at once. A warp that has several jobs does them in the order of
// their channels, and ranks may differ in how many it has. So all jobs of the first channel that is not done are
// running, on all ranks, and all make progress.
#pragma once

#include "kernels/barrier.cuh"
#include "kernels/ll128/channels.cuh"
#include "kernels/ll128/launch.hpp"
#include "kernels/ll128/message.cuh"

namespace axon::kernels::ll128 {

struct Job {
  uint32_t group;
  uint32_t channel;       // in the group
  uint32_t num_channels;  // of the group
  uint32_t num_warps;     // of the group

  // Goes on to this warp's next job. Returns false if there is none.
  __device__ __forceinline__ bool advance() {
    channel += num_warps;
    return channel < num_channels;
  }
};

// Returns whether this warp has a job. Consecutive warps of a group are in different blocks, so that each
// multiprocessor gets some of every group.
__device__ __forceinline__ bool find_job(const JobTable& jobs, Job& job) {
  const uint32_t number = threadIdx.x / 32 * gridDim.x + blockIdx.x;
  if (number >= jobs.begins[kNumGroups]) return false;
  uint32_t group = 0;  // the last group that begins there or earlier
#pragma unroll
  for (uint32_t step = kNumGroups / 2; step > 0; step /= 2) {
    if (jobs.begins[group + step] <= number) group += step;
  }
  const uint32_t begin = jobs.begins[group];
  job = {group, number - begin, jobs.sizes[group], jobs.begins[group + 1] - begin};
  return true;
}

// Called by all threads of a launch. The preceding zero-copy kernel on the stream has written the flag; nothing writes
// it during this launch.
__device__ __forceinline__ bool has_work(const cuda::DeviceTeam& team, When when) {
  return when == When::kAlways || load_relaxed(&team.state->must_fall_back) != 0;
}

// Called by the control warp of a collective. It meets all peers, counts the epoch, and returns it. `to_peer` and
// `from_peer` belong to this thread's peer. `fault` is the rank's at the start of this launch. After a zero-copy kernel
// that fell back, in the same epoch, all ranks have met already.
__device__ __forceinline__ uint32_t meet(const cuda::DeviceTeam& team, uint32_t fault, When when,
                                         const cuda::DeviceDescriptor& to_peer,
                                         const cuda::DeviceDescriptor& from_peer) {
  const uint32_t epoch = current_epoch(team, 0);
  if (fault != 0) return epoch;
  if (when == When::kIfFallback) {
    advance_epoch(team, epoch, 0, 1);
    return epoch;
  }
  const ll::EpochContext outgoing(team, to_peer, epoch);
  if (is_wipe_due(epoch)) {
    wipe_idle_region(outgoing, thread_of_warp(), 32);
    __syncwarp();
  }
  send_descriptors(outgoing);
  __syncwarp();
  advance_epoch(team, epoch, 0, 1);
  verify(ll::EpochContext(team, from_peer, epoch));
  return epoch;
}

// One warp's part in sending a message on its link. As soon as a batch is sent, its registers receive the loads of the
// batch kBatches further on.
class Sender {
 public:
  __device__ __forceinline__ Sender(SendChannels& out, const InputMessage& message, const Job& job)
      : out_(out), message_(message), stride_(message.num_chunks(), job.num_channels, job.channel) {
#pragma unroll
    for (uint32_t k = 0; k < kBatches; ++k) load(message_, stride_.batches_on(k), shares_[k]);
  }

  __device__ __forceinline__ void run(int peer) {
    while (stride_.has_more()) {
#pragma unroll
      for (uint32_t k = 0; k < kBatches; ++k) {
        if (!stride_.has_more()) break;
        if (!out_.await_room(stride_.batch_size())) return;
        out_.send(peer, stride_.batch_size(), shares_[k]);
        load(message_, stride_.batches_on(kBatches), shares_[k]);
        stride_.advance();
      }
    }
    out_.finish();
  }

 private:
  SendChannels& out_;
  InputMessage message_;
  Stride<kBatchChunks> stride_;
  Share shares_[kBatches][kBatchChunks];
};

// One warp's part in receiving a message, with the same use of registers.
class Receiver {
 public:
  __device__ __forceinline__ Receiver(ReceiveChannels& in, const OutputMessage& message, int peer, const Job& job)
      : in_(in), message_(message), peer_(peer), stride_(message.num_chunks(), job.num_channels, job.channel) {
#pragma unroll
    for (uint32_t k = 0; k < kBatches; ++k) in_.poll(peer_, stride_.batches_on(k).batch_size(), shares_[k]);
  }

  __device__ __forceinline__ void run() {
    while (stride_.has_more()) {
#pragma unroll
      for (uint32_t k = 0; k < kBatches; ++k) {
        if (!stride_.has_more()) break;
        if (!in_.await(peer_, stride_.batch_size(), shares_[k])) return;
        store(message_, stride_, shares_[k]);
        in_.poll(peer_, stride_.batches_on(kBatches).batch_size(), shares_[k]);
        stride_.advance();
      }
    }
    in_.finish();
  }

 private:
  ReceiveChannels& in_;
  OutputMessage message_;
  int peer_;
  Stride<kBatchChunks> stride_;
  Share shares_[kBatches][kBatchChunks];
};

}  // namespace axon::kernels::ll128
