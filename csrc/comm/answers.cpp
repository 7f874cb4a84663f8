#include "comm/answers.hpp"

#include <algorithm>

namespace axon {

// More would not fit into the notice that tells the other ranks.
static constexpr size_t kMostNamed = 16;

bool Answers::all_since(Clock::time_point asked_at) const noexcept {
  return std::all_of(latest_.begin(), latest_.end(), [&](const Answer& answer) { return answer.at >= asked_at; });
}

template <typename Predicate>
std::string Answers::list(const char* title, Clock::time_point asked_at, Predicate takes) const {
  std::string text;
  size_t num_taken = 0;
  for (size_t rank = 0; rank < latest_.size(); ++rank) {
    const Answer& answer = latest_[rank];
    const bool has_answered = answer.at >= asked_at;
    if (!takes(answer, has_answered) || ++num_taken > kMostNamed) continue;
    text += (num_taken == 1 ? title + std::string(": rank ") : ", rank ") + std::to_string(rank) + " (" +
            (has_answered ? answer.calls : "does not answer") + ")";
  }
  if (num_taken > kMostNamed) text += ", and " + std::to_string(num_taken - kMostNamed) + " more";
  return text.empty() ? text : text + ".";
}

std::string Answers::findings(uint32_t sequence, Clock::time_point asked_at) const {
  const auto has_entered = [=](const Answer& answer, bool has_answered) {
    return has_answered && static_cast<int32_t>(answer.sequence - sequence) >= 0;  // sequence numbers wrap
  };
  const std::string missing = list("Not entered by", asked_at,
                                   [&](const Answer& answer, bool answered) { return !has_entered(answer, answered); });
  const std::string entered = list("Entered by", asked_at, has_entered);
  if (missing.empty()) return "All ranks have entered it. " + entered;
  return missing + (entered.empty() ? "" : " " + entered);
}

std::string Answers::all(Clock::time_point asked_at) const {
  return list("Last entered", asked_at, [](const Answer&, bool) { return true; });
}

}  // namespace axon
