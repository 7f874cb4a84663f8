// How far the ranks of a group are: this rank's queries and their answers, and its own answers to the queries of
// others.
//
//   const Clock::time_point asked_at = queries.ask(operation.exchange().ranks_awaited());
//   if (queries.have_expired(asked_at)) text = queries.answers().findings(sequence, asked_at);
//
// Owned by a group. Progress owner only, except for note_launch().
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/published.hpp"
#include "engine/answers.hpp"
#include "engine/call_record.hpp"
#include "engine/status_page.hpp"
#include "messaging/messenger.hpp"
#include "messaging/team.hpp"

namespace axon::engine {

class ProgressQueries {
 public:
  // `notified`: the ranks that this rank notifies of failures, ascending (engine/overlay.hpp). `status` has the latest
  // collective that this rank has begun, which answers carry.
  ProgressQueries(messaging::Messenger& messenger, const messaging::Team& team, const std::vector<int>& notified,
                  const GroupStatus& status)
      : messenger_(messenger), team_(team), notified_(notified), status_(status), answers_(team.size()) {}

  // Numbers the collective that this rank begins.
  uint32_t note_begin(std::string_view call_site) noexcept {
    latest_call_site_ = call_site;
    return ++latest_sequence_;
  }
  uint32_t latest_sequence() const noexcept { return latest_sequence_; }
  // The number of collectives of the device hook that this rank has begun. Any thread; note_running() one at a time.
  uint32_t num_launched() const noexcept { return num_launched_.load(std::memory_order_relaxed); }
  void note_running() noexcept { num_launched_.store(num_launched() + 1, std::memory_order_relaxed); }
  // Numbers a collective that the device hook launches, and records it. One thread at a time.
  void note_launch(CallRecord& collective) noexcept;

  // Queries the ranks that this rank notifies of failures, and these, and returns the time: answers from then on are to
  // this query.
  sync::Clock::time_point ask(std::span<const int> also) noexcept;
  // Queries all ranks.
  sync::Clock::time_point ask_all() noexcept;
  // Returns whether no further answers to the query are expected.
  static bool have_expired(sync::Clock::time_point asked_at) noexcept;
  // The same for the queries that other ranks have sent at about this time.
  static bool have_expired_for_others(sync::Clock::time_point asked_at) noexcept;
  // The same for ask_all().
  bool have_all_expired(sync::Clock::time_point asked_at) const noexcept;
  const Answers& answers() const noexcept { return answers_; }

  // Another rank asks, or answers.
  void on_query(int source) noexcept;
  void on_reply(int source, Answers::Progress progress) noexcept;

 private:
  Answers::Progress progress() const;
  sync::Clock::time_point answer_oneself() noexcept;
  void ask_rank(int rank, sync::Clock::time_point asked_at) noexcept;

  messaging::Messenger& messenger_;
  const messaging::Team& team_;
  const std::vector<int>& notified_;
  const GroupStatus& status_;
  uint32_t latest_sequence_ = 0;           // of the collective that began last
  std::string_view latest_call_site_;      // whole, as the status page has no room for long ones
  Published<CallRecord> launched_;         // the device hook's latest collective
  std::atomic<uint32_t> num_launched_{0};  // without captured ones; publishes no other data
  Answers answers_;
};

}  // namespace axon::engine
