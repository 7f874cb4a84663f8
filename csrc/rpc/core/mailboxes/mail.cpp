#include "rpc/core/mailboxes/mail.hpp"

#include <string>

namespace axon::rpc {

std::optional<MailHeader> MailHeader::read(ValueReader& values) noexcept {
  if (values.next().kind != Value::Kind::kArray || values.next().count != 4) return std::nullopt;
  const Value number = values.next(), num_unsettled = values.next(), num_waiting = values.next();
  for (const Value& value : {number, num_unsettled, num_waiting}) {
    if (value.kind != Value::Kind::kInteger || value.integer < 0 || value.integer == INT64_MAX) return std::nullopt;
  }
  return MailHeader{number.integer, number.integer - num_unsettled.integer, num_waiting.integer};
}

void fail_as_no_mail(Invocation& invocation) noexcept {
  invocation.fail("TypeError",
                  "'" + std::string(invocation.function()) + "' belongs to a mailbox; send messages to it");
}

Mail::~Mail() {
  fail("ConnectionError", "the mailbox was closed before it accepted the message");
}

void Mail::fail(std::string_view class_name, std::string_view message) noexcept {
  if (Invocation* const call = take_call(); call != nullptr) call->fail(class_name, message);
}

}  // namespace axon::rpc
