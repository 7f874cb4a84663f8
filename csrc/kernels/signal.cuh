// Epochs, and waits that always end.
//
// The epoch counts a team's collectives in device memory, so a replayed graph goes on counting. Each block that needs
// it reads its own copy, and at the end of a launch, unless a zero-copy kernel has left the epoch to the LL128 kernel
// behind it, all kMaxBlocks copies have been advanced, each by one block only: no atomics, and the next launch may have
// another number of blocks. It wraps at 2³²; only equality and parity are ever looked at.
#pragma once

#include "kernels/ptx.cuh"

namespace axon::kernels {

__device__ __forceinline__ uint32_t current_epoch(const cuda::DeviceTeam& team, unsigned reader) {
  return load_relaxed(&team.state->epochs[reader]) + 1;
}

// By one warp of each of `num_readers`, after reader's last current_epoch(): this epoch is over. Pairs with the next
// launch on the stream; the end of the kernel orders them.
__device__ __forceinline__ void advance_epoch(const cuda::DeviceTeam& team, uint32_t epoch, unsigned reader,
                                              unsigned num_readers) {
  for (unsigned copy = reader + (threadIdx.x % 32) * num_readers; copy < cuda::kMaxBlocks; copy += 32 * num_readers) {
    store_relaxed(&team.state->epochs[copy], epoch);
  }
}

// Ends every wait of this rank and tells the host, unless another thread has done so already.
__device__ __noinline__ inline void report_fault(const cuda::DeviceTeam& team, const cuda::FaultReport& found) {
  const auto code = static_cast<uint32_t>(found.code);
  if (atomicCAS(&team.state->fault, uint32_t{0}, code) != 0) return;
  cuda::FaultReport& report = team.control->report;
  report.peer = found.peer;
  report.sequence = found.sequence;
  report.ours = found.ours;
  report.theirs = found.theirs;
  report.our_tag = found.our_tag;
  report.their_tag = found.their_tag;
  store_release(reinterpret_cast<uint32_t*>(&report.code), code);  // pairs with the host's acquire load
}

// Decides how long a spinning thread goes on. Polls cost nothing extra but a counter: the rank's own fault word is
// looked at every kPollsPerFaultCheck, the host's words (over PCIe, about 1 us) and the clock every kPollsPerHostCheck.
//
// A rank whose process has ended has written all that it ever will: it is polled for once more, and then given up.
//
// The ranks of a collective meet, and whoever waits there knows who is missing; a wait for data may be for a rank that
// itself waits. Hence a grace for data: the handshake is the first to give up.
class SpinWait {
 public:
  static constexpr uint64_t kGraceForData = 100'000'000;  // ns

  __device__ explicit SpinWait(const cuda::DeviceTeam& team, uint64_t grace_ns = kGraceForData)
      : team_(team), grace_ns_(grace_ns) {}

  // To be called after each poll that found nothing; anything but kNone ends the wait. missing() is a rank that is
  // waited for.
  template <typename Missing>
  __device__ __forceinline__ cuda::FaultCode after_poll(Missing missing) {
    if (++num_polls_ % kPollsPerFaultCheck != 0) return cuda::FaultCode::kNone;
    const uint32_t fault = load_relaxed(&team_.state->fault);
    if (fault != 0) return static_cast<cuda::FaultCode>(fault);
    if (num_polls_ % kPollsPerHostCheck != 0) return cuda::FaultCode::kNone;
    return look_at_host(missing());
  }

 private:
  static constexpr uint32_t kPollsPerFaultCheck = 64;
  static constexpr uint32_t kPollsPerHostCheck = 4096;

  __device__ __forceinline__ cuda::FaultCode look_at_host(int missing) {
    if (load_relaxed(&team_.control->abort) != 0) return cuda::FaultCode::kAborted;
    const uint32_t gone = load_relaxed(&team_.control->gone);
    if ((gone >> missing & was_gone_ >> missing & 1) != 0) return cuda::FaultCode::kGone;
    was_gone_ = gone;
    const uint64_t now = global_timer();
    if (first_look_ == 0) first_look_ = now;
    return now - first_look_ > team_.timeout_ns + grace_ns_ ? cuda::FaultCode::kTimeout : cuda::FaultCode::kNone;
  }

  const cuda::DeviceTeam& team_;
  const uint64_t grace_ns_;
  uint32_t num_polls_ = 0;
  uint32_t was_gone_ = 0;  // at the last look
  uint64_t first_look_ = 0;
};

}  // namespace axon::kernels
