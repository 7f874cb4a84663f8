// Counts the forks between this process and the one that loaded this code. A count that was stored in a parent tells a
// child that the state is its parent's. Reading it is one load, whereas getpid() would be a system call. Any thread.
//
//   const uint32_t born_after_ = num_forks();
//   bool is_inherited() const { return num_forks() != born_after_; }
#pragma once

#include <atomic>
#include <cstdint>

namespace axon {

uint32_t num_forks() noexcept;

// An object of which each process has one. A forked child makes its own, since a thread that the child lacks may have
// locked the inherited one. Never destroyed: threads may use it until the process ends.
//
//   static OnePerProcess<Pool> pool;
//   pool.get().take(num_bytes);
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
