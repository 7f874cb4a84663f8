// A message to a mailbox, from its arrival until it is taken.
//
// Clients derive a class that keeps the value in their own form. Until the mailbox has accepted the message, it holds
// the call that carries it. The answer of this call is the sender's permission to send more.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "rpc/core/connection.hpp"
#include "rpc/core/invocation.hpp"
#include "rpc/core/values.hpp"

namespace axon::rpc {

// The numbers that precede a message's value, see MailSender and docs/wire.md.
struct MailHeader {
  int64_t number = 0;
  int64_t settled = 0;      // no further message with a lower number arrives
  int64_t num_waiting = 0;  // messages queued after it at its sender

  // Reads them from the start of a call's values, up to the value. Empty: the call carries no message.
  static std::optional<MailHeader> read(ValueReader& values) noexcept;
};

class Mail {
 public:
  Mail(Invocation& invocation, const MailHeader& header) noexcept
      : header_(header), invocation_(&invocation), sender_(invocation.connection()) {}
  // Fails the call if the mailbox has not accepted the message.
  virtual ~Mail();
  Mail(const Mail&) = delete;
  Mail& operator=(const Mail&) = delete;

  const MailHeader& header() const noexcept { return header_; }
  const std::shared_ptr<Connection>& sender() const noexcept { return sender_; }

 private:
  friend class Mailbox;

  // Returns the call, to be answered; null if it was answered.
  Invocation* take_call() noexcept { return std::exchange(invocation_, nullptr); }
  void fail(std::string_view class_name, std::string_view message) noexcept;

  const MailHeader header_;
  Invocation* invocation_;                    // null once it was taken
  const std::shared_ptr<Connection> sender_;  // shared with the runtime, which may be closed first
};

// Fails a call of a mailbox's function that carries no message.
void fail_as_no_mail(Invocation& invocation) noexcept;

}  // namespace axon::rpc
