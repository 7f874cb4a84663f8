// Several engines in this process, one a rank, joined by a transport: what comm tests run on.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.hpp"
#include "transport/loopback/loopback.hpp"
#include "transport/networks.hpp"

namespace axon::engine {

// An operation with memory of its own. Whoever makes it waits for it before destroying it.
class TestOperation final : public Operation {
 public:
  ~TestOperation() override;

  std::vector<int32_t> data;
  std::atomic<bool> released{false};

  static std::unique_ptr<TestOperation> all_reduce(std::vector<int32_t> values, std::chrono::milliseconds timeout);
  static std::unique_ptr<TestOperation> broadcast(std::vector<int32_t> values, int root,
                                                  std::chrono::milliseconds timeout);
  static std::unique_ptr<TestOperation> barrier(std::chrono::milliseconds timeout);
  static std::unique_ptr<TestOperation> send(std::vector<int32_t> values, int destination, uint32_t tag);
  static std::unique_ptr<TestOperation> receive(size_t num_elements, int source, uint32_t tag,
                                                std::chrono::milliseconds timeout = std::chrono::seconds(30));

 private:
  void on_released() noexcept override { released.store(true); }

  Buffer buffer_;
  ConstBuffer input_;
};

// Of one network: kRings is what a process's own engine stands on.
std::vector<std::unique_ptr<transport::Transport>> transports_of(transport::Network& network, size_t count);
// Transports of UCX.
std::vector<std::unique_ptr<transport::Transport>> ucx_transports(size_t count);
// Transports of one network in memory.
std::vector<std::unique_ptr<transport::Transport>> loopback_transports(transport::LoopbackFabric& fabric, size_t count);

class Engines {
 public:
  // Every rank is another process to the others, as far as they can tell.
  explicit Engines(std::vector<std::unique_ptr<transport::Transport>> transports);

  // A new group of all ranks.
  std::vector<std::unique_ptr<Communicator>> form(const std::string& name);
  // The same rank by rank: all exchange addresses, and each forms the group when it comes to it, or gives it up.
  std::vector<PeerAddress> make_addresses();
  void give_up_addresses() { own_addresses_.clear(); }
  std::unique_ptr<Communicator> form(const std::string& name, int rank, const std::vector<PeerAddress>& addresses);
  Engine& operator[](size_t rank) { return *engines_[rank]; }

 private:
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<std::unique_ptr<const OwnAddress>> own_addresses_;
};

// Runs a function on every rank, each on a thread of its own, to the end.
void on_all_ranks(size_t num_ranks, const std::function<void(int rank)>& run);

// Starts an operation and waits until it is released; its status.
const Status& run(Communicator& communicator, TestOperation& operation);

// Until the engine uses it no more: what failed may still have data in flight.
void await_release(const TestOperation& operation);

}  // namespace axon::engine
