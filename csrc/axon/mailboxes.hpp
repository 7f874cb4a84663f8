// The mailboxes of a runtime, by tag.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "axon/mailbox_state.hpp"

namespace axon::library {

class Mailboxes {
 public:
  // Returns false if there is one of this tag. If the others are closed, it is closed, too.
  bool add(std::string tag, const std::shared_ptr<Mailbox::State>& mailbox);
  void remove(const std::string& tag);
  // The function that peers call.
  void settle(Invocation& invocation);
  // Drops the state of a peer that is gone.
  void drop(const std::shared_ptr<rpc::Connection>& connection);
  void close(const Status& reason);

 private:
  using State = std::shared_ptr<Mailbox::State>;  // shared with the mailboxes of users
  std::vector<State> all();

  std::mutex mutex_;  // guards the following members
  Status closed_;
  std::map<std::string, State, std::less<>> mailboxes_;
};

}  // namespace axon::library
