#include "gpu_comm/control_message.hpp"

#include <algorithm>
#include <utility>

namespace axon::gpu_comm {

// A peer may use its GPU in the group at any time, or never. Only the end of the group ends the wait for its control
// messages.
static constexpr std::chrono::hours kForever{24 * 365};

// The holder owns this operation, so its members must not be touched after this.
void HeldOperation::on_released() noexcept {
  const std::shared_ptr<void> last_touch = std::move(holder_);
}

void MinimumVote::cast(uint8_t value, std::chrono::milliseconds longest) {
  value_ = value;
  buffer_ = {.data = reinterpret_cast<std::byte*>(&value_), .num_bytes = 1};
  arguments.kind = transport::OperationKind::kAllReduce;
  arguments.dtype = DataType::kUint8;
  arguments.reduction = Reduction::kMin;
  arguments.outputs = {&buffer_, 1};
  num_elements = 1;
  shape.sizes[0] = 1;
  shape.num_dimensions = 1;
  timeout = longest;
}

void ControlMessage::describe(int rank, uint32_t message_tag, size_t num_bytes) {
  num_bytes_ = num_bytes;
  arguments.kind = transport::OperationKind::kPointToPoint;
  arguments.dtype = DataType::kByte;
  peer = rank;
  tag = message_tag;
  num_elements = num_bytes;
  shape.sizes[0] = static_cast<int64_t>(num_bytes);
  shape.num_dimensions = 1;
  timeout = kForever;
}

void ControlMessage::prepare_send(int rank, uint32_t tag, std::span<const std::byte> content) {
  describe(rank, tag, content.size());
  std::ranges::copy(content, content_.begin());
  direction = engine::Direction::kSend;
  input_ = {.data = content_.data(), .num_bytes = num_bytes_};
  arguments.inputs = {&input_, 1};
}

void ControlMessage::prepare_receive(int rank, uint32_t tag, size_t num_bytes, Reader& reader) {
  describe(rank, tag, num_bytes);
  reader_ = &reader;
  direction = engine::Direction::kReceive;
  output_ = {.data = content_.data(), .num_bytes = num_bytes_};
  arguments.outputs = {&output_, 1};
}

void ControlMessage::on_finished() noexcept {
  if (reader_ != nullptr) reader_->on_control_message(*this);
}

}  // namespace axon::gpu_comm
