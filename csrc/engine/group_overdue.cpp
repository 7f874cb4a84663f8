// Operations that take too long: which ranks are queried, and which ones the error names.
#include <utility>

#include "base/log.hpp"
#include "engine/engine.hpp"
#include "engine/group.hpp"

namespace axon::engine {

Group::DeviceCheck Group::check_device_hook() noexcept {
  if (device_hook_ == nullptr || !failure_.ok() || is_detached()) return DeviceCheck::kNothing;
  Status fault = device_hook_->fault();
  if (fault.ok()) return DeviceCheck::kNothing;
  if (fault.code() != ErrorCode::kTimeout) {
    fail(std::move(fault));
    return DeviceCheck::kFailed;
  }
  if (!asked_for_fault_at_)
    asked_for_fault_at_ = queries_.ask(team_.topology.ranks_on(team_.topology.host_of(team_.rank)));
  const sync::Clock::time_point asked_at = *asked_for_fault_at_;
  if (!answers().all_since(asked_at) && !ProgressQueries::have_expired(asked_at)) return DeviceCheck::kAsking;
  fail(Status(fault.code(), fault.message() + " " + answers().all(asked_at)));
  return DeviceCheck::kFailed;
}

void Group::check_mutual_waits(sync::Clock::time_point now) noexcept {
  if (device_hook_ == nullptr || !failure_.ok() || is_detached()) return;
  Operation* const waiting = running_.find([&](const Operation& operation) {
    return operation.sequence() != 0 && !operation.awaits_device() && mutual_waits_.has_launched(operation.waiter());
  });
  if (waiting == nullptr) return;
  const std::optional<int> found = mutual_waits_.check(*waiting, now);
  if (!found) return;
  const std::string here = "rank " + std::to_string(team_.rank);
  const std::string there = "rank " + std::to_string(*found);
  Status mismatch(ErrorCode::kMismatch, "mismatched collectives: " + here + " called " + waiting->describe() +
                                            ", which " + there + " has not entered, and the GPU of " + there +
                                            " waits for a call that " + here + " has not made. Last entered: " + there +
                                            " (" + answers().of(*found).calls + ").");
  if (mutual_waits_.has_one_launcher()) return fail(std::move(mismatch));
  if (std::exchange(has_warned_of_mutual_waits_, true)) return;
  log::warn(signed_text(mismatch.message()) +
            " Both wait until their timeouts, unless other threads make these calls.");
}

// When a collective is first found overdue, ranks are queried. The error names ranks by their answers. Those do not
// cover replays, which therefore time out at once.
void Group::check_deadlines(sync::Clock::time_point now) noexcept {
  bool overdue = false;
  for_each_running([&](Operation& operation) {
    if (!operation.is_overdue(now)) return;
    if (operation.direction != Direction::kCollective || operation.replay) return time_out(operation, now);
    overdue = true;
    if (!asked_at_) {
      asked_at_ = ask(operation);
    } else if (has_heard_enough(operation, *asked_at_)) {
      time_out(operation, *asked_at_);
    }
  });
  if (!overdue) asked_at_.reset();  // it finished after all; the next overdue collective sends new queries
}

// In a large group, another rank may name the missing one a moment later: one that waits for it, and knows it.
bool Group::has_heard_enough(const Operation& operation, sync::Clock::time_point asked_at) const noexcept {
  const bool is_all = answers().all_since(asked_at) || ProgressQueries::have_expired(asked_at);
  if (!operation.is_running()) return ProgressQueries::have_expired(asked_at);  // it is about to be completed
  if (operation.direction != Direction::kCollective) return true;
  const bool may_be_told = !team_.is_fully_connected() && answers().missing(operation.sequence(), asked_at).empty();
  return is_all && (!may_be_told || ProgressQueries::have_expired_for_others(asked_at));
}

// A collective's finish() notifies the group, with the operation's name.
void Group::time_out(Operation& operation, sync::Clock::time_point asked_at) noexcept {
  operation.fail(Status(ErrorCode::kTimeout, "Timed out after " + std::to_string(operation.timeout.count()) + " ms. " +
                                                 findings(operation, asked_at)));
}

// Returns " Flow control holds messages back here: …", or an empty text if no message waits for credit.
static std::string held_back(messaging::Exchange& exchange, const messaging::Allowance& allowance) {
  std::string ranks;
  for (const int other : exchange.ranks_short_of_credit())
    ranks += (ranks.empty() ? "rank " : ", rank ") + std::to_string(other);
  if (ranks.empty()) return ranks;
  return " Flow control holds messages back here: earlier ones of this group have not been received by " + ranks +
         " (limit: " + std::to_string(allowance.num_bytes >> 10) + " KiB or " + std::to_string(allowance.num_messages) +
         " messages for each rank).";
}

std::string Group::findings(Operation& operation, sync::Clock::time_point asked_at) {
  if (!operation.is_running()) return "It has ended, but a callback of another one holds up its report.";
  std::string text;
  if (operation.sequence() != 0) text = answers().findings(operation.sequence(), asked_at) + " ";
  if (operation.awaits_device()) {
    return text + "This rank's GPU has not reached this operation yet, so its inputs are not ready.";
  }
  std::string awaited;
  for (const int other : operation.exchange().ranks_awaited()) {
    awaited += (awaited.empty() ? "Still awaited here: rank " : ", rank ") + std::to_string(other);
  }
  text += awaited.empty() ? "No message has arrived." : awaited + ".";
  text += held_back(operation.exchange(), inbox_->flow().allowance());
  const messaging::Topology& topology = team_.topology;
  const bool is_on_this_host = operation.peer < 0 || topology.host_of(operation.peer) == topology.host_of(team_.rank);
  const bool goes_to_device_hook =
      device_hook_ != nullptr && is_on_this_host && operation.tag == 0 && operation.device_segments == nullptr;
  if (operation.direction != Direction::kCollective && goes_to_device_hook) text += kMeetingUnderTags;
  return text;
}

}  // namespace axon::engine
