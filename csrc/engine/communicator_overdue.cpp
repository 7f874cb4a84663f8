// Operations that take too long: which ranks are queried, and which ones the error names.
#include <thread>

#include "base/trace.hpp"
#include "engine/communicator.hpp"
#include "engine/engine.hpp"

namespace axon::engine {

// How long ranks may take to answer a progress query about an overdue operation. The error is due within a second.
static constexpr std::chrono::milliseconds kAnswerTimeout{300};
// How often a waiter checks for the answers to its query.
static constexpr std::chrono::milliseconds kAnswerPoll{5};

Communicator::DeviceCheck Communicator::check_device_hook() noexcept {
  if (device_hook_ == nullptr || !failure_.ok() || !inbox_) return DeviceCheck::kNothing;
  Status fault = device_hook_->fault();
  if (fault.ok()) return DeviceCheck::kNothing;
  if (fault.code() != ErrorCode::kTimeout) {
    fail(std::move(fault));
    return DeviceCheck::kFailed;
  }
  if (!asked_for_fault_at_) asked_for_fault_at_ = inquire();
  const bool has_heard = answers_.all_since(*asked_for_fault_at_);
  if (!has_heard && sync::Clock::now() < *asked_for_fault_at_ + kAnswerTimeout) return DeviceCheck::kAsking;
  fail(Status(fault.code(), fault.message() + " " + answers_.all(*asked_for_fault_at_)));
  return DeviceCheck::kFailed;
}

Status Communicator::failure() noexcept {
  if (engine_.is_forked()) return Engine::forked();
  DeviceCheck check = DeviceCheck::kAsking;
  const auto look = [&] {
    engine_.drive();  // receives the answers, even in a callback on the background thread, where no other thread would
    check = check_device_hook();
    if (check == DeviceCheck::kFailed) engine_.settle();
    return aborted_.ok() ? failure_.clone() : aborted_.clone();
  };
  for (;; std::this_thread::sleep_for(kAnswerPoll)) {
    Status known = engine_.progress_->exclusively(look);
    if (check != DeviceCheck::kAsking || !known.ok()) return known;
  }
}

// "last entered barrier #6, 2.1 s ago; its GPU was last given all_reduce #3 (float32[7], SUM), 0.2 s ago"
std::string Communicator::latest_calls() {
  std::string text = latest_.sequence == 0 ? "" : "last entered " + latest_.describe_with_age();
  if (const CallRecord launched = launched_.read(); launched.sequence != 0) {
    text += (text.empty() ? "its GPU was last given " : "; its GPU was last given ") + launched.describe_with_age();
  }
  return text.empty() ? "has called no collective yet" : text;
}

void Communicator::note_launch(const Operation& operation, std::string_view kernel) {
  CallRecord record = operation.record();
  record.called_at = sync::Clock::now();
  if (operation.direction == Direction::kCollective) {
    record.sequence = launched_.read().sequence + 1;
    launched_.publish(record);
  }
  if (trace::is_on()) [[unlikely]]
    trace_launch(record, operation.arguments, kernel);
}

void Communicator::tick(sync::Clock::time_point now) noexcept {
  check_device_hook();
  bool overdue = false;
  for (Operation* operation = running_.front(); operation != nullptr;) {
    Operation* next = running_.next(*operation);
    if (now >= operation->deadline_) {
      if (operation->direction != Direction::kCollective) {
        time_out(*operation, now);
      } else if (overdue = true; !asked_at_) {
        asked_at_ = inquire();
      } else if (heard_enough(*operation, *asked_at_)) {
        time_out(*operation, *asked_at_);
      }
    }
    operation = next;
  }
  if (!overdue) asked_at_.reset();  // it finished after all; the next overdue collective sends new queries
}

// Queries all ranks and returns the time: answers from then on are to this query.
sync::Clock::time_point Communicator::inquire() noexcept {
  const sync::Clock::time_point asked_at = sync::Clock::now();
  answers_.record(rank(), latest_.sequence, latest_calls());
  for (int other = 0; other < size(); ++other) send_control(transport::OperationKind::kProgressQuery, other, 0, {});
  return asked_at;
}

// Returns whether the answers suffice to name the missing ranks, or no further answers are expected.
bool Communicator::heard_enough(const Operation& operation, sync::Clock::time_point asked_at) const noexcept {
  if (sync::Clock::now() >= asked_at + kAnswerTimeout) return true;
  if (!is_running(operation)) return false;  // the thread that ended it is about to complete it
  return operation.direction != Direction::kCollective || answers_.all_since(asked_at);
}

void Communicator::time_out(Operation& operation, sync::Clock::time_point asked_at) noexcept {
  // A collective's finish() notifies the group, with the operation's name.
  operation.exchange_->fail(Status(ErrorCode::kTimeout, "Timed out after " + std::to_string(operation.timeout.count()) +
                                                            " ms. " + findings(operation, asked_at)));
}

std::vector<int> Communicator::missing_from(const Operation& operation) {
  if (engine_.is_forked() || operation.sequence_ == 0) return {};
  Progress& progress = *engine_.progress_;
  const sync::Clock::time_point asked_at =
      progress.exclusively([&] { return inbox_ ? inquire() : sync::Clock::time_point::max(); });
  if (asked_at == sync::Clock::time_point::max()) return {};
  std::vector<int> missing;
  const auto look = [&] {
    engine_.drive();
    missing = answers_.missing(operation.sequence_, asked_at);
    return answers_.all_since(asked_at);
  };
  while (!progress.exclusively(look) && sync::Clock::now() < asked_at + kAnswerTimeout) {
    std::this_thread::sleep_for(kAnswerPoll);
  }
  return missing;
}

Status Communicator::explain(Operation& operation) noexcept {
  Progress& progress = *engine_.progress_;
  const sync::Clock::time_point asked_at = progress.exclusively([&] {
    engine_.settle();  // it may not have begun
    return is_running(operation) && operation.direction == Direction::kCollective ? inquire() : sync::Clock::now();
  });
  for (sync::Clock::time_point look_at = asked_at; !wait(operation, look_at);
       look_at = sync::Clock::now() + kAnswerPoll) {
    Status explained = progress.exclusively(
        [&] { return heard_enough(operation, asked_at) ? give_up_waiting(operation, asked_at) : Status(); });
    if (!explained.ok()) return explained;
  }
  return Status();
}

Status Communicator::give_up_waiting(Operation& operation, sync::Clock::time_point asked_at) {
  return Status(ErrorCode::kTimeout,
                signed_text(operation.describe() + ": Timed out in wait(timeout). " + findings(operation, asked_at) +
                            " The operation goes on until its own timeout of " +
                            std::to_string(operation.timeout.count()) + " ms."));
}

// Returns " Flow control holds messages back here: …", or an empty text if no message waits for credit.
std::string Communicator::held_back(messaging::Exchange& exchange) {
  std::string ranks;
  for (const int other : exchange.ranks_short_of_credit())
    ranks += (ranks.empty() ? "rank " : ", rank ") + std::to_string(other);
  if (ranks.empty()) return ranks;
  const messaging::Allowance& allowance = inbox_->flow().allowance();
  return " Flow control holds messages back here: earlier ones of this group have not been received by " + ranks +
         " (limit: " + std::to_string(allowance.num_bytes >> 10) + " KiB or " + std::to_string(allowance.num_messages) +
         " messages for each rank).";
}

// Says which ranks the operation waits for, as far as the answers tell.
std::string Communicator::findings(Operation& operation, sync::Clock::time_point asked_at) {
  if (!is_running(operation)) return "It has ended, but a callback of another one holds up its report.";
  std::string text;
  if (operation.direction == Direction::kCollective) text = answers_.findings(operation.sequence_, asked_at) + " ";
  if (operation.start_flag != nullptr && operation.start_flag->load(std::memory_order_acquire) == 0) {
    return text + "This rank's GPU has not reached this operation yet, so its inputs are not ready.";
  }
  std::string awaited;
  for (const int other : operation.exchange_->ranks_awaited()) {
    awaited += (awaited.empty() ? "Still awaited here: rank " : ", rank ") + std::to_string(other);
  }
  text += awaited.empty() ? "No message has arrived." : awaited + ".";
  text += held_back(*operation.exchange_);
  const bool goes_to_device_hook = device_hook_ != nullptr && operation.tag == 0 && operation.done_flag == nullptr;
  if (operation.direction != Direction::kCollective && goes_to_device_hook) text += kMeetingUnderTags;
  return text;
}

}  // namespace axon::engine
