// How long a group's calls take, for torch's time estimator: by the last timed call of about the same size.
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
    uint64_t num_bytes;  // of its inputs or of its outputs, whichever are more
  };

  // Once its times have been told, if they are not over.
  void note(const Call& call, std::shared_ptr<const Times> times);
  // Between two sizes that have been timed in proportion; below all as long as the smallest, above all in proportion to
  // the bytes. Nothing: no such call has been timed.
  std::optional<Microseconds> estimate(const Call& call) const;

 private:
  struct Timed {
    uint64_t num_bytes;
    std::shared_ptr<const Times> times;
  };
  using BySize = std::map<int, Timed>;  // by the bits of the size: the last call with as many

  mutable std::mutex mutex_;  // guards this
  std::map<std::pair<transport::OperationKind, c10::DeviceType>, BySize> timed_;
};

}  // namespace axon::c10d_backend
