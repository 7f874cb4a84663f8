#include "engine/progress_queries.hpp"

#include <algorithm>
#include <utility>

#include "engine/group_message.hpp"

namespace axon::engine {

// How long ranks may take to answer. The error of an overdue operation is due within a second.
static constexpr std::chrono::milliseconds kAnswerTimeout{300};
// The same if thousands of ranks may have to be connected.
static constexpr std::chrono::seconds kAnswerTimeoutOfAll{5};

void ProgressQueries::note_launch(CallRecord& collective) noexcept {
  collective.sequence = launched_.read().sequence + 1;
  launched_.publish(collective);
}

sync::Clock::time_point ProgressQueries::ask(std::span<const int> also) noexcept {
  const sync::Clock::time_point asked_at = answer_oneself();
  for (const int rank : notified_) ask_rank(rank, asked_at);
  for (const int rank : also) {
    if (!std::ranges::binary_search(notified_, rank)) ask_rank(rank, asked_at);
  }
  return asked_at;
}

sync::Clock::time_point ProgressQueries::ask_all() noexcept {
  const sync::Clock::time_point asked_at = answer_oneself();
  for (int rank = 0; rank < team_.size(); ++rank) ask_rank(rank, asked_at);
  return asked_at;
}

sync::Clock::time_point ProgressQueries::answer_oneself() noexcept {
  const sync::Clock::time_point asked_at = sync::Clock::now();
  answers_.note_asked(team_.rank, asked_at);
  answers_.record(team_.rank, progress());
  return asked_at;
}

void ProgressQueries::ask_rank(int rank, sync::Clock::time_point asked_at) noexcept {
  if (rank == team_.rank) return;
  answers_.note_asked(rank, asked_at);
  send(messenger_, team_, rank,
       {.kind = transport::MessageKind::kProgressQuery, .sequence = latest_sequence_, .text = {}});
}

bool ProgressQueries::have_expired(sync::Clock::time_point asked_at) noexcept {
  return sync::Clock::now() >= asked_at + kAnswerTimeout;
}

bool ProgressQueries::have_expired_for_others(sync::Clock::time_point asked_at) noexcept {
  return sync::Clock::now() >= asked_at + 2 * kAnswerTimeout;
}

bool ProgressQueries::have_all_expired(sync::Clock::time_point asked_at) const noexcept {
  return sync::Clock::now() >= asked_at + (team_.is_fully_connected() ? kAnswerTimeout : kAnswerTimeoutOfAll);
}

void ProgressQueries::on_query(int source) noexcept {
  const Answers::Progress own = progress();
  send(messenger_, team_, source,
       {.kind = transport::MessageKind::kProgressReply,
        .sequence = own.sequence,
        .num_launched = own.num_launched,
        .text = own.calls});
}

void ProgressQueries::on_reply(int source, Answers::Progress progress) noexcept {
  answers_.record(source, std::move(progress));
}

// "last entered barrier #6, 2.1 s ago; its GPU was last given all_reduce #3 (float32[7], SUM), 0.2 s ago"
Answers::Progress ProgressQueries::progress() const {
  std::string text;
  if (latest_sequence_ != 0) {
    CallRecord latest = status_.latest();
    latest.call_site = latest_call_site_;
    text = "last entered " + latest.describe_with_age();
  }
  const CallRecord launched = launched_.read();
  if (launched.sequence != 0) {
    text += (text.empty() ? "its GPU was last given " : "; its GPU was last given ") + launched.describe_with_age();
  }
  if (text.empty()) text = "has called no collective yet";
  return {.sequence = latest_sequence_, .num_launched = num_launched(), .calls = std::move(text)};
}

}  // namespace axon::engine
