// n ranks of one group, driven round-robin by one thread, with a bound on steps instead of a clock.
//
//   World world(4, /*seed=*/7);
//   std::vector<Status> statuses = world.run(calls);      // one call a rank; repeatable
//
// As the engine does, it tells every rank when one has failed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "collectives/collective.hpp"
#include "collectives/simulated_network.hpp"

namespace axon {

struct Call {
  Algorithm algorithm = nullptr;
  Fingerprint fingerprint{};
  CollectiveArguments arguments{};
};

class World {
 public:
  World(int num_ranks, uint64_t seed);
  ~World();

  SimulatedNetwork& network() noexcept { return network_; }

  // The status of each rank's operation. A rank that is stuck, even after all were told to fail, fails the test; so
  // does any rank if nothing was injected and the operation does not end by itself.
  std::vector<Status> run(const std::vector<Call>& calls);

  // What the ranks' inboxes found to differ, as "rank: their operation, our operation".
  const std::vector<std::string>& mismatches() const noexcept { return mismatches_; }

 private:
  struct Rank;

  void start(const std::vector<Call>& calls);
  bool advance();
  bool all_done() const noexcept;
  bool any_failed() const noexcept;
  void fail_all(const Status& reason) noexcept;
  void come_to_rest();

  SimulatedNetwork network_;
  const uint64_t seed_;
  std::mt19937_64 random_;
  uint32_t sequence_ = 0;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<std::string> mismatches_;
};

}  // namespace axon
