#include "collectives/world.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "collectives/uncounted_transport.hpp"

namespace axon::collectives {

// A rank is notified of a lost peer within this many empty rounds (FaultPlan::longest_delay).
static constexpr int kQuietRounds = 20;

transport::FaultPlan delays_of_seed(uint64_t seed) {
  transport::FaultPlan plan;
  plan.seed = seed;
  plan.largest_eager_num_bytes = 512;
  if (seed == 0) return plan;
  plan.pending = 0.3;
  plan.delay = 0.3;
  plan.reorder = 0.5;
  return plan;
}

static messaging::Topology topology_of_seed(int num_ranks, uint64_t seed) {
  std::vector<uint64_t> hosts;
  for (uint64_t rank = 0; rank < static_cast<uint64_t>(num_ranks); ++rank) {
    hosts.push_back(seed % 2 == 0 ? 0 : seed % 4 == 1 ? (rank + 1) / 2 : rank % 2);
  }
  return messaging::Topology(hosts);
}

// Some seeds choose limits so small that most messages wait at their sender, either their payload or the whole message.
static messaging::Allowance allowance_of_seed(uint64_t seed, int num_ranks) {
  switch (seed % 4) {
    case 2:
      return {.num_messages = 1000, .num_bytes = 600};
    case 3:
      return {.num_messages = 2, .num_bytes = 600};
    default:
      return messaging::Allowance::in_group_of(num_ranks);
  }
}

struct World::Rank final : messaging::LossListener, messaging::InboxListener {
  Rank(World& owner, int rank) : world(owner), transport(owner.fabric_.make_transport()), messenger(transport, *this) {
    team.rank = rank;
    team.topology = world.topology_;
    team.has_rails = world.seed_ % 4 == 3;
  }

  // Peers are added in order of rank, so that a peer's id is its rank.
  void join(const std::vector<std::unique_ptr<Rank>>& ranks) {
    for (const auto& other : ranks) {
      team.peers.push_back(transport.add_peer(other->transport.address(), true).value());
      team.keys.push_back(static_cast<uint64_t>(other->team.rank) + 1);
    }
    inbox.emplace(transport, messenger.size_class_pool(), team, *this, allowance_of_seed(world.seed_, team.size()));
    messenger.attach(*inbox);
  }

  void on_control(const transport::ControlHeader&, const transport::Payload&) noexcept override {}
  void on_overflow(Status reason) noexcept override { ADD_FAILURE() << reason.message(); }
  void on_peer_lost(transport::PeerId peer, Status reason) noexcept override {
    messenger.mark_lost(peer, "the test says so");
    if (exchange && exchange->awaits(peer)) exchange->fail(std::move(reason));
  }
  Status on_mismatch(const transport::OperationHeader& theirs, const transport::Fingerprint& ours) noexcept override {
    world.mismatches_.push_back({team.rank, theirs.fingerprint.operation, ours.operation});
    Status mismatch(ErrorCode::kMismatch, "mismatch");
    if (exchange) exchange->fail(mismatch.clone());
    return mismatch;
  }

  bool has_ended(uint32_t) noexcept override { return is_done() && exchange->failure().ok(); }

  bool is_done() const noexcept { return task && task->done(); }

  World& world;
  UncountedTransport transport;
  messaging::Messenger messenger;
  messaging::Team team;
  std::optional<messaging::Inbox> inbox;
  std::optional<messaging::Exchange> exchange;
  std::optional<messaging::View> view;
  std::optional<Task<Status>> task;
};

World::World(int num_ranks, const transport::FaultPlan& plan) : World(topology_of_seed(num_ranks, plan.seed), plan) {}

World::World(messaging::Topology topology, const transport::FaultPlan& plan)
    : topology_(std::move(topology)), fabric_(plan), seed_(plan.seed), random_(plan.seed) {
  const int num_ranks = topology_.num_ranks();
  for (int rank = 0; rank < num_ranks; ++rank) ranks_.push_back(std::make_unique<Rank>(*this, rank));
  for (auto& rank : ranks_) rank->join(ranks_);
}

World::~World() {
  come_to_rest();
}

std::vector<Status> World::run(const std::vector<Call>& calls) {
  ++sequence_;
  start(calls);
  bool told = false;
  for (int num_quiet = 0; !all_done();) {
    if (!told && any_failed()) {
      fail_all({ErrorCode::kAborted, "another rank failed"});
      told = true;
    }
    num_quiet = advance() ? 0 : num_quiet + 1;
    if (num_quiet < kQuietRounds) continue;
    if (told) {
      ADD_FAILURE() << "stuck after all ranks were told to fail";
      break;
    }
    fail_all({ErrorCode::kTimeout, "no rank can go on"});
    told = true;
  }
  const AllocationCounter::Pause pause;
  std::vector<Status> statuses;
  for (auto& rank : ranks_) {
    const bool counts = is_alive(rank->team.rank) && rank->is_done();
    statuses.push_back(counts ? rank->task->take() : Status(ErrorCode::kPeerLost, "dead"));
  }
  return statuses;
}

// Ranks enter in an order that the seed decides. Some of them have received messages by then.
void World::start(const std::vector<Call>& calls) {
  std::vector<size_t> order;
  {
    const AllocationCounter::Pause pause;
    order.resize(ranks_.size());
    std::iota(order.begin(), order.end(), 0u);
    if (seed_ != 0) std::shuffle(order.begin(), order.end(), random_);
  }
  for (auto& rank : ranks_) {
    rank->task.reset();
    rank->view.reset();
    rank->exchange.reset();
  }
  for (const size_t index : order) {
    Rank& rank = *ranks_[index];
    const Call& call = calls[index];
    rank.exchange.emplace(rank.messenger, *rank.inbox, sequence_, call.fingerprint);
    rank.view.emplace(*rank.exchange);
    rank.inbox->enter(sequence_, call.fingerprint);
    rank.task.emplace(call.algorithm(*rank.view, call.arguments));
    rank.task->resume();
    if (seed_ != 0 && random_() % 2 == 0) advance();
  }
}

// Makes some progress on every rank. Returns whether anything moved.
bool World::advance() {
  bool moved = false;
  for (auto& rank : ranks_) moved |= rank->messenger.progress() != 0;
  return moved;
}

bool World::all_done() const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [this](const auto& rank) { return rank->is_done() || !is_alive(rank->team.rank); });
}

bool World::any_failed() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const auto& rank) { return !rank->exchange->failure().ok(); });
}

void World::fail_all(const Status& reason) {
  for (auto& rank : ranks_) {
    rank->exchange->fail(reason.clone());
    if (is_alive(rank->team.rank)) rank->messenger.run_ready();
  }
}

// Payloads that no rank fetched are refused. Then no payload may remain in the transport, unless it died with a rank.
void World::come_to_rest() {
  bool all_alive = true;
  for (auto& rank : ranks_) {
    all_alive &= is_alive(rank->team.rank);
    if (rank->exchange) rank->exchange->fail({ErrorCode::kAborted, "the world ends"});
    rank->task.reset();
    rank->messenger.detach(*rank->inbox);
    rank->inbox.reset();
  }
  for (int num_quiet = 0; num_quiet < kQuietRounds;) num_quiet = advance() ? 0 : num_quiet + 1;
  for (auto& rank : ranks_) {
    EXPECT_TRUE(!all_alive || !rank->exchange || rank->exchange->at_rest()) << "rank " << rank->team.rank;
    rank->view.reset();
    rank->exchange.reset();
  }
}

}  // namespace axon::collectives
