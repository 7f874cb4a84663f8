// How many forks lie between this process and the one that loaded this code: what was noted in a parent tells, in a
// child, that it is the parent's. A load, where getpid() would be a system call.
#pragma once

#include <atomic>
#include <cstdint>

namespace axon {

uint32_t num_forks() noexcept;

// An object of which each process has one: a forked child makes its own, since a thread that it lacks may have locked
// the inherited one. Never destroyed: threads may use it until the process ends.
//
//   static OnePerProcess<Pool> pool;
//   pool.get().…
template <typename T>
class OnePerProcess {
 public:
  T& get() {
    Owned* known = latest_.load(std::memory_order_acquire);
    while (known == nullptr || known->born_after != num_forks()) {
      auto* const made = new Owned;
      if (latest_.compare_exchange_strong(known, made, std::memory_order_acq_rel)) return made->object;
      delete made;
    }
    return known->object;
  }

 private:
  struct Owned {
    const uint32_t born_after = num_forks();
    T object;
  };

  std::atomic<Owned*> latest_{nullptr};  // release by the thread that makes it, acquire by its users
};

}  // namespace axon
