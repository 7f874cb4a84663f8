// Starts the calls that CUDA graphs hold, when the graphs are launched. A kernel writes the id of a call into a ring of
// host memory, which the progress owner reads. Conditions that kernels set are read in the same way.
//
//   replays.watch(ring);
//   replays.add(call);      // until replays.forget(call)
//   replays.wake();         // a host node of the graph: it is being launched
//
// No flag wakes a sleeping thread, so each graph has a host node that does. From then on the progress owner polls the
// rings, as it polls for a device operation in progress, until there has been no launch for some seconds. Afterwards it
// reads them only when it happens to be awake.
//
// Owned by the engine; progress owner only, except for wake().
#pragma once

#include <atomic>
#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/captured_call.hpp"
#include "engine/flag_waiters.hpp"
#include "engine/trigger_ring.hpp"
#include "engine/triggered.hpp"

namespace axon::engine {

class Replays final : private Submission {
 public:
  explicit Replays(Engine& engine) noexcept : engine_(engine) {}
  Replays(const Replays&) = delete;
  Replays& operator=(const Replays&) = delete;

  // Memory that kernels write to.
  class Source : public FlagWaiter {
   public:
    // Takes what kernels have written. Returns whether there was anything.
    virtual bool take() noexcept = 0;
    // The flag that kernels set next, and the value from which on it is set.
    struct Next {
      const std::atomic<uint32_t>& flag;
      uint32_t awaited = 1;
    };
    virtual Next next() const noexcept = 0;
    // It is not read any more.
    virtual void on_shut_down() noexcept {}

   protected:
    ~Source() = default;

   private:
    friend class Replays;
    void on_flag_set() noexcept final { replays_->read(*this); }

    Replays* replays_ = nullptr;  // set by watch()
  };

  // No other engine reads the ring any more.
  void watch(const TriggerRing& ring);
  // Reads the source until unwatch().
  void watch(Source& source) noexcept;
  void unwatch(Source& source) noexcept;
  void add(std::shared_ptr<Triggered> call) noexcept;
  // Runs what graphs have triggered before.
  void read() noexcept;
  void forget(const Triggered& call) noexcept { calls_.erase(call.trigger_id()); }

  // Any thread, also of CUDA.
  void wake() noexcept;
  // A graph cannot wake the engine: polls from now on, at the cost of 1.5 % of a core.
  void poll_always() noexcept;

  void tick(sync::Clock::time_point now) noexcept;
  // Nothing runs any more: no kernel may wait for the engine.
  void shut_down() noexcept;

 private:
  class Reader final : public Source {
   public:
    explicit Reader(const TriggerRing& ring) noexcept : ring_(ring) {}

   private:
    bool take() noexcept override;
    Next next() const noexcept override { return {.flag = ring_.next()}; }

    TriggerReader ring_;
  };

  void read(Source& source) noexcept;
  void wait_for_next(Source& source) noexcept;
  void trigger(uint32_t id) noexcept;
  void poll_from_now_on() noexcept;

  // Submission: wake() was called.
  void begin() noexcept override;
  void complete() noexcept override {}

  Engine& engine_;
  std::atomic<bool> is_submitted_{false};  // sequentially consistent: cleared before the rings are read
  std::list<Reader> readers_;
  std::vector<Source*> sources_;                                    // the readers, and others
  std::unordered_map<uint32_t, std::shared_ptr<Triggered>> calls_;  // by trigger id
  bool polls_ = false;
  bool polls_always_ = false;
  bool has_ended_ = false;
  sync::Clock::time_point busy_at_{};
};

}  // namespace axon::engine
