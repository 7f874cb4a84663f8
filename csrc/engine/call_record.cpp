#include "engine/call_record.hpp"

#include "messaging/exchange.hpp"

namespace axon::engine {

static std::string to_text(const Shape& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.num_dimensions; ++i) {
    if (i != 0) text += ", ";
    text += std::to_string(shape.sizes[i]);
  }
  return text + "]";
}

std::string CallRecord::describe() const {
  std::string text;
  if (direction == Direction::kCollective) {
    text = name_of(kind);
    if (sequence != 0) text += " #" + std::to_string(sequence);
  } else if (direction == Direction::kSend) {
    text = "send to rank " + std::to_string(peer);
  } else {
    text = "receive from " + (peer == messaging::kAnyRank ? "any rank" : "rank " + std::to_string(peer));
  }
  if (replay) {
    text += " of CUDA graphs (captured as #" + std::to_string(replay.call) +
            (call_site.empty() ? "" : " at " + std::string(call_site)) + ", launch #" + std::to_string(replay.launch) +
            ")";
  }
  if (kind == transport::OperationKind::kBarrier) return text;
  text += std::string(" (") + name_of(dtype) + to_text(shape);
  if (reduction != Reduction::kNone) text += std::string(", ") + name_of(reduction);
  if (root >= 0) text += ", root " + std::to_string(root);
  if (direction != Direction::kCollective) text += ", tag " + std::to_string(tag);
  return text + ")";
}

std::string CallRecord::describe_with_age() const {
  const auto age = std::chrono::duration_cast<std::chrono::milliseconds>(sync::Clock::now() - called_at).count();
  return describe() + ", " + std::to_string(age / 1000) + "." + std::to_string(age % 1000 / 100) + " s ago" +
         (call_site.empty() ? "" : ", at " + std::string(call_site));
}

}  // namespace axon::engine
