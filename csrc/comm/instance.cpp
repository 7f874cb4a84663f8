// The process's own engine, over rings, pieces and UCX, with what the environment says.
#include <fstream>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/config.hpp"
#include "base/trace.hpp"
#include "comm/engine.hpp"
#include "transport/pieces/pieces.hpp"
#include "transport/rings/rings.hpp"
#include "transport/ucx/ucx.hpp"

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

// What UCX is to use, unless the user says otherwise. No SysV segments: they are attached late, and one whose owner has
// left meanwhile is an error on stdout; a killed owner leaves them behind. No CUDA: UCX is given host memory alone.
// And room for 216 bytes behind a header in an element of a queue in shared memory, not 88: a call with a small tensor
// goes into one, which takes 1.36 µs there and back, not 1.60 (a call alone from C++, 64 bytes).
UcxOptions ucx_options() {
  UcxOptions options;
  const auto set = [&](const std::string& name, const char* value) {
    if (config::is_set("UCX_" + name) || config::is_set("AXON_UCX_" + name)) return;
    options.settings.emplace_back(name, value);
  };
  set("TLS", "^sysv,cuda");
  set("POSIX_FIFO_ELEM_SIZE", "256");
  return options;
}

// Whether TCP paces what it sends by an estimate of the link's speed, as seen in this network namespace.
bool tcp_estimates_links() {
  std::string congestion_control;
  std::ifstream("/proc/sys/net/ipv4/tcp_congestion_control") >> congestion_control;
  return congestion_control.starts_with("bbr");
}

PieceUse use_of_pieces() {
  const std::string setting = config::text("AXON_TCP_PIECES");
  const bool is_wanted = setting == "auto" ? tcp_estimates_links() : setting == "always";
  return is_wanted ? PieceUse::kToOtherHosts : PieceUse::kNever;
}

Engine* make_engine() {
  if (Status checked = config::check_environment(); !checked.ok()) throw std::runtime_error(checked.message());
  AlgorithmOverrides overrides = value_or_throw("AXON_ALGO", AlgorithmOverrides::parse(config::text("AXON_ALGO")));
  const RingUse with = config::has_transport("cma") ? RingUse::kAlways : RingUse::kCopies;
  const RingUse use = config::has_transport("rings") ? with : RingUse::kNever;
  auto network = with_pieces(value_or_throw("torch_axon", open_ucx_transport(ucx_options())), use_of_pieces());
  return new Engine(with_rings(std::move(network), use), this_host(), overrides);
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
