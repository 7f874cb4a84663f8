#include "engine/communicator.hpp"

#include <algorithm>

#include "base/trace.hpp"
#include "collectives/selector.hpp"
#include "engine/engine.hpp"

namespace axon::engine {

// Longer timeouts would overflow the clock.
static constexpr std::chrono::hours kLongestTimeout{24 * 365};

Communicator::Communicator(Engine& engine, std::string name, messaging::Team team)
    : engine_(engine),
      name_(std::move(name)),
      team_(std::move(team)),
      track_(trace::is_on() ? trace::add_track(name_) : 0),
      answers_(team_.size()) {
  inbox_.emplace(*engine_.transport_, engine_.messenger_.size_class_pool(), team_, *this);
}

Communicator::~Communicator() {
  if (engine_.is_forked()) return;
  close();
  engine_.progress_->exclusively([this] { leave(); });
}

void Communicator::leave() noexcept {
  if (!inbox_) return;
  inbox_->flow().dismiss();
  engine_.messenger_.detach(*inbox_);
  inbox_.reset();
  std::erase(engine_.communicators_, this);
}

void Communicator::start(Operation& operation) noexcept {
  operation.communicator_ = this;
  operation.called_at_ = sync::Clock::now();
  operation.deadline_ = operation.called_at_ + std::min<std::chrono::milliseconds>(operation.timeout, kLongestTimeout);
  if (operation.direction == Direction::kCollective) num_started_.fetch_add(1, std::memory_order_relaxed);
  if (engine_.is_forked()) [[unlikely]] {
    operation.released_ = true;
    return fail_in_fork(operation);
  }
  engine_.submit(operation);
  if (!operation.finished()) engine_.wake();
}

bool Communicator::wait(Operation& operation, sync::Clock::time_point deadline) noexcept {
  if (operation.finished()) return true;
  if (engine_.is_forked()) [[unlikely]]
    fail_in_fork(operation);
  return engine_.progress_->wait(operation.finished_, deadline);
}

// Changes this process's memory only. What its parent had in flight is never released here: the engine stays unchanged.
void Communicator::fail_in_fork(Operation& operation) noexcept {
  const Status reason = Engine::forked();
  operation.status_ = Status(reason.code(), signed_text(operation.describe() + ": " + reason.message()));
  operation.next = nullptr;
  engine_.complete(&operation);
}

void Communicator::set_device_hook(DeviceHook* device_hook) noexcept {
  if (engine_.is_forked()) return;
  engine_.progress_->exclusively([&] {
    device_hook_ = device_hook;
    if (device_hook == nullptr) return;
    if (const Status& reason = aborted_.ok() ? failure_ : aborted_; !reason.ok()) device_hook->on_failed(reason);
    for (int rank = 0; rank < size(); ++rank) {
      const transport::PeerId peer = team_.peers[static_cast<size_t>(rank)];
      if (engine_.messenger_.is_lost(peer)) device_hook->on_rank_lost(rank, loss_of(rank));
    }
  });
}

Result<PeerPath> Communicator::path_to(int rank) {
  if (engine_.is_forked()) return Engine::forked();
  return engine_.progress_->exclusively([&]() -> Result<PeerPath> {
    if (!inbox_) return aborted_.clone();
    const transport::PeerId peer = team_.peers[static_cast<size_t>(rank)];
    Result<std::vector<transport::Lane>> lanes = engine_.transport_->lanes(peer);
    if (!lanes.ok()) return std::move(lanes.status());
    return PeerPath{.same_host = engine_.peers_.shares_host(peer), .lanes = std::move(lanes).value()};
  });
}

const collectives::AlgorithmRow& Communicator::algorithm_for(transport::OperationKind kind,
                                                             size_t num_bytes) const noexcept {
  return collectives::select(kind, {size(), team_.on_one_host}, num_bytes, engine_.overrides_);
}

const collectives::AlgorithmOverrides& Communicator::overrides() const noexcept {
  return engine_.overrides_;
}

// Returns why this operation cannot begin, or ok if it can.
const Status& Communicator::obstacle(const Operation& operation) const noexcept {
  return aborted_.ok() && operation.direction == Direction::kCollective ? failure_ : aborted_;
}

void Communicator::begin(Operation& operation) noexcept {
  ++engine_.num_running_;
  if (!obstacle(operation).ok()) {
    engine_.finished_.push_back(operation);
    return;
  }
  transport::Fingerprint fingerprint = operation.fingerprint(0);
  std::string_view algorithm;
  if (operation.direction == Direction::kCollective) {
    const collectives::CollectiveArguments& arguments = operation.arguments;
    const collectives::AlgorithmRow& row =
        algorithm_for(arguments.kind, operation.num_elements * size_of(arguments.dtype));
    operation.algorithm_ = row.algorithm;
    operation.sequence_ = latest_.sequence + 1;
    fingerprint.algorithm = row.id;
    latest_ = operation.record();
    algorithm = row.name;
  }
  if (trace::is_on()) [[unlikely]]
    trace_begin(operation, algorithm);
  operation.exchange_.emplace(engine_.messenger_, *inbox_, operation.sequence_, fingerprint);
  running_.push_back(operation);
  if (operation.direction == Direction::kCollective) inbox_->enter(operation.sequence_, fingerprint);
  operation.task_.emplace(operation.run());
  if (operation.start_flag == nullptr) return operation.task_->resume();
  engine_.awaiting_start_.push_back(&operation);
  engine_.progress_->wake_to_look();
}

void Communicator::on_run_finished(Operation& operation) noexcept {
  operation.unlink();
  const bool leaves = operation.direction == Direction::kCollective && operation.exchange_->failure().ok();
  if (leaves) inbox_->leave(operation.sequence_);
  engine_.finished_.push_back(operation);
}

void Communicator::finish(Operation& operation) noexcept {
  Status status = operation.task_ ? operation.task_->take() : obstacle(operation).clone();
  operation.task_.reset();
  if (operation.exchange_) operation.source_ = operation.exchange_->matched_source();
  if (trace::is_on() && operation.exchange_) [[unlikely]]
    trace_end(operation, status);
  if (status.ok()) return;
  const std::string described = operation.describe() + ": " + status.message();
  if (operation.direction == Direction::kCollective && failure_.ok()) fail(Status(status.code(), described));
  operation.status_ = Status(status.code(), signed_text(described));
}

std::string Communicator::signed_text(const std::string& text) const {
  return "[rank " + std::to_string(rank()) + " of group '" + name_ + "'] " + text;
}

}  // namespace axon::engine
