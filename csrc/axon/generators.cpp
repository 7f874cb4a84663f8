#include "axon/generators.hpp"

#include <string>
#include <utility>

#include "axon/guarded.hpp"

namespace axon::library {

// For values that other threads' requests need; longer than handing them over takes.
static constexpr std::chrono::microseconds kLongestTurn{100};

void OpenGenerator::next(rpc::Invocation& invocation) {
  std::unique_lock lock(mutex_);
  waiting_.emplace_back(&invocation);
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

void open_generator(Invocation& invocation, rpc::Generators& generators, std::shared_ptr<Gate> gate,
                    const GeneratorFunction& function) {
  const rpc::Value number = invocation.arguments().argument(rpc::kNumber).next();
  if (number.kind != rpc::Value::Kind::kInteger) {
    return invocation.fail("TypeError",
                           "'" + std::string(invocation.function()) + "' is a generator function; iterate over it");
  }
  const std::shared_ptr<rpc::Connection> caller = invocation.caller().connection();
  auto opened = std::make_shared<OpenGenerator>(caller->engine(), std::move(gate), function(invocation.arguments()));
  generators.open(*static_cast<rpc::Invocation*>(invocation.hand_over()), number.integer, std::move(opened));
  if (caller->has_ended()) generators.drop(*caller);  // the end may have been reported before
}

}  // namespace axon::library
