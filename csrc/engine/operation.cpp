#include "engine/operation.hpp"

#include "engine/communicator.hpp"

namespace axon::engine {

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

void Operation::begin() noexcept {
  communicator_->begin(*this);
}

void Operation::complete() noexcept {
  const bool released = released_;  // read before finished_ is set: another thread may change it from then on
  if (!finished()) {
    on_finished();
    if (done_flag != nullptr) done_flag->store(1, std::memory_order_release);
    finished_.store(true);
  }
  if (released) on_released();
}

Task<Status> Operation::run() {
  Status status;
  if (direction == Direction::kCollective) {
    status = co_await algorithm_(*exchange_, arguments);
  } else {
    messaging::Batch batch(*exchange_);
    if (direction == Direction::kSend) {
      batch.send({.peer = peer, .slot = tag}, arguments.inputs[0]);
    } else {
      batch.receive({.peer = peer, .slot = tag}, arguments.outputs[0]);
    }
    status = co_await batch;
  }
  communicator_->on_run_finished(*this);
  co_return status;
}

}  // namespace axon::engine
