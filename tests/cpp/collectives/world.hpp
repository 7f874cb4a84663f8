// n ranks of one group over loopback, which one thread drives round-robin until nothing moves. It needs no clock and no
// waiting.
//
//   World world(4, delays_of_seed(7));
//   std::vector<Status> statuses = world.run(calls);      // one call per rank; repeatable
//
// Like the engine, it notifies every rank when one has failed.
#pragma once

#include <memory>
#include <random>
#include <vector>

#include "collectives/collective.hpp"
#include "transport/loopback/loopback.hpp"

namespace axon::collectives {

struct Call {
  Algorithm algorithm = nullptr;
  transport::Fingerprint fingerprint{};
  CollectiveArguments arguments{};
};

// Two operations that met at one sequence number, as seen by the rank that noticed.
struct Mismatch {
  int rank;
  transport::OperationKind theirs;
  transport::OperationKind ours;
};

// Messages and completions arrive late and out of order, as the seed decides. 0: all arrive in order.
transport::FaultPlan delays_of_seed(uint64_t seed);

class World {
 public:
  // The plan's seed chooses the hosts. Even: all ranks share one. Odd: they take turns on two, or the first rank is
  // alone and the others form pairs. With every fourth seed, messages between hosts are as long as rails allow.
  World(int num_ranks, const transport::FaultPlan& plan);
  World(messaging::Topology topology, const transport::FaultPlan& plan);
  ~World();

  // Returns the status of each rank's operation; a dead rank's is a failure. If no rank can proceed, all are notified
  // of a failure. The test fails if a rank hangs even then.
  std::vector<Status> run(const std::vector<Call>& calls);

  bool is_alive(int rank) const { return !fabric_.is_dead(static_cast<uint32_t>(rank)); }
  uint64_t num_sends() const { return fabric_.num_sends(); }
  uint64_t num_fetches() const { return fabric_.num_fetches(); }
  uint64_t num_steps(int rank) const { return fabric_.num_steps(static_cast<uint32_t>(rank)); }
  const std::vector<Mismatch>& mismatches() const noexcept { return mismatches_; }

 private:
  struct Rank;

  void start(const std::vector<Call>& calls);
  bool advance();
  bool all_done() const;
  bool any_failed() const;
  void fail_all(const Status& reason);
  void come_to_rest();

  const messaging::Topology topology_;
  transport::LoopbackFabric fabric_;
  const uint64_t seed_;
  std::mt19937_64 random_;
  uint32_t sequence_ = 0;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::vector<Mismatch> mismatches_;
};

}  // namespace axon::collectives
