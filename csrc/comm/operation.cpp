#include "comm/operation.hpp"

#include "comm/communicator.hpp"

namespace axon {

static std::string describe(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.num_dimensions; ++i) {
    if (i != 0) text += ", ";
    text += std::to_string(shape.sizes[i]);
  }
  return text + "]";
}

std::string Operation::describe() const {
  std::string text;
  if (direction == Direction::kCollective) {
    text = std::string(name_of(arguments.kind)) + " #" + std::to_string(sequence_);
  } else if (direction == Direction::kSend) {
    text = "send to rank " + std::to_string(peer);
  } else {
    text = "receive from " + (peer == kAnyRank ? "any rank" : "rank " + std::to_string(peer));
  }
  if (arguments.kind == OperationKind::kBarrier) return text;
  text += std::string(" (") + name_of(arguments.dtype) + axon::describe(shape);
  if (arguments.reduction != Reduction::kNone) text += std::string(", ") + name_of(arguments.reduction);
  if (arguments.root >= 0) text += ", root " + std::to_string(arguments.root);
  if (direction != Direction::kCollective) text += ", tag " + std::to_string(tag);
  return text + ")";
}

Fingerprint Operation::fingerprint(uint8_t algorithm) const noexcept {
  return {.operation = arguments.kind,
          .dtype = arguments.dtype,
          .reduction = arguments.reduction,
          .algorithm = algorithm,
          .root = arguments.root,
          .num_elements = num_elements};
}

Task<Status> Operation::run() {
  Status status;
  if (direction == Direction::kCollective) {
    status = co_await algorithm_(*exchange_, arguments);
  } else {
    Batch batch(*exchange_);
    if (direction == Direction::kSend) {
      batch.send({.peer = peer, .slot = tag}, arguments.inputs[0]);
    } else {
      batch.receive({.peer = peer, .slot = tag}, arguments.outputs[0]);
    }
    status = co_await batch;
  }
  communicator_->on_run_over(*this);
  co_return status;
}

}  // namespace axon
