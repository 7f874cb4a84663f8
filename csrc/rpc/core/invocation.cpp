#include "rpc/core/invocation.hpp"

#include "rpc/core/runtime_core.hpp"
#include "rpc/core/values.hpp"

namespace axon::rpc {

void Invocation::accept(std::span<const Buffer> buffers, std::span<Owner> owners) noexcept {
  engine::Engine& engine = core_->engine();
  engine.exclusively([&] {
    phase_ = Phase::kArriving;
    if (refusal_.empty()) return arguments_.accept(buffers, owners);
    fail_here("ConnectionError", refusal_);
  });
}

void Invocation::reply() noexcept {
  if (!answer.fits().ok()) return fail("ValueError", answer.fits().clone().message());
  submit(transport::MessageKind::kReply);
}

void Invocation::reply_failure() noexcept {
  submit(transport::MessageKind::kFailure);
}

// Owners are released before the token is taken: their destructors are the user's code.
void Invocation::submit(transport::MessageKind answer_kind) noexcept {
  answer_kind_ = answer_kind;
  if (!wants_answer()) answer.clear();
  connection_->engine().submit_after_completion(*this);
}

void Invocation::fail(std::string_view class_name, std::string_view message) noexcept {
  if (!wants_answer()) core_->report_unheard(*this, class_name, message);
  describe_failure(class_name, message);
  reply_failure();
}

// Format: [message, traceback]
void Invocation::describe_failure(std::string_view class_name, std::string_view message) {
  answer.open(class_name.substr(0, kLongestName));
  ValueWriter writer(answer.bytes());
  writer.array(2);
  writer.text(message);
  writer.text("");
  answer.seal();
}

// For the runtime's own failures; called by the progress owner.
void Invocation::fail_here(std::string_view class_name, const std::string& message) noexcept {
  describe_failure(class_name, message);
  answer_kind_ = transport::MessageKind::kFailure;
  phase_ = Phase::kReplying;
  connection_->answer(*this);
}

// While the call arrives, the progress owner calls this, otherwise the user that has the invocation.
void Invocation::fail_as_given_up(std::string_view why) noexcept {
  const auto fail_now = [this](std::string_view class_name, const std::string& message) {
    phase_ == Phase::kArriving ? fail_here(class_name, message) : fail(class_name, message);
  };
  if (is_late()) return fail_now("TimeoutError", "the caller gave up at its deadline");
  std::string text = "'" + std::string(function()) + "' has been cancelled";
  if (!why.empty()) text += ": " + std::string(why);
  fail_now("RuntimeError", text);
}

void Invocation::begin() noexcept {
  if (phase_ == Phase::kCleared) return core_->recycle(*this);
  if (phase_ == Phase::kCalled) --core_->num_running_;
  phase_ = Phase::kReplying;
  const std::atomic<uint32_t>* const flag = answer.start_flag();
  if (flag != nullptr && connection_->failure_.ok())
    return connection_->engine().wait_for_flag(start_flag_waiter_, *flag);
  connection_->answer(*this);
}

void Invocation::complete() noexcept {
  if (phase_ == Phase::kCalled) return handler_->call(*this);
  if (phase_ == Phase::kAsking) return handler_->ask(*this);
  answer.clear();
  arguments_.let_go();
  core_->engine().submit_after_completion(*this);
}

void Invocation::on_announced(Inbound&) noexcept {
  core_->ask(*this);
}

void Invocation::on_complete(Inbound&) noexcept {
  core_->call(*this);
}

void Invocation::on_broken(Inbound&, Status reason) noexcept {
  std::string why = "the call cannot be received: " + reason.message();
  if (phase_ != Phase::kAsking) return fail_here("ConnectionError", why);
  refusal_ = std::move(why);  // its function is using it
}

void Invocation::on_sent() noexcept {
  core_->recycle(*this);
}

}  // namespace axon::rpc
