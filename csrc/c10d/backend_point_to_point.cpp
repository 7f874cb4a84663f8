#include <array>

#include "c10d/backend.hpp"

namespace axon::c10d_backend {

AxonBackend::WorkPtr AxonBackend::point_to_point(const Call& call, const TensorList& tensors,
                                                 engine::Direction direction, int peer, int tag) {
  const at::Tensor& tensor = single({call.name(), "tensors"}, tensors);
  check_tag({call.name(), "tag"}, tag);
  auto work = make_work(call, tensors);
  WorkOperation& operation = add_operation(*work, transport::OperationKind::kPointToPoint, tensor);
  operation.direction = direction;
  operation.peer = peer;
  operation.tag = static_cast<uint32_t>(tag);
  operation.num_elements = count_elements(tensor, operation.arguments.dtype);
  if (direction == engine::Direction::kSend) {
    operation.add_input(tensor);
  } else {
    operation.add_output(tensor);
  }
  return run(std::move(work), call, {.asynchronous = true, .timeout = c10d::kUnsetTimeout});
}

AxonBackend::WorkPtr AxonBackend::send(TensorList& tensors, int destination, int tag) {
  static constexpr Call kCall{c10d::OpType::SEND, "axon:send"};
  check_rank({"send", "dst"}, destination, size_);
  return point_to_point(kCall, tensors, engine::Direction::kSend, destination, tag);
}

AxonBackend::WorkPtr AxonBackend::recv(TensorList& tensors, int source, int tag) {
  static constexpr Call kCall{c10d::OpType::RECV, "axon:recv"};
  check_rank({"recv", "src"}, source, size_);
  return point_to_point(kCall, tensors, engine::Direction::kReceive, source, tag);
}

AxonBackend::WorkPtr AxonBackend::recvAnysource(TensorList& tensors, int tag) {
  static constexpr Call kCall{c10d::OpType::RECVANYSOURCE, "axon:recvAnySource"};
  return point_to_point(kCall, tensors, engine::Direction::kReceive, messaging::kAnyRank, tag);
}

}  // namespace axon::c10d_backend
