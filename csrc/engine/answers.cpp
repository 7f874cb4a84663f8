#include "engine/answers.hpp"

#include <algorithm>
#include <functional>

namespace axon::engine {

// More ranks would not fit into the notice to the other ranks.
static constexpr size_t kMostNamed = 16;

bool Answers::all_since(sync::Clock::time_point asked_at) const noexcept {
  bool have_all_arrived = true;
  latest_.for_each_written([&](size_t, const Answer& answer) {
    have_all_arrived &= !answer.is_due(asked_at) || answer.has_arrived(asked_at);
  });
  return have_all_arrived;
}

template <typename Predicate>
std::string Answers::list(const char* title, sync::Clock::time_point asked_at, Predicate takes) const {
  std::string text;
  size_t num_taken = 0;
  latest_.for_each_written([&](size_t rank, const Answer& answer) {
    if (!answer.is_due(asked_at) || !takes(answer) || ++num_taken > kMostNamed) return;
    text += (num_taken == 1 ? title + std::string(": rank ") : ", rank ") + std::to_string(rank) + " (" +
            (answer.has_arrived(asked_at) ? answer.progress.calls : "does not answer") + ")";
  });
  if (num_taken > kMostNamed) text += ", and " + std::to_string(num_taken - kMostNamed) + " more";
  return text.empty() ? text : text + ".";
}

std::vector<int> Answers::missing(uint32_t sequence, sync::Clock::time_point asked_at) const {
  std::vector<int> ranks;
  latest_.for_each_written([&](size_t rank, const Answer& answer) {
    if (answer.is_due(asked_at) && !answer.has_entered(sequence, asked_at)) ranks.push_back(static_cast<int>(rank));
  });
  return ranks;
}

std::optional<int> Answers::find_ahead_on_device(uint32_t sequence, uint32_t num_launched,
                                                 sync::Clock::time_point asked_at) const noexcept {
  std::optional<int> found;
  latest_.for_each_written([&](size_t rank, const Answer& answer) {
    const bool is_ahead = !is_at_least(num_launched, answer.progress.num_launched);
    if (found || !answer.has_arrived(asked_at) || !is_ahead || answer.has_entered(sequence, asked_at)) return;
    found = static_cast<int>(rank);
  });
  return found;
}

std::string Answers::findings(uint32_t sequence, sync::Clock::time_point asked_at) const {
  const auto has_entered = [=](const Answer& answer) { return answer.has_entered(sequence, asked_at); };
  const std::string missing = list("Not entered by", asked_at, std::not_fn(has_entered));
  const std::string entered = list("Entered by", asked_at, has_entered);
  const std::string some = asked(asked_at);
  if (missing.empty())
    return (some.empty() ? "All ranks have entered it. " : some + "They all have entered it. ") + entered;
  return some + missing + (entered.empty() ? "" : " " + entered);
}

// "12 of 4096 ranks were asked. ", or an empty text if all were.
std::string Answers::asked(sync::Clock::time_point asked_at) const {
  size_t num_due = 0;
  latest_.for_each_written([&](size_t, const Answer& answer) { num_due += answer.is_due(asked_at) ? 1 : 0; });
  if (num_due == latest_.size()) return {};
  return std::to_string(num_due) + " of " + std::to_string(latest_.size()) + " ranks were asked. ";
}

std::string Answers::all(sync::Clock::time_point asked_at) const {
  return asked(asked_at) + list("Last entered", asked_at, [](const Answer&) { return true; });
}

}  // namespace axon::engine
