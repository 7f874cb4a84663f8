#include "engine/group.hpp"

#include <cstring>
#include <span>

#include "base/config.hpp"
#include "base/sha256.hpp"
#include "base/trace.hpp"
#include "collectives/selector.hpp"
#include "engine/engine.hpp"
#include "engine/operation_trace.hpp"
#include "engine/overlay.hpp"

namespace axon::engine {

static std::shared_ptr<ResultCheck> make_result_check(Engine& engine, const messaging::Team& team) {
  if (team.size() == 1 || config::text("AXON_CHECK_RESULTS") != "1") return nullptr;
  return std::make_shared<ResultCheck>(engine, team);
}

// Equal on all ranks of the group, and on no others, because the keys are random. A digest, since the keys are secret.
static uint64_t identity_of(const messaging::Team& team) noexcept {
  const Digest digest = Sha256().add(std::as_bytes(std::span(team.keys))).finish();
  uint64_t identity = 0;
  std::memcpy(&identity, digest.data(), sizeof identity);
  return identity;
}

static GroupFacts facts_of(const std::string& name, const messaging::Team& team) noexcept {
  return {.name = name,
          .identity = identity_of(team),
          .rank = team.rank,
          .size = team.size(),
          .num_on_host = static_cast<int>(team.topology.ranks_on(team.topology.host_of(team.rank)).size())};
}

Group::Group(Engine& engine, std::string name, messaging::Team team)
    : engine_(engine),
      name_(std::move(name)),
      team_(std::move(team)),
      notified_(overlay::notified_by(team_.rank, team_.size())),
      track_(trace::is_on() ? trace::add_track(name_) : 0),
      status_(engine.status_page(), facts_of(name_, team_)),
      queries_(engine.messenger(), team_, notified_, status_),
      result_check_(make_result_check(engine, team_)) {
  inbox_.emplace(engine.messenger().transport(), engine.messenger().size_class_pool(), team_, *this);
}

void Group::open() {
  self_ = shared_from_this();
  engine_.messenger().attach(*inbox_);
}

void Group::detach() noexcept {
  if (!inbox_) return;
  device_hook_ = nullptr;
  inbox_->flow().dismiss([this](int rank) { return inbox_->num_sent(rank); });
  engine_.messenger().detach(*inbox_);
  inbox_.reset();
  status_.hide();
}

std::string Group::signed_text(const std::string& text) const {
  return "[rank " + std::to_string(team_.rank) + " of group '" + name_ + "'] " + text;
}

const collectives::AlgorithmRow& Group::algorithm_for(transport::OperationKind kind, size_t num_bytes) const noexcept {
  return collectives::select(kind, {team_.size(), team_.topology.num_hosts()}, num_bytes, engine_.overrides());
}

const collectives::AlgorithmRow& Group::algorithm_for(const Operation& operation) const noexcept {
  const transport::OperationKind kind = operation.arguments.kind;
  size_t num_bytes = operation.num_elements * size_of(operation.arguments.dtype);
  if (operation.device_segments == nullptr) [[likely]]
    return algorithm_for(kind, num_bytes);
  num_bytes /= operation.num_segments();
  if (operation.scope == Scope::kEveryone) return algorithm_for(kind, num_bytes);
  const int num_hosts = team_.topology.num_hosts();
  const auto num_columns = static_cast<size_t>(team_.topology.num_columns());
  return collectives::select(kind, {num_hosts, num_hosts}, num_bytes / num_columns, {});
}

void Group::note_launch(const Operation& operation, std::string_view kernel, bool runs) {
  CallRecord record = operation.record();
  record.called_at = sync::Clock::now();
  has_worked_.store(true, std::memory_order_relaxed);
  if (operation.direction == Direction::kCollective) {
    queries_.note_launch(record);
    if (runs) {
      mutual_waits_.note_launch();
      status_.note_launch(record, queries_.num_launched());
    } else {
      status_.note_capture(record);
    }
  } else {
    status_.note_message(record);
  }
  if (trace::is_on()) [[unlikely]]
    trace_launch(track_, record, operation.arguments, kernel);
}

// Returns why this operation cannot begin, or ok if it can.
const Status& Group::obstacle(const Operation& operation) const noexcept {
  if (!aborted_.ok() || operation.direction != Direction::kCollective) return aborted_;
  return failure_.ok() && needs_rank_that_left(operation) ? leave_->reason : failure_;
}

// For a collective that has not begun.
bool Group::needs_rank_that_left(const Operation& operation) const noexcept {
  return leave_ && is_after_leave(operation.replay ? 0 : queries_.latest_sequence() + 1);
}

void Group::begin(Operation& operation) noexcept {
  const bool is_collective = operation.direction == Direction::kCollective;
  if (is_collective && needs_rank_that_left(operation)) [[unlikely]]
    fail_after_leave();
  if (!obstacle(operation).ok()) return engine_.finish_later(operation);
  transport::Fingerprint fingerprint = operation.fingerprint(0);
  std::string_view algorithm;
  if (is_collective) {
    const collectives::AlgorithmRow& row = algorithm_for(operation);
    operation.number(operation.replay ? 0 : queries_.note_begin(operation.call_site), row.algorithm);
    fingerprint.algorithm = row.id | operation.division();
    algorithm = row.name;
  }
  operation.set_status_token(status_.begin(operation));
  if (trace::is_on()) [[unlikely]]
    trace_begin(track_, operation, algorithm);
  operation.open(engine_.messenger(), *inbox_, fingerprint);
  running_.push_back(operation);
  if (operation.device_segments != nullptr) engine_.begin_device_operation();
  if (operation.sequence() != 0) inbox_->enter(operation.sequence(), fingerprint);
  if (operation.direction == Direction::kSend) put_in_order(operation);
  operation.run(engine_);
}

static bool is_same_link(const Operation& left, const Operation& right) noexcept {
  return left.peer == right.peer && left.tag == right.tag && left.replay.call == right.replay.call;
}

// Messages to one rank under one tag match in the order of their calls. One from a device is posted later than it
// begins, and those after it wait.
void Group::put_in_order(Operation& send) noexcept {
  if (unposted_.empty() && send.device_segments == nullptr) [[likely]]
    return;
  const bool has_earlier =
      unposted_.find([&](const Operation& earlier) { return is_same_link(earlier, send); }) != nullptr;
  if (has_earlier) send.wait_for_turn();
  if (has_earlier || send.device_segments != nullptr) unposted_.push_back(send);
}

void Group::on_posted(Operation& send) noexcept {
  static_cast<ListNode<Operation, Unposted>&>(send).unlink();
  Operation* const next = unposted_.find([&](const Operation& later) { return is_same_link(later, send); });
  if (next != nullptr) next->take_turn();
}

void Group::on_run_ended(Operation& operation) noexcept {
  static_cast<ListNode<Operation>&>(operation).unlink();
  operation.note_posted();  // if it has failed before
  const bool leaves = operation.sequence() != 0 && operation.exchange().failure().ok();
  if (leaves) inbox_->leave(operation.sequence());
  engine_.finish_later(operation);
}

void Group::finish(Operation& operation) noexcept {
  const bool has_run = operation.is_running();
  Status status = has_run ? operation.take_outcome() : obstacle(operation).clone();
  if (has_run) status_.end(operation.status_token(), status.ok());
  if (has_run && operation.device_segments != nullptr) engine_.end_device_operation();
  if (trace::is_on() && has_run) [[unlikely]]
    trace_end(track_, operation, status);
  if (status.ok()) {
    has_worked_.store(true, std::memory_order_relaxed);
  } else {
    const std::string described = operation.describe() + ": " + status.message();
    const bool needs_all = operation.direction == Direction::kCollective && failure_.ok();
    if (needs_all && !(leave_ && is_after_leave(operation.sequence()))) fail(Status(status.code(), described));
    status = Status(status.code(), signed_text(described));
  }
  if (!operation.end(std::move(status))) restless_.push_back(operation);
  engine_.post(operation);
}

void Group::release_rested() noexcept {
  for (Operation* operation = restless_.front(); operation != nullptr;) {
    Operation* next = restless_.next(*operation);
    if (operation->is_at_rest()) release(*operation);
    operation = next;
  }
}

void Group::release(Operation& operation) noexcept {
  static_cast<ListNode<Operation>&>(operation).unlink();
  if (operation.release()) engine_.post(operation);
}

void Group::show_waits() noexcept {
  for_each_running([&](Operation& operation) {
    status_.note_waiter(operation.status_token(), operation.kernel_waiter());
    if (operation.device_segments != nullptr && operation.is_running())
      status_.note_awaits_device(operation.status_token(), operation.awaits_device());
  });
}

bool Group::tick(sync::Clock::time_point now) noexcept {
  check_device_hook();
  check_deadlines(now);
  check_mutual_waits(now);
  check_results(now);
  make_contacts(now);
  show_waits();
  release_rested();
  if (!is_detached() || !restless_.empty()) return true;
  const std::shared_ptr<Group> may_go = std::move(self_);
  return false;
}

bool Group::has_operations() const noexcept {
  const bool asks_for_fault = asked_for_fault_at_ && failure_.ok();
  return !running_.empty() || !restless_.empty() || asks_for_fault;
}

bool Group::has_running() const noexcept {
  const bool has_results = result_check_ && result_check_->has_work() && failure().ok() && !is_detached();
  return has_operations() || has_results;
}

// After a kernel has timed out, its output is undefined and must not be compared.
void Group::check_results(sync::Clock::time_point now) noexcept {
  if (!result_check_ || asked_for_fault_at_ || !failure().ok() || is_detached()) return;
  if (Status verdict = result_check_->tick(now); !verdict.ok()) fail(std::move(verdict));
}

void Group::on_shut_down() noexcept {
  end(Status(ErrorCode::kAborted, "the process shuts torch_axon down"));
  engine_.settle();
  detach();
}

void Group::on_transport_gone() noexcept {
  while (Operation* operation = restless_.front()) release(*operation);
  const std::shared_ptr<Group> may_go = std::move(self_);
}

}  // namespace axon::engine
