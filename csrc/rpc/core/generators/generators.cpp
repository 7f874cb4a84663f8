#include "rpc/core/generators/generators.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "rpc/core/reply.hpp"

namespace axon::rpc {

static constexpr size_t kMostOpen = 1024;     // per runtime
static constexpr size_t kMostStopped = 1024;  // remembered per caller

// Returns the number of the generator that a message is about: [[number], nil].
static int64_t number_of(Invocation& invocation) noexcept {
  ValueReader values(invocation.arguments().values());
  values.next();
  values.next();
  return values.next().integer;
}

// Returns the name of the Python class.
static std::string_view class_of(ErrorCode code) noexcept {
  if (code == ErrorCode::kAborted) return "ConnectionError";
  return code == ErrorCode::kResourceExhausted ? "BufferError" : "ValueError";
}

bool Generators::Caller::has_stopped(int64_t number) const noexcept {
  return std::ranges::find(stopped, number) != stopped.end();
}

void Generators::open(Invocation& invocation, int64_t number, std::shared_ptr<OpenGenerator> generator) {
  const Status added = add(*invocation.connection(), number, generator);
  if (!added.ok()) return invocation.fail(class_of(added.code()), added.message());
  reply_with(invocation, [&](ValueWriter writer) { writer.integer(number); });
}

Status Generators::add(Connection& caller, int64_t number, const Shared& generator) {
  const std::lock_guard lock(mutex_);
  if (is_closed_) return {ErrorCode::kAborted, "the runtime is closed"};
  if (num_open_ >= kMostOpen) {
    return {ErrorCode::kResourceExhausted,
            std::to_string(kMostOpen) + " generators are open, which is the limit; close some of them first"};
  }
  Caller& theirs = callers_[caller.shared_from_this()];
  if (theirs.has_stopped(number)) return Status();
  if (!theirs.open.try_emplace(number, generator).second) {
    return {ErrorCode::kInvalidArgument, "generator " + std::to_string(number) + " is already open"};
  }
  ++num_open_;
  return Status();
}

void Generators::next(Invocation& invocation) {
  const int64_t number = number_of(invocation);
  Shared generator;
  bool has_stopped = false;
  {
    const std::lock_guard lock(mutex_);
    if (const auto caller = callers_.find(invocation.connection()); caller != callers_.end()) {
      if (const auto found = caller->second.open.find(number); found != caller->second.open.end()) {
        generator = found->second;
      } else {
        has_stopped = caller->second.has_stopped(number);
      }
    }
  }
  if (generator != nullptr) return generator->next(invocation);
  if (has_stopped) return reply_with_nothing(invocation);
  invocation.fail("LookupError", "no generator " + std::to_string(number) + " is open");
}

void Generators::stop(Invocation& invocation) {
  const int64_t number = number_of(invocation);
  Shared stopped;
  {
    const std::lock_guard lock(mutex_);
    Caller& caller = callers_[invocation.connection()];
    if (caller.stopped.size() == kMostStopped) caller.stopped.pop_front();
    caller.stopped.push_back(number);
    if (const auto found = caller.open.find(number); found != caller.open.end()) {
      stopped = std::move(found->second);
      caller.open.erase(found);
      --num_open_;
    }
  }
  if (stopped != nullptr) stopped->close();
  reply_with_nothing(invocation);
}

void Generators::drop(Connection& connection) {
  Caller gone;
  {
    const std::lock_guard lock(mutex_);
    const auto found = callers_.find(connection.shared_from_this());
    if (found == callers_.end()) return;
    gone = std::move(found->second);
    callers_.erase(found);
    num_open_ -= gone.open.size();
  }
  for (const auto& [number, generator] : gone.open) generator->close();
}

void Generators::close() noexcept {
  std::unordered_map<std::shared_ptr<Connection>, Caller> gone;
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

}  // namespace axon::rpc
