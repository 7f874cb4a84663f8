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
  // False if there is one of this tag. Closed like the others, where they are.
  bool add(std::string tag, const std::shared_ptr<Mailbox::State>& mailbox);
  void remove(const std::string& tag);
  // What peers call.
  void settle(Invocation& invocation);
  // This peer is gone.
  void drop(const std::shared_ptr<rpc::Connection>& connection);
  void close(const Status& reason);

 private:
  using State = std::shared_ptr<Mailbox::State>;  // owned with those who take from it
  std::vector<State> all();

  std::mutex mutex_;  // guards what follows
  Status closed_;
  std::map<std::string, State, std::less<>> mailboxes_;
};

}  // namespace axon::library
