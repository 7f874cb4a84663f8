#include "rpc/core/runtimes.hpp"

namespace axon::rpc {

using namespace std::chrono_literals;

TwoRuntimes::TwoRuntimes(std::vector<std::unique_ptr<transport::Transport>> transports, RuntimeOptions server_options,
                         RuntimeOptions client_options) {
  for (auto& transport : transports) {
    engines_.push_back(std::make_unique<engine::Engine>(std::move(transport), 1, collectives::AlgorithmOverrides()));
  }
  server_options.name = "server";
  server = std::make_shared<RuntimeCore>(*engines_[0], std::move(server_options));
  client_options.name = "client";
  client = std::make_shared<RuntimeCore>(*engines_[1], std::move(client_options));
  EXPECT_TRUE(server->open().ok() && client->open().ok());
  meet();
}

void TwoRuntimes::meet(FileDescriptor socket) {
  const engine::OwnAddress server_address = engines_[0]->make_address();
  const engine::OwnAddress client_address = engines_[1]->make_address();
  engine::PeerAddress as_met = server_address.address();
  if (socket.valid()) ++as_met.host;
  const uint64_t server_key = server_address.address().key;
  const uint64_t client_key = client_address.address().key;
  to_client = server
                  ->admit({.name = "client",
                           .incarnation = 1,
                           .address = client_address.address(),
                           .peer_key = client_key,
                           .own_key = server_key})
                  .value();
  to_server = client
                  ->admit({.name = "server",
                           .incarnation = 2,
                           .address = std::move(as_met),
                           .peer_key = server_key,
                           .own_key = client_key,
                           .socket = std::move(socket)})
                  .value();
}

std::pair<std::shared_ptr<Connection>, std::shared_ptr<Connection>> TwoRuntimes::connect_server_to_itself() {
  const engine::OwnAddress there = server_engine().make_address();
  const engine::OwnAddress here = server_engine().make_address();
  const auto admit = [&](const engine::OwnAddress& own, const engine::OwnAddress& theirs) {
    return server
        ->admit({.name = "itself",
                 .incarnation = 2,
                 .address = theirs.address(),
                 .peer_key = theirs.address().key,
                 .own_key = own.address().key})
        .value();
  };
  return {admit(here, there), admit(there, here)};
}

TwoRuntimes::~TwoRuntimes() {
  client->close();
  server->close();
  for (auto& engine : engines_) engine->shut_down();
}

void fill(Outbound& outbound, std::string_view function, std::span<const std::byte> bytes) {
  outbound.open(function);
  ValueWriter(outbound.bytes()).integer(static_cast<int64_t>(bytes.size()));
  const int64_t size = static_cast<int64_t>(bytes.size());
  outbound.add({.shape = {&size, 1}, .data = {bytes.data(), bytes.size()}});
  outbound.seal();
}

CallPointer start(Connection& connection, std::string_view function, std::span<const std::byte> bytes,
                  std::chrono::milliseconds timeout) {
  CallPointer call = CallPointer::adopt(*new Call);
  fill(call->request, function, bytes);
  call->timeout = timeout;
  connection.start(*call);
  return call;
}

void wait_for(Connection& connection, Call& call) {
  EXPECT_TRUE(connection.wait(call, Clock::now() + 60s + call.timeout));
  const Clock::time_point deadline = Clock::now() + 10s;
  while (!call.released() && Clock::now() < deadline) std::this_thread::yield();
  EXPECT_TRUE(call.released());
}

CallPointer invoke(Connection& connection, std::string_view function, std::span<const std::byte> bytes,
                   std::chrono::milliseconds timeout) {
  CallPointer call = start(connection, function, bytes, timeout);
  wait_for(connection, *call);
  return call;
}

std::vector<std::byte> content(Inbound& inbound) {
  EXPECT_EQ(inbound.tensors().size(), 1u);
  const Buffer data = inbound.tensors()[0].data;
  EXPECT_EQ(inbound.tensors()[0].shape[0], static_cast<int64_t>(data.num_bytes));
  return {data.data, data.data + data.num_bytes};
}

void echo(Invocation& invocation) {
  const Buffer data = invocation.arguments().tensors()[0].data;
  fill(invocation.answer, {}, {data.data, data.num_bytes});
  invocation.reply();
}

}  // namespace axon::rpc
