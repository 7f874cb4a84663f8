// Estimates how long a group's calls take, for torch's time estimator, from the last timed call of similar size.
#pragma once

#include <c10/core/DeviceType.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "c10d/times.hpp"
#include "collectives/collective.hpp"

namespace axon::c10d_backend {

class Estimator {
 public:
  using Microseconds = std::chrono::duration<double, std::micro>;

  struct Call {
    transport::OperationKind kind;
    c10::DeviceType device;
    uint64_t num_bytes;  // of its inputs or of its outputs, whichever are larger
  };

  // Notes the times of a call. The call may still be running.
  void note(const Call& call, std::shared_ptr<const Times> times);
  // Interpolates linearly between two timed sizes. Below the smallest size it returns that size's time; above the
  // largest it scales with the bytes. Returns nothing if no such call has been timed.
  std::optional<Microseconds> estimate(const Call& call) const;

 private:
  struct Timed {
    uint64_t num_bytes;
    std::shared_ptr<const Times> times;
  };
  using BySize = std::map<int, Timed>;  // by the bit width of the size: the last call of that width

  mutable std::mutex mutex_;  // guards the times
  std::map<std::pair<transport::OperationKind, c10::DeviceType>, BySize> timed_;
};

}  // namespace axon::c10d_backend
