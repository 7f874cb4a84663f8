#include <array>

#include "c10d/backend.hpp"

namespace axon::c10d_backend {

namespace {

uint32_t checked_tag(const char* operation, int tag) {
  check_tag({operation, "tag"}, tag);
  return static_cast<uint32_t>(tag);
}

}  // namespace

AxonBackend::WorkPtr AxonBackend::point_to_point(const Call& call, const TensorList& tensors,
                                                 engine::Direction direction, int peer, uint32_t tag,
                                                 std::chrono::milliseconds timeout) {
  const at::Tensor& tensor = single({call.name(), "tensors"}, tensors);
  auto work = make_work(call, tensors);
  WorkOperation& operation = add_operation(*work, transport::OperationKind::kPointToPoint, tensor);
  operation.direction = direction;
  operation.peer = peer;
  operation.tag = tag;
  operation.num_elements = count_elements(tensor, operation.arguments.dtype);
  if (direction == engine::Direction::kSend) {
    operation.add_input(tensor);
  } else {
    operation.add_output(tensor);
  }
  return run(std::move(work), call, {.asynchronous = true, .timeout = timeout});
}

AxonBackend::WorkPtr AxonBackend::send(TensorList& tensors, int destination, int tag) {
  static constexpr Call kCall{c10d::OpType::SEND, "axon:send"};
  check_rank({"send", "dst"}, destination, size_);
  return point_to_point(kCall, tensors, engine::Direction::kSend, destination, checked_tag("send", tag));
}

AxonBackend::WorkPtr AxonBackend::recv(TensorList& tensors, int source, int tag) {
  static constexpr Call kCall{c10d::OpType::RECV, "axon:recv"};
  check_rank({"recv", "src"}, source, size_);
  return point_to_point(kCall, tensors, engine::Direction::kReceive, source, checked_tag("recv", tag));
}

AxonBackend::WorkPtr AxonBackend::recvAnysource(TensorList& tensors, int tag) {
  static constexpr Call kCall{c10d::OpType::RECVANYSOURCE, "axon:recvAnySource"};
  return point_to_point(kCall, tensors, engine::Direction::kReceive, messaging::kAnyRank,
                        checked_tag(kCall.name(), tag));
}

AxonBackend::WorkPtr AxonBackend::send_reserved(const at::Tensor& tensor, int destination, uint32_t tag,
                                                std::chrono::milliseconds timeout) {
  static constexpr Call kCall{c10d::OpType::SEND, "axon:send"};
  return point_to_point(kCall, {tensor}, engine::Direction::kSend, destination, reserved(tag), timeout);
}

AxonBackend::WorkPtr AxonBackend::recv_reserved(const at::Tensor& tensor, int source, uint32_t tag,
                                                std::chrono::milliseconds timeout) {
  static constexpr Call kCall{c10d::OpType::RECV, "axon:recv"};
  return point_to_point(kCall, {tensor}, engine::Direction::kReceive, source, reserved(tag), timeout);
}

}  // namespace axon::c10d_backend
