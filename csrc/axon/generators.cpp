#include "axon/generators.hpp"

#include <algorithm>
#include <utility>

#include "axon/guarded.hpp"

namespace axon::library {

static constexpr size_t kMostOpen = 1024;     // per runtime
static constexpr size_t kMostStopped = 1024;  // remembered per caller
// For values that other threads' requests need; longer than handing them over takes.
static constexpr std::chrono::microseconds kLongestTurn{100};

// Returns the number of the generator that a message is about.
static int64_t number_of(Invocation& invocation) noexcept {
  return invocation.arguments().argument(0).next().integer;
}

void OpenGenerator::next(Invocation invocation) {
  std::unique_lock lock(mutex_);
  waiting_.push_back(std::move(invocation));
  if (!is_running_ && kept_ == nullptr) run_those_that_wait(lock);
}

// Runs only the requests that wait now; further ones might keep arriving without end.
void OpenGenerator::run_those_that_wait(std::unique_lock<std::mutex>& lock) {
  is_running_ = true;
  const sync::Clock::time_point until = sync::Clock::now() + kLongestTurn;
  do {
    Invocation asked = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    run(std::move(asked));
    lock.lock();
  } while (!waiting_.empty() && sync::Clock::now() < until);
  is_running_ = false;
  Generator gone;
  if (is_closed()) gone = std::exchange(generator_, {});
  const bool leaves_some = !waiting_.empty();
  if (leaves_some) kept_ = shared_from_this();
  lock.unlock();
  if (leaves_some) engine_.submit_after_completion(*this);
}

void OpenGenerator::complete() noexcept {
  const std::shared_ptr<Gate> gate = gate_;  // until this function has ended
  // The pass may be closed: a closed runtime has closed this generator before its gate, and run() fails the waiting
  // requests.
  const Gate::Pass pass(*gate);
  std::unique_lock lock(mutex_);
  const std::shared_ptr<OpenGenerator> kept = std::exchange(kept_, nullptr);
  run_those_that_wait(lock);
}

void OpenGenerator::run(Invocation invocation) noexcept {
  Next next(std::move(invocation), shared_from_this(), num_asked_);
  if (is_closed()) return next.end();
  ++num_asked_;
  run_guarded(next, generator_);
}

void OpenGenerator::close() noexcept {
  Generator gone;
  const std::lock_guard lock(mutex_);
  is_closed_.store(true);
  if (!is_running_) gone = std::exchange(generator_, {});
}

bool Generators::Caller::has_stopped(int64_t number) const noexcept {
  return std::ranges::find(stopped, number) != stopped.end();
}

void Generators::open(Invocation& invocation, const GeneratorFunction& function) {
  const rpc::Value number = invocation.arguments().argument(kNumber).next();
  if (number.kind != rpc::Value::Kind::kInteger) {
    return invocation.fail("TypeError",
                           "'" + std::string(invocation.function()) + "' is a generator function; iterate over it");
  }
  const std::shared_ptr<rpc::Connection> caller = invocation.caller().connection();
  auto opened = std::make_shared<OpenGenerator>(caller->engine(), gate_, function(invocation.arguments()));
  const std::string fault = add(caller, number.integer, std::move(opened));
  if (!fault.empty()) return invocation.fail("BufferError", fault);
  if (caller->has_ended()) drop(caller);  // the end may have been reported before this was added
  invocation.answer().integer(number.integer);
  invocation.reply();
}

std::string Generators::add(const std::shared_ptr<rpc::Connection>& caller, int64_t number,
                            std::shared_ptr<OpenGenerator> generator) {
  const std::lock_guard lock(mutex_);
  if (is_closed_) return "the runtime is closed";
  if (num_open_ >= kMostOpen) return std::to_string(kMostOpen) + " generators are open, the limit per runtime";
  Caller& theirs = callers_[caller];
  if (theirs.has_stopped(number)) return {};
  if (!theirs.open.try_emplace(number, std::move(generator)).second) {
    return "generator " + std::to_string(number) + " is already open";
  }
  ++num_open_;
  return {};
}

void Generators::next(Invocation& invocation) {
  const int64_t number = number_of(invocation);
  std::shared_ptr<OpenGenerator> generator;
  bool has_stopped = false;
  {
    const std::lock_guard lock(mutex_);
    if (const auto caller = callers_.find(invocation.caller().connection()); caller != callers_.end()) {
      has_stopped = caller->second.has_stopped(number);
      if (const auto found = caller->second.open.find(number); found != caller->second.open.end()) {
        generator = found->second;
      }
    }
  }
  if (generator != nullptr) return generator->next(std::move(invocation));
  if (!has_stopped) return invocation.fail("LookupError", "there is no open generator " + std::to_string(number));
  invocation.answer().nothing();
  invocation.reply();
}

void Generators::stop(Invocation& invocation) {
  const int64_t number = number_of(invocation);
  const std::shared_ptr<rpc::Connection> connection = invocation.caller().connection();
  std::shared_ptr<OpenGenerator> stopped;
  {
    const std::lock_guard lock(mutex_);
    Caller& caller = callers_[connection];
    if (caller.stopped.size() == kMostStopped) caller.stopped.pop_front();
    caller.stopped.push_back(number);
    if (const auto found = caller.open.find(number); found != caller.open.end()) {
      stopped = std::move(found->second);
      caller.open.erase(found);
      --num_open_;
    }
  }
  if (stopped != nullptr) stopped->close();
  if (connection->has_ended()) drop(connection);
  invocation.answer().nothing();
  invocation.reply();
}

void Generators::drop(const std::shared_ptr<rpc::Connection>& connection) {
  Caller gone;
  {
    const std::lock_guard lock(mutex_);
    const auto found = callers_.find(connection);
    if (found == callers_.end()) return;
    gone = std::move(found->second);
    callers_.erase(found);
    num_open_ -= gone.open.size();
  }
  for (const auto& [number, generator] : gone.open) generator->close();
}

void Generators::close() noexcept {
  std::unordered_map<std::shared_ptr<rpc::Connection>, Caller> gone;
  {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    gone = std::exchange(callers_, {});
    num_open_ = 0;
  }
  for (const auto& [connection, caller] : gone) {
    for (const auto& [number, generator] : caller.open) generator->close();
  }
}

}  // namespace axon::library
