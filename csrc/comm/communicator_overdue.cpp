// Operations that take too long: who is asked, whom the error names.
#include "comm/communicator.hpp"
#include "comm/engine.hpp"

namespace axon {

// How long ranks may take to say how far they are once an operation is overdue. The error is due within a second.
static constexpr std::chrono::milliseconds kAnswerTimeout{300};
// How often a waiter that has asked looks for the answers.
static constexpr std::chrono::milliseconds kAnswerPoll{5};

bool Communicator::heed_companion() noexcept {
  if (companion_ == nullptr || !failure_.ok()) return false;
  Status fault = companion_->fault();
  if (fault.ok()) return false;
  fail(std::move(fault));
  return true;
}

void Communicator::tick(Clock::time_point now) noexcept {
  heed_companion();
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
  if (!overdue) asked_at_.reset();  // it came after all; the next one that is overdue asks anew
}

// Returns when: answers from then on are to this question.
Clock::time_point Communicator::inquire() noexcept {
  const Clock::time_point asked_at = Clock::now();
  answers_.record(rank(), latest_sequence_, latest_kind_);
  for (int other = 0; other < size(); ++other) send_control(OperationKind::kProgressQuery, other, 0, {});
  return asked_at;
}

// Whether what is known says who is to blame, or nobody will say more.
bool Communicator::heard_enough(const Operation& operation, Clock::time_point asked_at) const noexcept {
  if (Clock::now() >= asked_at + kAnswerTimeout) return true;
  if (!is_running(operation)) return false;  // whoever ended it is about to tell
  return operation.direction != Direction::kCollective || answers_.all_since(asked_at);
}

void Communicator::time_out(Operation& operation, Clock::time_point asked_at) noexcept {
  // A collective's finish() tells the group, with the operation's name.
  operation.exchange_->fail(Status(ErrorCode::kTimeout, "Timed out after " + std::to_string(operation.timeout.count()) +
                                                            " ms. " + findings(operation, asked_at)));
}

Status Communicator::explain(Operation& operation) noexcept {
  Progress& progress = *engine_.progress_;
  const Clock::time_point asked_at = progress.exclusively([&] {
    engine_.settle();  // it may not have begun
    return is_running(operation) && operation.direction == Direction::kCollective ? inquire() : Clock::now();
  });
  for (Clock::time_point look_at = asked_at; !wait(operation, look_at); look_at = Clock::now() + kAnswerPoll) {
    Status explained = progress.exclusively(
        [&] { return heard_enough(operation, asked_at) ? give_up_waiting(operation, asked_at) : Status(); });
    if (!explained.ok()) return explained;
  }
  return Status();
}

Status Communicator::give_up_waiting(Operation& operation, Clock::time_point asked_at) {
  return Status(ErrorCode::kTimeout,
                signed_text(operation.describe() + ": Timed out in wait(timeout). " + findings(operation, asked_at) +
                            " The operation goes on until its own timeout of " +
                            std::to_string(operation.timeout.count()) + " ms."));
}

// Who is to blame, as far as the answers tell.
std::string Communicator::findings(Operation& operation, Clock::time_point asked_at) {
  if (!is_running(operation)) return "It has ended, but a callback of another one holds up its report.";
  std::string text;
  if (operation.direction == Direction::kCollective) {
    const std::string missing = answers_.missing(operation.sequence_, asked_at);
    text = missing.empty() ? "All ranks have entered it. " : "Not entered by: " + missing + ". ";
  }
  if (operation.gate != nullptr && operation.gate->load(std::memory_order_acquire) == 0) {
    return text + "Its inputs are not there yet: this rank's device has not come to it.";
  }
  std::string awaited;
  for (const int other : operation.exchange_->ranks_awaited()) {
    awaited += (awaited.empty() ? "Still awaited here: rank " : ", rank ") + std::to_string(other);
  }
  return text + (awaited.empty() ? "No message has come." : awaited + ".");
}

}  // namespace axon
