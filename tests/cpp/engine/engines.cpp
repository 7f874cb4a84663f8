#include "engine/engines.hpp"

#include <gtest/gtest.h>

#include "transport/ucx/ucx.hpp"

namespace axon::engine {

using namespace std::chrono_literals;

static std::unique_ptr<TestOperation> make(transport::OperationKind kind, std::vector<int32_t> values,
                                           std::chrono::milliseconds timeout) {
  auto operation = std::make_unique<TestOperation>();
  operation->data = std::move(values);
  operation->arguments.kind = kind;
  operation->arguments.dtype = DataType::kInt32;
  operation->shape.num_dimensions = 1;
  operation->shape.sizes[0] = static_cast<int64_t>(operation->data.size());
  operation->timeout = timeout;
  return operation;
}

TestOperation::~TestOperation() {
  EXPECT_TRUE(released.load()) << "the operation was destroyed while the engine uses it";
}

std::unique_ptr<TestOperation> TestOperation::all_reduce(std::vector<int32_t> values,
                                                         std::chrono::milliseconds timeout) {
  auto operation = make(transport::OperationKind::kAllReduce, std::move(values), timeout);
  operation->arguments.reduction = Reduction::kSum;
  operation->num_elements = operation->data.size();
  operation->buffer_ = {reinterpret_cast<std::byte*>(operation->data.data()), operation->data.size() * 4};
  operation->arguments.outputs = {&operation->buffer_, 1};
  return operation;
}

std::unique_ptr<TestOperation> TestOperation::broadcast(std::vector<int32_t> values, int root,
                                                        std::chrono::milliseconds timeout) {
  auto operation = all_reduce(std::move(values), timeout);
  operation->arguments.kind = transport::OperationKind::kBroadcast;
  operation->arguments.reduction = Reduction::kNone;
  operation->arguments.root = root;
  return operation;
}

std::unique_ptr<TestOperation> TestOperation::barrier(std::chrono::milliseconds timeout) {
  return make(transport::OperationKind::kBarrier, {}, timeout);
}

std::unique_ptr<TestOperation> TestOperation::send(std::vector<int32_t> values, int destination, uint32_t tag) {
  auto operation = receive(values.size(), destination, tag);
  std::copy(values.begin(), values.end(), operation->data.begin());
  operation->direction = Direction::kSend;
  operation->input_ = operation->buffer_;
  operation->arguments.inputs = {&operation->input_, 1};
  return operation;
}

std::unique_ptr<TestOperation> TestOperation::receive(size_t num_elements, int source, uint32_t tag,
                                                      std::chrono::milliseconds timeout) {
  auto operation = all_reduce(std::vector<int32_t>(num_elements), timeout);
  operation->arguments.kind = transport::OperationKind::kPointToPoint;
  operation->arguments.reduction = Reduction::kNone;
  operation->direction = Direction::kReceive;
  operation->peer = source;
  operation->tag = tag;
  return operation;
}

Engines::Engines(std::vector<std::unique_ptr<transport::Transport>> transports,
                 std::vector<collectives::AlgorithmOverrides> overrides, std::vector<uint64_t> hosts,
                 StatusPages status_pages) {
  static constexpr uint64_t kHost = 1;
  overrides.resize(transports.size());
  hosts.resize(transports.size(), kHost);
  for (size_t rank = 0; rank < transports.size(); ++rank) {
    engines_.push_back(std::make_unique<Engine>(std::move(transports[rank]), hosts[rank], overrides[rank],
                                                status_pages == StatusPages::kNone ? nullptr : StatusPage::make()));
  }
}

std::vector<std::unique_ptr<transport::Transport>> transports_of(transport::Network& network, size_t count) {
  std::vector<std::unique_ptr<transport::Transport>> transports;
  for (size_t i = 0; i < count; ++i) transports.push_back(network.make_transport());
  return transports;
}

std::vector<std::unique_ptr<transport::Transport>> ucx_transports(size_t count) {
  std::vector<std::unique_ptr<transport::Transport>> transports;
  for (size_t i = 0; i < count; ++i) transports.push_back(transport::open_ucx_transport().value());
  return transports;
}

std::vector<std::unique_ptr<transport::Transport>> loopback_transports(transport::LoopbackFabric& fabric,
                                                                       size_t count) {
  std::vector<std::unique_ptr<transport::Transport>> transports;
  for (size_t i = 0; i < count; ++i) transports.push_back(fabric.make_transport());
  return transports;
}

std::vector<PeerAddress> Engines::make_addresses() {
  std::vector<PeerAddress> addresses;
  for (const auto& engine : engines_) {
    own_addresses_.emplace_back(new OwnAddress(engine->make_address()));
    addresses.push_back(own_addresses_.back()->address());
  }
  return addresses;
}

std::unique_ptr<Communicator> Engines::form(const std::string& name, int rank,
                                            const std::vector<PeerAddress>& addresses) {
  auto formed = engines_[static_cast<size_t>(rank)]->form({.name = name, .rank = rank, .addresses = addresses});
  EXPECT_TRUE(formed.ok());
  return std::move(formed).value();
}

std::vector<std::unique_ptr<Communicator>> Engines::form(const std::string& name) {
  const std::vector<PeerAddress> addresses = make_addresses();
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (size_t rank = 0; rank < engines_.size(); ++rank) {
    communicators.push_back(form(name, static_cast<int>(rank), addresses));
  }
  return communicators;
}

void on_all_ranks(size_t num_ranks, const std::function<void(int rank)>& run) {
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < num_ranks; ++rank) threads.emplace_back(run, static_cast<int>(rank));
  for (std::thread& thread : threads) thread.join();
}

const Status& run(Communicator& communicator, TestOperation& operation) {
  communicator.start(operation);
  EXPECT_TRUE(communicator.wait(operation, sync::Clock::now() + 60s));
  await_release(operation);
  return operation.status();
}

void await_release(const TestOperation& operation) {
  const sync::Clock::time_point deadline = sync::Clock::now() + 10s;
  while (!operation.released.load() && sync::Clock::now() < deadline) std::this_thread::yield();
  EXPECT_TRUE(operation.released.load()) << "the engine still uses the operation";
}

}  // namespace axon::engine
