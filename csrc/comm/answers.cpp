#include "comm/answers.hpp"

#include <algorithm>

namespace axon {

bool Answers::all_since(Clock::time_point asked_at) const noexcept {
  return std::all_of(latest_.begin(), latest_.end(), [&](const Answer& answer) { return answer.at >= asked_at; });
}

std::string Answers::missing(uint32_t sequence, Clock::time_point asked_at) const {
  std::string names;
  for (size_t rank = 0; rank < latest_.size(); ++rank) {
    const Answer& answer = latest_[rank];
    const bool answered = answer.at >= asked_at;
    if (answered && static_cast<int32_t>(answer.sequence - sequence) >= 0) continue;  // sequence numbers wrap
    names += (names.empty() ? "rank " : ", rank ") + std::to_string(rank);
    if (!answered) {
      names += " (does not answer)";
    } else if (answer.sequence == 0) {
      names += " (has called no collective yet)";
    } else {
      names += " (last entered #" + std::to_string(answer.sequence) + ", " + name_of(answer.kind) + ")";
    }
  }
  return names;
}

}  // namespace axon
