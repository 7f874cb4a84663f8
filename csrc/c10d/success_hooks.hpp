// c10d's completion hooks: functions that a group calls for each call that has ended successfully. Torch's flight
// recorder, since 2.15, learns from them which calls have ended and which hang. A call that fails is not reported.
//
// A call on CPU tensors is reported by the thread that completes it, which may be the engine's. So hooks must be short,
// and must neither take the GIL nor call the group. On CUDA tensors, a thread reports it that polls the device
// (completion_hook.hpp).
//
// Any thread. Shared by the group and its works.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>

namespace axon::c10d_backend {

class SuccessHooks {
 public:
  // The key is that of the Work. The duration is in ms, or empty if the group's calls are not timed.
  using Hook = std::function<void(uint64_t key, std::optional<float> duration)>;

  void add(int64_t id, Hook hook);
  // A call of the hook may be in progress.
  void remove(int64_t id);
  // With one relaxed load.
  bool are_any() const noexcept { return are_any_.load(std::memory_order_relaxed); }
  // Calls the hooks. Logs what they throw.
  void report(uint64_t key, std::optional<float> duration) const noexcept;

  // Returns a key that no other Work of this process has.
  static uint64_t next_key() noexcept;

 private:
  using Hooks = std::map<int64_t, Hook>;

  void replace(const std::function<void(Hooks&)>& change);

  std::atomic<bool> are_any_{false};
  mutable std::mutex mutex_;  // guards the following; held neither while hooks run nor while they are destroyed
  std::shared_ptr<const Hooks> hooks_ = std::make_shared<const Hooks>();  // shared with running report() calls
};

}  // namespace axon::c10d_backend
