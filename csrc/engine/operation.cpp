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
          .shape = shape,
          .called_at = called_at_,
          .call_site = call_site};
}

transport::Fingerprint Operation::fingerprint(uint8_t algorithm) const noexcept {
  return {.operation = arguments.kind,
          .dtype = arguments.dtype,
          .reduction = arguments.reduction,
          .algorithm = algorithm,
          .root = arguments.root,
          .num_elements = num_elements};
}

void Operation::join(Group& group) noexcept {
  group_ = &group;
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
  exchange_.emplace(messenger, inbox, sequence_, fingerprint);
}

void Operation::run(Engine& engine) noexcept {
  task_.emplace(exchange_messages());
  if (start_flag == nullptr || !exchange_->failure().ok()) return task_->resume();
  engine.wait_for_flag(start_flag_waiter_, *start_flag);
}

Task<Status> Operation::exchange_messages() {
  Status status;
  if (direction == Direction::kCollective) {
    messaging::View everyone(*exchange_);
    status = co_await algorithm_(everyone, arguments);
  } else {
    messaging::Batch batch(*exchange_);
    if (direction == Direction::kSend) {
      batch.send({.peer = peer, .slot = tag}, arguments.inputs[0]);
    } else {
      batch.receive({.peer = peer, .slot = tag}, arguments.outputs[0]);
    }
    status = co_await batch;
  }
  group_->on_run_ended(*this);
  co_return status;
}

// Without a flag that is set, the coroutine runs only to find that its exchange has failed.
void Operation::fail(Status reason) noexcept {
  exchange_->fail(std::move(reason));
  if (!start_flag_waiter_.linked()) return;
  start_flag_waiter_.unlink();
  task_->resume();
}

void Operation::finish() noexcept {
  group_->finish(*this);
}

Status Operation::take_outcome() noexcept {
  Status outcome = task_->take();
  task_.reset();
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
    on_finished();
    if (done_flag != nullptr) done_flag->store(1, std::memory_order_release);
    const bool is_released = released_at_end_;  // from finished_ on, another thread may release it
    finished_.store(true);
    if (!is_released && !is_half_over_.exchange(true)) return;
  }
  on_released();
}

}  // namespace axon::engine
