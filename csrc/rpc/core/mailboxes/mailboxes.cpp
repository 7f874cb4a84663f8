#include "rpc/core/mailboxes/mailboxes.hpp"

#include <utility>

#include "rpc/core/reply.hpp"

namespace axon::rpc {

bool Mailboxes::add(std::string tag, const std::shared_ptr<Mailbox>& mailbox) {
  const std::lock_guard lock(mutex_);
  if (!closed_.ok()) mailbox->close(closed_.clone());
  return mailboxes_.emplace(std::move(tag), mailbox).second;
}

void Mailboxes::remove(const std::string& tag) {
  const std::lock_guard lock(mutex_);
  mailboxes_.erase(tag);
}

Mailboxes::Shared Mailboxes::find(std::string_view tag) {
  const std::lock_guard lock(mutex_);
  const auto found = mailboxes_.find(tag);
  return found == mailboxes_.end() ? nullptr : found->second;
}

// Format: [[tag, settled], nil]
bool Mailboxes::settle(Invocation& invocation) {
  ValueReader values(invocation.arguments().values());
  bool is_first = false;
  if (values.next().kind == Value::Kind::kArray && values.next().count == 2) {
    const Shared mailbox = find(values.next().text());
    const int64_t settled = values.next().integer;
    if (mailbox != nullptr) is_first = mailbox->settle(*invocation.connection(), settled);
  }
  reply_with_nothing(invocation);
  return is_first;
}

std::vector<Mailboxes::Shared> Mailboxes::all() {
  const std::lock_guard lock(mutex_);
  std::vector<Shared> mailboxes;
  for (const auto& [tag, mailbox] : mailboxes_) mailboxes.push_back(mailbox);
  return mailboxes;
}

void Mailboxes::drop(Connection& sender) {
  for (const Shared& mailbox : all()) mailbox->drop(sender);
}

void Mailboxes::close(const Status& reason) {
  {
    const std::lock_guard lock(mutex_);
    closed_ = reason.clone();
  }
  for (const Shared& mailbox : all()) mailbox->close(reason.clone());
}

}  // namespace axon::rpc
