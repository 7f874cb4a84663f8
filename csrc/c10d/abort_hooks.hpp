// Functions of the user that a group calls when an operation fails and when it is aborted, for example to write down
// what every rank was doing. One cause may fail several operations, so c10d asks for hooks that may be called again.
//
// Any thread. Shared by the group and its works.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

namespace axon::c10d_backend {

class AbortHooks : public std::enable_shared_from_this<AbortHooks> {
 public:
  using Hook = std::function<void()>;

  void add(int64_t id, Hook hook);
  void remove(int64_t id);
  // With one relaxed load.
  bool are_any() const noexcept { return are_any_.load(std::memory_order_relaxed); }
  // Calls the hooks. On the engine's own thread, which must not wait, it has another thread do so. Logs what they
  // throw.
  void run() noexcept;

 private:
  void call_all() const noexcept;

  std::atomic<bool> are_any_{false};
  mutable std::mutex mutex_;                              // guards the following
  std::map<int64_t, std::shared_ptr<const Hook>> hooks_;  // copying or destroying a hook takes the GIL
};

}  // namespace axon::c10d_backend
