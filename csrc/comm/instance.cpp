// The process's own engine, with what the environment says.
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/config.hpp"
#include "base/trace.hpp"
#include "comm/engine.hpp"
#include "comm/network.hpp"

namespace axon {

namespace {

// Never destroyed: groups that outlive the interpreter's exit handlers still find it, shut down.
struct Instance {
  std::mutex mutex;
  Engine* engine = nullptr;
  std::vector<Engine*> deaf;  // before it, to whom groups that have failed still belong
};

Instance& process_instance() {
  static auto* instance = new Instance;
  return *instance;
}

template <typename T>
T value_or_throw(const char* origin, Result<T> result) {
  if (!result.ok()) throw std::runtime_error(std::string(origin) + ": " + result.status().message());
  return std::move(result).value();
}

Engine* make_engine() {
  if (Status checked = config::check_environment(); !checked.ok()) throw std::runtime_error(checked.message());
  AlgorithmOverrides overrides = value_or_throw("AXON_ALGO", AlgorithmOverrides::parse(config::text("AXON_ALGO")));
  return new Engine(value_or_throw("torch_axon", open_network()), this_host(), overrides);
}

}  // namespace

Engine& Engine::instance() {
  Instance& instance = process_instance();
  const std::lock_guard lock(instance.mutex);
  if (instance.engine != nullptr && instance.engine->is_deaf()) {
    instance.deaf.push_back(std::exchange(instance.engine, nullptr));
  }
  if (instance.engine == nullptr) instance.engine = make_engine();
  if (instance.engine->is_forked()) throw std::runtime_error("torch_axon: " + forked().message());
  return *instance.engine;
}

void Engine::shut_down_instance() noexcept {
  Instance& instance = process_instance();
  const std::lock_guard lock(instance.mutex);
  if (instance.engine == nullptr || instance.engine->is_forked()) return;
  instance.engine->shut_down();
  for (Engine* engine : instance.deaf) engine->shut_down();
  trace::close();
}

}  // namespace axon
