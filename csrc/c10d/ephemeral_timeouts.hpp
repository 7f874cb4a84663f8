// Extensions of a group's timeout for the next operations: c10d's addEphemeralTimeout(), for example for a first step
// that compiles. An extension applies to all operations from then on, until the first of them has completed.
//
// Any thread.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace axon::c10d_backend {

class EphemeralTimeouts {
 public:
  void add(std::chrono::milliseconds extension);
  // With one relaxed load.
  bool are_any() const noexcept { return are_any_.load(std::memory_order_relaxed); }
  // Returns the sum of the extensions that apply to this work, which is about to start.
  std::chrono::milliseconds for_work(const c10::intrusive_ptr<c10d::Work>& work);

 private:
  struct Extension {
    std::chrono::milliseconds timeout;
    bool has_begun = false;
    c10::weak_intrusive_ptr<c10d::Work> first{c10::intrusive_ptr<c10d::Work>()};  // not an owner of its tensors

    bool has_ended() const;
  };

  std::atomic<bool> are_any_{false};
  std::mutex mutex_;  // guards the following
  std::vector<Extension> extensions_;
};

}  // namespace axon::c10d_backend
