// The lost ranks of a team, by local index, and which of them its kernels may wait for. Guarded by its owner's lock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/status.hpp"
#include "base/sync.hpp"
#include "cuda/device_types.hpp"

namespace axon::gpu_comm {

class LostRanks {
 public:
  // Kernels may wait for the rank from now on. It may be lost already.
  void connect(int index) noexcept;
  void note(int index, const Status& reason) noexcept;

  // Returns why the rank is lost, or ok.
  const Status& reason_of(int index) const noexcept { return reasons_[static_cast<size_t>(index)]; }
  // Returns whether a rank is lost that kernels may wait for.
  bool concerns_kernels(int index) const noexcept { return (connected_ >> index & 1) != 0 && !reason_of(index).ok(); }
  // Returns the first such loss, or ok.
  const Status& first() const noexcept { return first_; }
  sync::Clock::time_point first_lost_at() const noexcept { return first_lost_at_; }

 private:
  void heed(int index) noexcept;

  uint32_t connected_ = 0;                           // one bit per rank
  std::array<Status, cuda::kMaxTeamRanks> reasons_;  // by local index
  Status first_;
  sync::Clock::time_point first_lost_at_{};
};

}  // namespace axon::gpu_comm
