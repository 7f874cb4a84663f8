// Epochs, and waits that always end.
//
// The epoch counts a team's collectives in device memory, so a replayed graph continues the count. Each block reads its
// own copy. A launch advances all kMaxBlocks copies before its end, each by one block only. So no atomics are needed,
// and the next launch may have another number of blocks. The exception is a zero-copy kernel that leaves the epoch to
// the LL128 kernel after it. The epoch wraps at 2³²; only equality and parity are tested.
#pragma once

#include "kernels/ptx.cuh"

namespace axon::kernels {

__device__ __forceinline__ uint32_t current_epoch(const cuda::DeviceTeam& team, unsigned reader) {
  return load_relaxed(&team.state->epochs[reader]) + 1;
}

// Called by one warp of each of `num_readers`, after reader's last current_epoch(). Marks this epoch as finished. Pairs
// with the next launch on the stream; the end of the kernel orders them.
__device__ __forceinline__ void advance_epoch(const cuda::DeviceTeam& team, uint32_t epoch, unsigned reader,
                                              unsigned num_readers) {
  for (unsigned copy = reader + (threadIdx.x % 32) * num_readers; copy < cuda::kMaxBlocks; copy += 32 * num_readers) {
    store_relaxed(&team.state->epochs[copy], epoch);
  }
}

// Ends every wait of this rank and reports the fault to the host, unless another thread has reported one already.
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

// Decides how long a spinning thread continues. A poll costs only a counter. The rank's own fault flag is tested every
// kPollsPerFaultCheck polls. The host's flags (over PCIe, about 1 us) and the clock are tested every kPollsPerHostCheck
// polls.
//
// A rank whose process has ended writes nothing more: it is polled once more and then given up.
//
// The ranks of a collective meet, and a rank that waits in this handshake knows which rank is missing. A wait for data
// may be for a rank that itself waits. Data waits therefore have a grace period, so that the handshake gives up first.
class SpinWait {
 public:
  static constexpr uint64_t kGraceForData = 100'000'000;  // ns

  __device__ explicit SpinWait(const cuda::DeviceTeam& team, uint64_t grace_ns = kGraceForData)
      : team_(team), grace_ns_(grace_ns) {}

  // Call this after each unsuccessful poll; any result but kNone ends the wait. missing() returns a rank that is
  // awaited.
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
  uint32_t was_gone_ = 0;  // at the last check
  uint64_t first_look_ = 0;
};

}  // namespace axon::kernels
