// Several engines in this process, one per rank, connected by a transport. The engine tests run on them.
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

// An operation with its own memory. Its creator must wait for it before destroying it.
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

// Makes transports of one network.
std::vector<std::unique_ptr<transport::Transport>> transports_of(transport::Network& network, size_t count);
// Makes transports over UCX.
std::vector<std::unique_ptr<transport::Transport>> ucx_transports(size_t count);
// Makes transports of one network in memory.
std::vector<std::unique_ptr<transport::Transport>> loopback_transports(transport::LoopbackFabric& fabric, size_t count);

class Engines {
 public:
  // Thousands of engines leave out their status pages, which take a descriptor and 109 KiB each.
  enum class StatusPages : uint8_t { kOneEach, kNone };

  // Each rank looks like a separate process to the others. `overrides`: those of the first ranks. `hosts`: what the
  // ranks claim to be their hosts; all are on one if it is empty.
  explicit Engines(std::vector<std::unique_ptr<transport::Transport>> transports,
                   std::vector<collectives::AlgorithmOverrides> overrides = {}, std::vector<uint64_t> hosts = {},
                   StatusPages status_pages = StatusPages::kOneEach);

  // Forms a new group of all ranks.
  std::vector<std::unique_ptr<Communicator>> form(const std::string& name);
  // Forms a group rank by rank: all ranks exchange addresses, then each forms the group at its own time, or abandons
  // it.
  std::vector<PeerAddress> make_addresses();
  void give_up_addresses() { own_addresses_.clear(); }
  std::unique_ptr<Communicator> form(const std::string& name, int rank, const std::vector<PeerAddress>& addresses);
  Engine& operator[](size_t rank) { return *engines_[rank]; }

 private:
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<std::unique_ptr<const OwnAddress>> own_addresses_;
};

// Runs a function on every rank, each on its own thread, and waits for all.
void on_all_ranks(size_t num_ranks, const std::function<void(int rank)>& run);

// Starts an operation, waits until it is released, and returns its status.
const Status& run(Communicator& communicator, TestOperation& operation);

// Waits until the engine no longer uses the operation. A failed one may still have data in flight.
void await_release(const TestOperation& operation);

}  // namespace axon::engine
