#include "axon/mailboxes.hpp"

namespace axon::library {

bool Mailboxes::add(std::string tag, const std::shared_ptr<Mailbox::State>& mailbox) {
  const std::lock_guard lock(mutex_);
  if (!closed_.ok()) mailbox->close(closed_.clone());
  return mailboxes_.emplace(std::move(tag), mailbox).second;
}

void Mailboxes::remove(const std::string& tag) {
  const std::lock_guard lock(mutex_);
  mailboxes_.erase(tag);
}

// Format: [[tag, settled], nil]
void Mailboxes::settle(Invocation& invocation) {
  rpc::ValueReader values = invocation.arguments().values();
  if (values.next().kind == rpc::Value::Kind::kArray && values.next().count == 2) {
    const std::string_view tag = values.next().text();
    const int64_t settled = values.next().integer;
    State mailbox;
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = mailboxes_.find(tag); found != mailboxes_.end()) mailbox = found->second;
    }
    if (mailbox != nullptr) mailbox->settle(invocation.caller().connection(), settled);
  }
  invocation.answer().nothing();
  invocation.reply();
}

std::vector<Mailboxes::State> Mailboxes::all() {
  const std::lock_guard lock(mutex_);
  std::vector<State> mailboxes;
  for (const auto& [tag, mailbox] : mailboxes_) mailboxes.push_back(mailbox);
  return mailboxes;
}

void Mailboxes::drop(const std::shared_ptr<rpc::Connection>& connection) {
  for (const State& mailbox : all()) mailbox->drop(connection);
}

void Mailboxes::close(const Status& reason) {
  {
    const std::lock_guard lock(mutex_);
    closed_ = reason.clone();
  }
  for (const State& mailbox : all()) mailbox->close(reason.clone());
}

}  // namespace axon::library
