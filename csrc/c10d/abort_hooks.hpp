// Functions of the user that a group calls when an operation fails and when it is aborted, for example to write down
// what every rank was doing. One cause may fail several operations, so c10d asks for hooks that may be called again.
//
// Any thread. Shared by the group and its works.
#pragma once

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
  bool are_any() const;
  // Calls the hooks. On the engine's own thread, which must not wait, it has another thread do so. Logs what they
  // throw.
  void run() noexcept;

 private:
  void call_all() const noexcept;

  mutable std::mutex mutex_;                              // guards the following
  std::map<int64_t, std::shared_ptr<const Hook>> hooks_;  // copying or destroying a hook takes the GIL
};

}  // namespace axon::c10d_backend
