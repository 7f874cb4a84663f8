#include "axon/runtime.hpp"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <thread>
#include <utility>

#include "axon/deadline.hpp"
#include "axon/destinations.hpp"
#include "axon/gate.hpp"
#include "axon/generators.hpp"
#include "axon/guarded.hpp"
#include "axon/mailbox_state.hpp"
#include "base/log.hpp"
#include "engine/condition.hpp"
#include "engine/instance.hpp"
#include "rpc/core/mailboxes/mailboxes.hpp"
#include "rpc/core/runtime.hpp"

namespace axon::library {

// How long the destruction of a runtime waits for running functions.
static constexpr std::chrono::seconds kLongestEnd{10};
static_assert(Runtime::kAwake == pace::kSpinBudget);

struct Runtime::State {
  std::unique_ptr<axon::rpc::Runtime> runtime;
  std::shared_ptr<Gate> gate = std::make_shared<Gate>();  // shared with the called functions, which outlive the runtime
  std::shared_ptr<axon::rpc::Generators> generators = std::make_shared<axon::rpc::Generators>();  // shared as above
  std::shared_ptr<axon::rpc::Mailboxes> mailboxes = std::make_shared<axon::rpc::Mailboxes>();     // shared as above
  sync::atomic<bool> is_stopped{false};
  bool is_closed = false;

  explicit State(std::unique_ptr<axon::rpc::Runtime> opened) : runtime(std::move(opened)) {}
  Status add_own();
  Status add(std::string name, axon::rpc::Handler handler, Ask ask);
  ~State() { close(); }
  void close() noexcept {
    if (std::exchange(is_closed, true)) return;
    runtime->close();
    generators->close();
    mailboxes->close(Status(ErrorCode::kAborted, "the runtime '" + runtime->name() + "' is closed"));
    runtime->wake();
    if (gate->close(sync::Clock::now() + kLongestEnd)) return;
    log::warn("the runtime '" + runtime->name() + "' was closed while one of its functions is still running");
  }
};

static Result<rpc::Secret> secret_of(std::string_view text) {
  return rpc::Secret::from(std::as_bytes(std::span(text)));
}

static Result<Peer> peer_of(Result<std::shared_ptr<rpc::Connection>> connected) {
  if (!connected.ok()) return std::move(connected.status());
  return Peer(std::move(connected).value());
}

// The process's engine. Its thread ends before the program's objects at namespace scope are destroyed. A child that is
// forked while no runtime is open starts its own.
static engine::EngineHold engine() {
  engine::instance();  // objects at namespace scope are destroyed later
  [[maybe_unused]] static const int at_exit = std::atexit(&engine::shut_down_instance);
  [[maybe_unused]] static const int at_fork = pthread_atfork(&engine::end_unused_instance, nullptr, nullptr);
  return engine::hold_instance();
}

// The gate is kept beyond the destruction of the function, which may happen while the function runs.
template <typename Function>
static axon::rpc::Handler gated(std::shared_ptr<Gate> gate, Function function) {
  return [gate = std::move(gate), function = std::move(function)](axon::rpc::Invocation& invocation) {
    const std::shared_ptr<Gate> kept = gate;
    const Gate::Pass pass(*kept);
    if (!pass.is_open()) return invocation.fail("ConnectionError", "the runtime is closed");
    function(invocation);
  };
}

static axon::rpc::Handler guarded(std::shared_ptr<Gate> gate, Handler handler) {
  return gated(std::move(gate), [handler = std::move(handler)](axon::rpc::Invocation& inner) {
    Invocation invocation(&inner);
    run_guarded(invocation, handler);
  });
}

// Returns the name of the Python class.
static std::string_view class_of(ErrorCode code) noexcept {
  if (code == ErrorCode::kInvalidArgument) return "ValueError";
  return code == ErrorCode::kResourceExhausted ? "BufferError" : "RuntimeError";
}

static axon::rpc::Handler guarded(std::shared_ptr<Gate> gate, Ask ask) {
  return gated(std::move(gate), [ask = std::move(ask)](axon::rpc::Invocation& invocation) {
    Destinations to(invocation.arguments());
    if (const Status asked = to.ask(ask); !asked.ok()) return invocation.fail(class_of(asked.code()), asked.message());
    invocation.accept(to.buffers(), to.owners());
  });
}

// Adds the functions that iterating peers call.
Status Runtime::State::add_own() {
  rpc::RuntimeCore& core = runtime->core();
  const auto forget = [gate = gate, generators = generators, mailboxes = mailboxes](rpc::Connection& lost) {
    const Gate::Pass pass(*gate);  // the dropped objects refer to others that are there until the gate is closed
    generators->drop(lost);
    mailboxes->drop(lost);
  };
  core.set_on_lost(forget);
  const auto next = [generators = generators](axon::rpc::Invocation& invocation) { generators->next(invocation); };
  const auto stop = [generators = generators](axon::rpc::Invocation& invocation) {
    const std::shared_ptr<rpc::Connection> caller = invocation.connection();
    generators->stop(invocation);
    if (caller->has_ended()) generators->drop(*caller);  // the end may have been reported before
  };
  const auto settle = [mailboxes = mailboxes](axon::rpc::Invocation& invocation) {
    const std::shared_ptr<rpc::Connection> sender = invocation.connection();
    if (mailboxes->settle(invocation) && sender->has_ended()) mailboxes->drop(*sender);
  };
  AXON_TRY(core.add(std::string(rpc::kSettled), gated(gate, settle)));
  AXON_TRY(core.add(std::string(rpc::kNext), gated(gate, next)));
  return core.add(std::string(rpc::kStop), gated(gate, stop));
}

Runtime::Runtime(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
Runtime::Runtime(Runtime&&) noexcept = default;
Runtime& Runtime::operator=(Runtime&&) noexcept = default;
Runtime::~Runtime() = default;

Result<Runtime> Runtime::open(rpc::RuntimeOptions options) {
  try {
    const engine::EngineHold hold = engine();
    Result<std::unique_ptr<axon::rpc::Runtime>> opened = axon::rpc::Runtime::open(std::move(options), hold.engine());
    if (!opened.ok()) return std::move(opened.status());
    auto state = std::make_unique<State>(std::move(opened).value());
    if (Status added = state->add_own(); !added.ok()) return added;
    return Runtime(std::move(state));
  } catch (const std::runtime_error& error) {
    return Status(ErrorCode::kTransport, error.what());
  }
}

static Status moved_from() {
  return {ErrorCode::kInvalidArgument, "the runtime was moved from"};
}

const std::string& Runtime::name() const noexcept {
  static const std::string none;
  return state_ ? state_->runtime->name() : none;
}

uint64_t Runtime::incarnation() const noexcept {
  return state_ ? state_->runtime->incarnation() : 0;
}

Status Runtime::State::add(std::string name, axon::rpc::Handler handler, Ask ask) {
  axon::rpc::Handler asked;
  if (ask) asked = guarded(gate, std::move(ask));
  return runtime->core().add(std::move(name), std::move(handler), std::move(asked));
}

Status Runtime::add(std::string name, Handler handler, Ask ask) {
  if (!state_) return moved_from();
  if (name.starts_with(rpc::kOwnNames)) {
    return {ErrorCode::kInvalidArgument,
            "add: name is '" + name + "'; names that begin with '" + std::string(rpc::kOwnNames) + "' are reserved"};
  }
  return state_->add(std::move(name), guarded(state_->gate, std::move(handler)), std::move(ask));
}

Status Runtime::add_generator(std::string name, GeneratorFunction function, Ask ask) {
  if (!state_) return moved_from();
  const auto open = [generators = state_->generators, gate = state_->gate, function = std::move(function)](
                        Invocation& invocation) { open_generator(invocation, *generators, gate, function); };
  return add(std::move(name), open, std::move(ask));
}

static Status check_tag(const char* function, std::string_view tag) {
  constexpr size_t kLongestTag = rpc::kLongestName - rpc::kMailboxes.size();
  if (tag.size() <= kLongestTag) return Status();
  return {ErrorCode::kInvalidArgument, std::string(function) + ": tag is " + std::to_string(tag.size()) +
                                           " bytes long; allowed: up to " + std::to_string(kLongestTag)};
}

Result<Mailbox> Runtime::mailbox(std::string_view tag, MailboxOptions options) {
  if (!state_) return moved_from();
  AXON_TRY(check_tag("mailbox", tag));
  if (options.capacity == 0) return Status(ErrorCode::kInvalidArgument, "mailbox: capacity is 0; allowed: 1 or more");
  const auto mailbox = std::make_shared<Mailbox::State>(state_->runtime->core().engine(), options.capacity);
  const auto arrive = [mailbox](axon::rpc::Invocation& invocation) { mailbox->arrive(invocation); };
  const bool is_new = state_->mailboxes->add(std::string(tag), mailbox);  // before a peer can refer to it
  const axon::rpc::Handler handler = gated(state_->gate, arrive);
  Status added = state_->add(std::string(rpc::kMailboxes).append(tag), handler, std::move(options.ask));
  if (!added.ok() && is_new) state_->mailboxes->remove(std::string(tag));
  return added.ok() ? Result<Mailbox>(Mailbox(mailbox)) : Result<Mailbox>(std::move(added));
}

Result<Outbox> Runtime::outbox(const Peer& peer, std::string_view tag) {
  if (!state_) return moved_from();
  AXON_TRY(check_tag("outbox", tag));
  return Outbox(peer, std::string(rpc::kMailboxes).append(tag));
}

Result<uint16_t> Runtime::listen(const std::string& host, uint16_t port, std::string_view secret) {
  if (!state_) return moved_from();
  Result<rpc::Secret> known = secret_of(secret);
  if (!known.ok()) return std::move(known.status());
  return state_->runtime->listen({.host = host, .port = port}, known.value());
}

Result<std::vector<std::byte>> Runtime::address() {
  if (!state_) return moved_from();
  return state_->runtime->address();
}

// Returns whether the next attempt may succeed, for example because the server is about to start.
static bool may_pass(const Status& failure) noexcept {
  const ErrorCode code = failure.code();
  return code == ErrorCode::kTransport || code == ErrorCode::kTimeout || code == ErrorCode::kPeerLost ||
         code == ErrorCode::kUnknownHost;
}

// Works like Python's connect(wait=…): pauses grow, and the first attempts are short. An attempt may wait for an
// unreachable host while a network is being set up, so the next one should follow soon.
template <typename Attempt>
static Result<Peer> keep_trying(std::chrono::milliseconds timeout, std::chrono::milliseconds wait, Attempt attempt) {
  static constexpr std::chrono::milliseconds kLongestPause{500};
  const sync::Clock::time_point until = deadline_in(wait);
  std::chrono::milliseconds pause{10}, limit{1000};
  for (int number = 1;; ++number) {
    const bool is_last = left_until(until).count() <= 0;
    Result<Peer> peer = peer_of(attempt(deadline_in(is_last ? timeout : std::min(timeout, limit))));
    if (peer.ok() || wait.count() <= 0 || !may_pass(peer.status())) return peer;
    if (is_last) {
      const std::string attempts =
          " (attempt " + std::to_string(number) + ", within wait=" + std::to_string(wait.count()) + " ms)";
      return Status(peer.status().code(), peer.status().message() + attempts);
    }
    std::this_thread::sleep_until(std::min(until, deadline_in(pause)));
    pause = std::min(2 * pause, kLongestPause);
    limit = std::min(2 * limit, std::max(timeout, limit));
  }
}

Result<Peer> Runtime::connect(std::span<const std::byte> address, std::chrono::milliseconds timeout,
                              std::chrono::milliseconds wait) {
  if (!state_) return moved_from();
  return keep_trying(timeout, wait,
                     [&](sync::Clock::time_point deadline) { return state_->runtime->connect(address, deadline); });
}

Result<Peer> Runtime::connect(const std::string& host, uint16_t port, std::string_view secret,
                              std::chrono::milliseconds timeout, std::chrono::milliseconds wait) {
  if (!state_) return moved_from();
  Result<rpc::Secret> known = secret_of(secret);
  if (!known.ok()) return std::move(known.status());
  return keep_trying(timeout, wait, [&](sync::Clock::time_point deadline) {
    return state_->runtime->connect({.host = host, .port = port}, known.value(), deadline);
  });
}

Result<Region> Runtime::expose(std::span<std::byte> memory, RegionOptions options) {
  if (!state_) return moved_from();
  if (options.name.size() > rpc::kLongestRegionName) {
    return Status(ErrorCode::kInvalidArgument, "expose: name has " + std::to_string(options.name.size()) +
                                                   " bytes; allowed: up to " + std::to_string(rpc::kLongestRegionName));
  }
  rpc::RuntimeCore& core = state_->runtime->core();
  Result<std::shared_ptr<rpc::Region>> exposed =
      core.expose({.name = std::move(options.name),
                   .access = static_cast<rpc::Access>(options.access),
                   .extents = {{.address = reinterpret_cast<uint64_t>(memory.data()), .num_bytes = memory.size()}}},
                  std::move(options.owner));
  if (!exposed.ok()) return std::move(exposed.status());
  return Region(core.shared_from_this(), std::move(exposed).value());
}

Result<Condition> Runtime::condition() {
  if (!state_) return moved_from();
  return Condition(std::make_shared<engine::Condition>(state_->runtime->core().engine()));
}

Result<std::vector<Notification>> Runtime::notifications(std::chrono::milliseconds timeout, const Peer* from) {
  if (!state_) return moved_from();
  rpc::RuntimeCore& core = state_->runtime->core();
  rpc::Notifications& queue = core.exposed()->notifications;
  const rpc::Connection* const wanted = from != nullptr ? from->connection().get() : nullptr;
  const sync::Clock::time_point deadline = deadline_in(timeout);
  std::vector<Notification> taken;
  while (true) {
    for (rpc::Notification& each : queue.take(wanted)) {
      taken.push_back({.from = Peer(std::move(each.from)), .tag = std::move(each.tag)});
    }
    if (!taken.empty()) return taken;
    if (core.engine().is_forked()) return engine::Engine::forked();
    if (queue.is_over(wanted)) return Status(ErrorCode::kAborted, "the runtime '" + name() + "' is closed");
    if (!queue.wait(core.engine(), wanted, deadline)) return taken;  // otherwise another thread may have taken it
  }
}

std::optional<rpc::ListenerCounts> Runtime::counts() const {
  return state_ ? state_->runtime->counts() : std::nullopt;
}

size_t Runtime::num_connections() const {
  return state_ ? state_->runtime->core().num_connections() : 0;
}

bool Runtime::serve(std::chrono::milliseconds at_most, std::chrono::milliseconds awake) {
  if (!state_) return false;
  return state_->runtime->serve(state_->is_stopped, deadline_in(at_most), bounded(awake));
}

void Runtime::stop() {
  if (!state_) return;
  state_->is_stopped.store(true);
  state_->runtime->wake();
}

bool Runtime::drain(std::chrono::milliseconds at_most) {
  if (!state_) return true;
  const bool drained = state_->runtime->drain(deadline_in(at_most));
  state_->close();
  return drained;
}

void Runtime::close() noexcept {
  if (state_) state_->close();
}

}  // namespace axon::library
