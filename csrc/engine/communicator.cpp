#include "engine/communicator.hpp"

#include <thread>

#include "base/thread_number.hpp"
#include "engine/engine.hpp"

namespace axon::engine {

// How often a thread checks for the answers to its query.
static constexpr std::chrono::milliseconds kAnswerPoll{5};

Communicator::Communicator(std::shared_ptr<Group> group) : group_(std::move(group)), engine_(group_->engine()) {}

Communicator::~Communicator() {
  if (engine_.is_forked()) return;
  close();
  engine_.exclusively([this] { group_->detach(); });
}

void Communicator::start(Operation& operation) noexcept {
  operation.join(*group_);
  if (operation.direction == Direction::kCollective) num_started_.fetch_add(1, std::memory_order_relaxed);
  if (engine_.is_forked()) [[unlikely]]
    return operation.fail_unstarted(forked(operation));
  engine_.submit(operation);
  if (!operation.finished()) engine_.wake();
}

Result<Replay> Communicator::number_capture(const Operation& operation) {
  const bool is_collective = operation.direction == Direction::kCollective;
  uint32_t& num_captured =
      is_collective ? num_captured_ : num_captured_messages_[{operation.direction, operation.peer, operation.tag}];
  if (num_captured == Replay::kMostCalls) {
    return Status(
        ErrorCode::kResourceExhausted,
        signed_text(operation.describe() + ": a group's CUDA graphs can hold " + std::to_string(Replay::kMostCalls) +
                    " such calls, counting those of graphs that are gone"));
  }
  return Replay{.call = ++num_captured, .launch = 0};
}

Result<std::shared_ptr<void>> Communicator::capture(const Operation& operation, uint32_t trigger_id,
                                                    std::shared_ptr<DeviceSegments> segments,
                                                    CapturedCall::OnFailure on_failure) {
  if (engine_.is_forked()) return Engine::forked();
  return engine_.exclusively([&]() -> Result<std::shared_ptr<void>> {
    const Result<Replay> replay = number_capture(operation);
    if (!replay.ok()) return replay.status().clone();
    auto call = std::make_shared<CapturedCall>(trigger_id, group_, operation, replay.value(), std::move(segments),
                                               std::move(on_failure));
    engine_.replays().add(call);
    return std::shared_ptr<void>(call.get(), [call](void*) { call->release(); });
  });
}

bool Communicator::wait(Operation& operation, sync::Clock::time_point deadline) noexcept {
  if (operation.finished()) return true;
  if (engine_.is_forked()) [[unlikely]] {
    operation.fail_in_fork(forked(operation));
    return engine_.wait(operation.finished_flag(), deadline);
  }
  operation.set_waiter(thread_number(), kernel_thread());
  const bool has_finished = engine_.wait(operation.finished_flag(), deadline);
  operation.set_waiter(0, 0);
  return has_finished;
}

Status Communicator::forked(const Operation& operation) const {
  const Status reason = Engine::forked();
  return {reason.code(), signed_text(operation.describe() + ": " + reason.message())};
}

void Communicator::abort(std::string reason) noexcept {
  if (engine_.is_forked()) return;
  engine_.exclusively([&] {
    if (group_->is_detached()) return;
    engine_.settle();  // operations that were started before are sent, and counted as sent
    group_->abort(reason);
    engine_.settle();
  });
}

void Communicator::close() noexcept {
  if (engine_.is_forked()) return;
  engine_.exclusively([this] {
    engine_.settle();
    group_->close();
    engine_.settle();
  });
}

void Communicator::leave(const std::string& reason) noexcept {
  if (engine_.is_forked()) return;
  engine_.exclusively([&] {
    engine_.settle();
    group_->leave(reason);
    engine_.settle();
  });
}

void Communicator::set_device_hook(DeviceHook* device_hook) noexcept {
  if (engine_.is_forked()) return;
  engine_.exclusively([&] { group_->set_device_hook(device_hook); });
}

const collectives::AlgorithmOverrides& Communicator::overrides() const noexcept {
  return engine_.overrides();
}

Result<PeerPath> Communicator::path_to(int rank) {
  if (engine_.is_forked()) return Engine::forked();
  return engine_.exclusively([&]() -> Result<PeerPath> {
    if (group_->is_detached() || rank >= size()) return group_->failure().clone();  // it has no members yet
    const transport::PeerId peer = group_->team().peers[static_cast<size_t>(rank)];
    Result<std::vector<transport::Lane>> lanes = engine_.messenger().transport().lanes(peer);
    if (!lanes.ok()) return std::move(lanes.status());
    PeerPath path{.same_host = engine_.peers().shares_host(peer), .lanes = std::move(lanes).value(), .obstacles = {}};
    if (!path.same_host) path.obstacles = engine_.messenger().transport().obstacles(peer);
    return path;
  });
}

// Drives between its looks, since in a callback on the background thread no other thread may receive the answers.
Status Communicator::failure() noexcept {
  if (engine_.is_forked()) return Engine::forked();
  using Check = Group::DeviceCheck;
  Check check = Check::kAsking;
  const auto look = [&] {
    check = group_->check_device_hook();
    if (check == Check::kFailed) engine_.settle();
    return group_->failure().clone();
  };
  for (;; std::this_thread::sleep_for(kAnswerPoll), engine_.catch_up()) {
    Status known = engine_.exclusively(look);
    if (check != Check::kAsking || !known.ok()) return known;
  }
}

std::vector<int> Communicator::missing_from(const Operation& operation) {
  if (engine_.is_forked() || operation.sequence() == 0) return {};
  static constexpr auto kNever = sync::Clock::time_point::max();
  const auto asked_at = engine_.exclusively([&] { return group_->is_detached() ? kNever : group_->ask_all(); });
  if (asked_at == kNever) return {};
  std::vector<int> missing;
  const auto look = [&] {
    missing = group_->answers().missing(operation.sequence(), asked_at);
    return group_->answers().all_since(asked_at) || group_->have_all_expired(asked_at);
  };
  for (;; std::this_thread::sleep_for(kAnswerPoll)) {
    engine_.catch_up();
    if (engine_.exclusively(look)) return missing;
  }
}

Status Communicator::explain(Operation& operation) noexcept {
  const sync::Clock::time_point asked_at = engine_.exclusively([&] {
    engine_.settle();  // it may not have begun
    const bool names_ranks = operation.is_running() && operation.direction == Direction::kCollective;
    return names_ranks ? group_->ask(operation) : sync::Clock::now();
  });
  const auto look = [&]() -> Status {
    if (!group_->has_heard_enough(operation, asked_at)) return Status();
    return {ErrorCode::kTimeout,
            signed_text(operation.describe() + ": Timed out in wait(timeout). " +
                        group_->findings(operation, asked_at) + " The operation goes on until its own timeout of " +
                        std::to_string(operation.timeout.count()) + " ms.")};
  };
  for (sync::Clock::time_point look_at = asked_at; !wait(operation, look_at);
       look_at = sync::Clock::now() + kAnswerPoll) {
    if (Status explained = engine_.exclusively(look); !explained.ok()) return explained;
  }
  return Status();
}

}  // namespace axon::engine
