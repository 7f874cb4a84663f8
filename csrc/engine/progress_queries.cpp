#include "engine/progress_queries.hpp"

#include <utility>

#include "engine/group_message.hpp"

namespace axon::engine {

// How long ranks may take to answer. The error of an overdue operation is due within a second.
static constexpr std::chrono::milliseconds kAnswerTimeout{300};

void ProgressQueries::note_launch(CallRecord& collective) noexcept {
  collective.sequence = launched_.read().sequence + 1;
  launched_.publish(collective);
}

sync::Clock::time_point ProgressQueries::ask() noexcept {
  const sync::Clock::time_point asked_at = sync::Clock::now();
  answers_.record(team_.rank, latest_.sequence, latest_calls());
  for (int other = 0; other < team_.size(); ++other) {
    send(messenger_, team_, other,
         {.kind = transport::MessageKind::kProgressQuery, .sequence = latest_.sequence, .text = {}});
  }
  return asked_at;
}

bool ProgressQueries::have_expired(sync::Clock::time_point asked_at) noexcept {
  return sync::Clock::now() >= asked_at + kAnswerTimeout;
}

void ProgressQueries::on_query(int source) noexcept {
  const std::string calls = latest_calls();
  send(messenger_, team_, source,
       {.kind = transport::MessageKind::kProgressReply, .sequence = latest_.sequence, .text = calls});
}

void ProgressQueries::on_reply(int source, uint32_t sequence, std::string calls) noexcept {
  answers_.record(source, sequence, std::move(calls));
}

// "last entered barrier #6, 2.1 s ago; its GPU was last given all_reduce #3 (float32[7], SUM), 0.2 s ago"
std::string ProgressQueries::latest_calls() {
  std::string text = latest_.sequence == 0 ? "" : "last entered " + latest_.describe_with_age();
  if (const CallRecord launched = launched_.read(); launched.sequence != 0) {
    text += (text.empty() ? "its GPU was last given " : "; its GPU was last given ") + launched.describe_with_age();
  }
  return text.empty() ? "has called no collective yet" : text;
}

}  // namespace axon::engine
