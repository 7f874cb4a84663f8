// The mailboxes of a runtime, by tag. Any thread.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "rpc/core/mailboxes/mailbox.hpp"

namespace axon::rpc {

class Mailboxes {
 public:
  // Returns false if there is one of this tag. If the others are closed, it is closed, too.
  bool add(std::string tag, const std::shared_ptr<Mailbox>& mailbox);
  void remove(const std::string& tag);
  // The function that senders call, see kSettled; as Mailbox::settle. It answers the call.
  [[nodiscard]] bool settle(Invocation& invocation);
  // Forgets a sender whose connection has ended.
  void drop(Connection& sender);
  void close(const Status& reason);

 private:
  using Shared = std::shared_ptr<Mailbox>;  // shared with the mailboxes of users
  Shared find(std::string_view tag);
  std::vector<Shared> all();

  std::mutex mutex_;  // guards the following members
  Status closed_;
  std::map<std::string, Shared, std::less<>> mailboxes_;
};

}  // namespace axon::rpc
