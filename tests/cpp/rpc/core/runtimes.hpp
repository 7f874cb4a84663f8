// Connected runtimes in this process, each on an engine of its own, for the tests of runtimes.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engines.hpp"
#include "rpc/core/runtime_core.hpp"
#include "rpc/core/values.hpp"

namespace axon::rpc {

// The cores of two runtimes, and their connections with each other.
class TwoRuntimes {
 public:
  explicit TwoRuntimes(std::vector<std::unique_ptr<transport::Transport>> transports,
                       RuntimeOptions server_options = {}, RuntimeOptions client_options = {});
  ~TwoRuntimes();

  // Connects them again, with new connections. With the client's end of a socket they are on two hosts.
  void meet(FileDescriptor socket = FileDescriptor());

  std::shared_ptr<RuntimeCore> server;
  std::shared_ptr<RuntimeCore> client;
  std::shared_ptr<Connection> to_server;  // the client's
  std::shared_ptr<Connection> to_client;  // the server's

  // Connects the server to itself. Returns both ends.
  std::pair<std::shared_ptr<Connection>, std::shared_ptr<Connection>> connect_server_to_itself();

  engine::Engine& server_engine() { return *engines_[0]; }
  engine::Engine& client_engine() { return *engines_[1]; }

 private:
  std::vector<std::unique_ptr<engine::Engine>> engines_;
};

// Calls a function with bytes as its one tensor; waits until the call is finished and released.
CallPointer invoke(Connection& connection, std::string_view function, std::span<const std::byte> bytes,
                   std::chrono::milliseconds timeout = std::chrono::seconds(30));
CallPointer start(Connection& connection, std::string_view function, std::span<const std::byte> bytes,
                  std::chrono::milliseconds timeout = std::chrono::seconds(30));
void fill(Outbound& outbound, std::string_view function, std::span<const std::byte> bytes);
// Waits until the call is finished and released.
void wait_for(Connection& connection, Call& call);
// Returns the bytes of the one tensor of an answer or an invocation.
std::vector<std::byte> content(Inbound& inbound);
// Answers with the arguments.
void echo(Invocation& invocation);

}  // namespace axon::rpc
