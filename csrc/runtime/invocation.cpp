#include "runtime/invocation.hpp"

#include "runtime/runtime_core.hpp"
#include "runtime/values.hpp"

namespace axon {

void Invocation::reply() noexcept {
  answer_kind_ = OperationKind::kReply;
  phase_ = Phase::kReplying;
  connection_->engine().submit_after_delivery(*this);
}

void Invocation::reply_failure() noexcept {
  answer_kind_ = OperationKind::kFailure;
  phase_ = Phase::kReplying;
  connection_->engine().submit_after_delivery(*this);
}

void Invocation::fail(std::string_view class_name, std::string_view message) noexcept {
  describe_failure(class_name, message);
  reply_failure();
}

// [message, traceback]
void Invocation::describe_failure(std::string_view class_name, std::string_view message) {
  answer.open(class_name.substr(0, kLongestName));
  ValueWriter writer(answer.bytes());
  writer.array(2);
  writer.text(message);
  writer.text("");
  answer.seal();
}

// The runtime's own failures, by the holder of the token.
void Invocation::fail_here(std::string_view class_name, const std::string& message) noexcept {
  describe_failure(class_name, message);
  answer_kind_ = OperationKind::kFailure;
  phase_ = Phase::kReplying;
  connection_->answer(*this);
}

void Invocation::begin() noexcept {
  if (phase_ == Phase::kCleared) return core_->recycle(*this);
  connection_->answer(*this);
}

void Invocation::deliver() noexcept {
  if (phase_ == Phase::kCalled) return handler_->call(*this);
  answer.clear();
  core_->engine().submit_after_delivery(*this);
}

void Invocation::on_announced(Inbound&) noexcept {}

void Invocation::on_complete(Inbound&) noexcept {
  core_->call(*this);
}

void Invocation::on_broken(Inbound&, Status reason) noexcept {
  fail_here("ConnectionError", "the call has not been understood: " + reason.message());
}

void Invocation::on_sent() noexcept {
  core_->recycle(*this);
}

}  // namespace axon
