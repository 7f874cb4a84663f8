#include "engine/instance.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "base/config.hpp"
#include "base/host_id.hpp"
#include "base/inheritance.hpp"
#include "base/trace.hpp"
#include "engine/network.hpp"

namespace axon::engine {

namespace {

// Never destroyed: groups that outlive the interpreter's exit handlers still find the engine, shut down.
struct Instance {
  std::mutex mutex;
  Engine* engine = nullptr;
  std::vector<Engine*> former;  // ended before a fork: groups that have ended still refer to them
  uint64_t num_holds = 0;       // holds taken so far
  std::atomic<int> num_live_holds{0};
  bool was_used_at_fork = false;  // by the parent: UCX's state in this process refers to a thread of the parent

  bool has_live_engine() const noexcept {
    const auto is_live = [](const Engine* each) { return each != nullptr && !each->has_ended(); };
    return is_live(engine) || std::ranges::any_of(former, is_live);
  }
};

Instance& process_instance() {
  static auto* instance = new Instance;
  return *instance;
}

// A fork waits until no other thread changes the state that the child copies.
void before_fork() {
  process_instance().mutex.lock();
}

void after_fork_in_parent() {
  process_instance().mutex.unlock();
}

void after_fork_in_child() {
  Instance& instance = process_instance();
  instance.was_used_at_fork |= instance.has_live_engine();
  instance.mutex.unlock();
}

[[maybe_unused]] const int registered =
    (withhold_at_forks(), pthread_atfork(&before_fork, &after_fork_in_parent, &after_fork_in_child));

template <typename T>
T value_or_throw(const char* origin, Result<T> result) {
  if (!result.ok()) throw std::runtime_error(std::string(origin) + ": " + result.status().message());
  return std::move(result).value();
}

Engine* make_engine() {
  if (Status checked = config::check_environment(); !checked.ok()) throw std::runtime_error(checked.message());
  collectives::AlgorithmOverrides overrides =
      value_or_throw("AXON_ALGO", collectives::AlgorithmOverrides::of_environment());
  return new Engine(value_or_throw("torch_axon", open_network()), this_host(), overrides);
}

}  // namespace

// The caller holds the lock.
static Engine& engine_of(Instance& instance) {
  if (instance.was_used_at_fork) throw std::runtime_error("torch_axon: " + Engine::forked().message());
  if (instance.engine == nullptr) instance.engine = make_engine();
  return *instance.engine;
}

// Relaxed: the hold is made under the lock under which end_unused_instance() reads num_holds. A holder has joined the
// engine before it drops the hold.
EngineHold::EngineHold(Engine& engine) noexcept : engine_(engine) {
  process_instance().num_live_holds.fetch_add(1, std::memory_order_relaxed);
}

EngineHold::~EngineHold() {
  process_instance().num_live_holds.fetch_sub(1, std::memory_order_release);
}

Engine& instance() {
  Instance& instance = process_instance();
  const std::lock_guard lock(instance.mutex);
  return engine_of(instance);
}

EngineHold hold_instance() {
  Instance& instance = process_instance();
  const std::lock_guard lock(instance.mutex);
  Engine& engine = engine_of(instance);
  ++instance.num_holds;
  return EngineHold(engine);
}

void shut_down_instance() noexcept {
  Instance& instance = process_instance();
  std::vector<Engine*> engines;
  {
    const std::lock_guard lock(instance.mutex);
    engines = instance.former;
    if (instance.engine != nullptr) engines.push_back(instance.engine);
  }
  for (Engine* engine : engines) engine->shut_down();
  trace::close();
}

// Engines are checked and ended without the lock, since their completions may wait for Python.
void end_unused_instance() noexcept {
  if (Engine::is_completing() || Progress::is_background()) return;
  Instance& instance = process_instance();
  std::vector<Engine*> engines;
  uint64_t num_holds = 0;
  {
    const std::lock_guard lock(instance.mutex);
    if (instance.was_used_at_fork) return;
    num_holds = instance.num_holds;
    engines = instance.former;
    if (instance.engine != nullptr) engines.push_back(instance.engine);
  }
  for (Engine* engine : engines) {
    if (engine->has_ended()) continue;
    if (instance.num_live_holds.load(std::memory_order_acquire) != 0 || engine->is_used()) continue;
    {
      const std::lock_guard lock(instance.mutex);
      if (instance.num_holds != num_holds) return;  // a caller has taken a hold meanwhile
      if (engine == instance.engine) instance.former.push_back(std::exchange(instance.engine, nullptr));
    }
    engine->shut_down();
    while (!engine->has_ended()) std::this_thread::yield();  // another thread that forks may be ending it
  }
}

}  // namespace axon::engine
