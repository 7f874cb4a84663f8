// Threads that share long copies with the thread that has to make them.
//
//   CopyThreads& threads = CopyThreads::instance();
//   const size_t num_parts = threads.num_parts_for(num_bytes);
//   threads.run(num_parts, [&](size_t part) noexcept { copy(part); });   // returns once all parts are copied
//
// The caller takes parts, too, and waits only for those that another thread has begun. So a thread that has not woken
// up yet delays no copy. One that loses its core within a part does. Copies that come at the same time from other
// threads are made by their callers alone.
//
// Threads: any. The helpers start at the first long copy, and sleep between copies. Never destroyed; a forked child has
// threads of its own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

namespace axon {

class CopyThreads {
 public:
  CopyThreads();
  CopyThreads(const CopyThreads&) = delete;
  CopyThreads& operator=(const CopyThreads&) = delete;

  static CopyThreads& instance();

  // The number of threads that copy at a time, with the caller's: AXON_COPY_THREADS. By default it is the cores of this
  // process, divided among the processes of the host that it exchanges data with, but at most 4.
  size_t size() const noexcept { return size_.load(std::memory_order_relaxed); }
  void set_num_processes(size_t num_processes) noexcept;

  // Returns how many of `num_bytes` to copy in one step, of which a thread alone copies `step`.
  size_t num_bytes_of_step(size_t num_bytes, size_t step) const noexcept;
  // Returns into how many parts to divide a step: 1 if it is too short to share.
  size_t num_parts_for(size_t num_bytes) const noexcept;

  // The function must not throw, and may run on several threads at a time.
  template <typename Copy>
  void run(size_t num_parts, const Copy& copy) noexcept {
    const auto call = [](const void* copy, size_t part) noexcept { (*static_cast<const Copy*>(copy))(part); };
    run_parts(num_parts, call, &copy);
  }
  // The same for a function that returns an outcome. Returns `good` if all parts have it, or else that of another part.
  template <typename Outcome, typename Copy>
  Outcome run(size_t num_parts, Outcome good, const Copy& copy) noexcept {
    std::atomic<Outcome> outcome{good};  // relaxed: published with the parts
    run(num_parts, [&](size_t part) noexcept {
      if (const Outcome of_part = copy(part); of_part != good) outcome.store(of_part, std::memory_order_relaxed);
    });
    return outcome.load(std::memory_order_relaxed);
  }

 private:
  using Call = void (*)(const void* copy, size_t part) noexcept;

  // A job's number, and which of its parts comes next. In one word, so that a thread that comes late takes no part of
  // another job.
  struct Ticket {
    uint32_t job = 0;
    uint16_t num_parts = 0;
    uint16_t next_part = 0;
  };

  void run_parts(size_t num_parts, Call call, const void* copy) noexcept;
  bool take_part() noexcept;
  void start_threads() noexcept;
  void help() noexcept;

  const std::optional<size_t> num_wanted_;  // nothing: by the number of cores
  std::atomic<size_t> size_;
  std::atomic<bool> is_busy_{false};

  // Only the caller that has made it busy uses these.
  std::vector<std::thread> helpers_;
  Call call_ = nullptr;         // of the job
  const void* copy_ = nullptr;  // of the job
  std::atomic<Ticket> ticket_{};
  std::atomic<size_t> num_left_{0};  // parts of the job that are not copied
};

}  // namespace axon
