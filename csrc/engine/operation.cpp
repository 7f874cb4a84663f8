#include "engine/operation.hpp"

#include <algorithm>

#include "engine/engine.hpp"
#include "engine/group.hpp"

namespace axon::engine {

// Longer timeouts would overflow the clock.
static constexpr std::chrono::hours kLongestTimeout{24 * 365};

CallRecord Operation::record() const {
  return {.kind = arguments.kind,
          .direction = direction,
          .dtype = arguments.dtype,
          .reduction = arguments.reduction,
          .root = arguments.root,
          .peer = peer,
          .tag = tag,
          .sequence = sequence_,
          .replay = replay,
          .shape = shape,
          .called_at = called_at_,
          .call_site = call_site};
}

transport::Fingerprint Operation::fingerprint(uint8_t algorithm) const noexcept {
  const bool is_message = direction != Direction::kCollective;
  return {.operation = arguments.kind,
          .dtype = arguments.dtype,
          .reduction = arguments.reduction,
          .algorithm = algorithm,
          .root = is_message ? -1 - static_cast<int32_t>(replay.call) : arguments.root,
          .num_elements = num_elements};
}

uint8_t Operation::division() const noexcept {
  // The ranks of an all_to_all may have different numbers of segments.
  const bool is_divided = num_segments() > 1 && arguments.kind != transport::OperationKind::kAllToAll;
  return (scope == Scope::kColumn ? kColumns : 0) | (is_divided ? kSegments : 0);
}

void Operation::join(Group& group) noexcept {
  group_ = &group;
  const bool is_on_host = device_segments == nullptr && !replay;
  if (group.result_check() && is_on_host && ResultCheck::covers(arguments.kind)) [[unlikely]]
    result_check_ = group.result_check();
  called_at_ = sync::Clock::now();
  deadline_ = called_at_ + std::min<std::chrono::milliseconds>(timeout, kLongestTimeout);
}

void Operation::fail_in_fork(Status failure) noexcept {
  status_ = std::move(failure);
  complete();
}

void Operation::fail_unstarted(Status failure) noexcept {
  released_at_end_ = true;
  fail_in_fork(std::move(failure));
}

void Operation::begin() noexcept {
  group_->begin(*this);
}

void Operation::number(uint32_t sequence, collectives::Algorithm algorithm) noexcept {
  sequence_ = sequence;
  algorithm_ = algorithm;
}

void Operation::open(messaging::Messenger& messenger, messaging::Inbox& inbox,
                     const transport::Fingerprint& fingerprint) {
  exchange_.emplace(messenger, inbox, replay ? replay.sequence() : sequence_, fingerprint);
}

void Operation::run(Engine& engine) noexcept {
  if (is_segmented()) segmented_exchange_.emplace(engine, *this, *exchange_, device_segments);
  task_.emplace(exchange_messages());
  task_->resume();
}

bool Operation::is_segmented() const noexcept {
  if (device_segments != nullptr) return true;
  if (direction == Direction::kCollective) return false;
  const size_t num_bytes =
      direction == Direction::kSend ? arguments.inputs[0].num_bytes : arguments.outputs[0].num_bytes;
  return SegmentedExchange::count_segments(num_bytes) > 1;
}

Task<Status> Operation::exchange_segments() {
  switch (direction) {
    case Direction::kSend:
      return segmented_exchange_->send({.peer = peer, .slot = tag}, arguments.inputs[0]);
    case Direction::kReceive:
      return segmented_exchange_->receive({.peer = peer, .slot = tag}, arguments.outputs[0]);
    default:
      return segmented_exchange_->run_collective(algorithm_, arguments, scope);
  }
}

Task<Status> Operation::exchange_messages() {
  if (waits_for_turn_) [[unlikely]]
    co_await Turn{*this};
  Status status;
  if (segmented_exchange_) {
    status = co_await exchange_segments();
  } else if (direction == Direction::kCollective) {
    messaging::View everyone(*exchange_);
    status = co_await algorithm_(everyone, arguments);
  } else {
    messaging::Batch batch(*exchange_);
    if (direction == Direction::kSend) {
      batch.send({.peer = peer, .slot = tag}, arguments.inputs[0]);
    } else {
      batch.receive({.peer = peer, .slot = tag}, arguments.outputs[0]);
    }
    note_posted();
    status = co_await batch;
    if (direction == Direction::kReceive && !status.ok()) exchange_->refuse_later_parts();
  }
  group_->on_run_ended(*this);
  co_return status;
}

void Operation::fail(Status reason) noexcept {
  exchange_->fail(std::move(reason));
  if (segmented_exchange_) segmented_exchange_->stop_waiting();
  take_turn();
}

void Operation::note_posted() noexcept {
  if (static_cast<UnpostedSend&>(*this).linked()) group_->on_posted(*this);
}

void Operation::take_turn() noexcept {
  if (!std::exchange(waits_for_turn_, false)) return;
  if (turn_.has_waiter()) group_->engine().messenger().schedule(turn_);
}

void Operation::finish() noexcept {
  group_->finish(*this);
}

Status Operation::take_outcome() noexcept {
  Status outcome = task_->take();
  task_.reset();
  segmented_exchange_.reset();
  source_ = exchange_->matched_source();
  return outcome;
}

bool Operation::end(Status status) noexcept {
  status_ = std::move(status);
  released_at_end_ = !exchange_ || exchange_->at_rest();
  if (released_at_end_) exchange_.reset();
  return released_at_end_;
}

bool Operation::release() noexcept {
  exchange_.reset();
  return is_half_over_.exchange(true);
}

// The thread that completes the operation may be held up before it, while another one releases it.
void Operation::complete() noexcept {
  if (!finished()) {
    if (result_check_ && status_.ok() && sequence_ != 0) [[unlikely]]
      ResultCheck::note(std::move(result_check_),
                        {.number = sequence_, .digest = ResultCheck::digest_of(arguments), .call = record()});
    on_finished();
    if (device_segments != nullptr && !status_.ok()) device_segments->fail();
    const bool is_released = released_at_end_;  // from finished_ on, another thread may release it
    finished_.store(true);
    if (!is_released && !is_half_over_.exchange(true)) return;
  }
  on_released();
}

}  // namespace axon::engine
