#include "collectives/world.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "collectives/allocation_counter.hpp"

namespace axon {

struct World::Rank final : ControlHandler, InboxListener {
  Rank(World& owner, Transport& transport, int rank, int num_ranks) : world(owner), messenger(transport, *this) {
    team.group = 1;
    team.rank = rank;
    for (int peer = 0; peer < num_ranks; ++peer) team.peers.push_back(static_cast<PeerId>(peer));
    inbox.emplace(transport, messenger.block_pool(), team, *this);
    messenger.attach(*inbox);
  }

  void on_control(const MessageHeader&, const Payload&) noexcept override {}
  void on_peer_lost(PeerId, Status) noexcept override {}
  void on_overflow(const MessageHeader&) noexcept override { ADD_FAILURE() << "too many unexpected messages"; }
  void on_mismatch(const MessageHeader& theirs, const Fingerprint& ours) noexcept override {
    const AllocationCounter::Pause pause;
    world.mismatches_.push_back(std::to_string(team.rank) + ": " + name_of(theirs.fingerprint.operation) + ", " +
                                name_of(ours.operation));
    if (exchange) exchange->fail({ErrorCode::kMismatch, "mismatch"});
  }

  bool is_done() const noexcept { return !task || task->done(); }

  World& world;
  Team team;
  Messenger messenger;
  std::optional<Inbox> inbox;
  std::optional<Exchange> exchange;
  std::optional<Task<Status>> task;
};

World::World(int num_ranks, uint64_t seed) : network_(num_ranks, seed), seed_(seed), random_(seed) {
  for (int rank = 0; rank < num_ranks; ++rank) {
    ranks_.push_back(std::make_unique<Rank>(*this, network_.transport(rank), rank, num_ranks));
  }
}

World::~World() {
  come_to_rest();
}

std::vector<Status> World::run(const std::vector<Call>& calls) {
  ++sequence_;
  start(calls);
  bool told = false;
  while (!all_done()) {
    if (any_failed() && !std::exchange(told, true)) fail_all({ErrorCode::kAborted, "another rank failed"});
    if (advance()) continue;
    if (told) {
      ADD_FAILURE() << "stuck after all ranks were told to fail";
      break;
    }
    fail_all({ErrorCode::kTimeout, "no rank can go on"});
    told = true;
  }
  std::vector<Status> statuses;
  for (auto& rank : ranks_) {
    const AllocationCounter::Pause pause;
    statuses.push_back(rank->is_done() ? rank->task->take() : Status(ErrorCode::kTimeout, "dead or stuck"));
  }
  return statuses;
}

// Ranks enter in an order of the seed's, and some of them have had messages by then.
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
    rank->exchange.reset();
  }
  for (const size_t index : order) {
    Rank& rank = *ranks_[index];
    if (!network_.is_alive(static_cast<int>(index))) continue;
    const Call& call = calls[index];
    rank.exchange.emplace(rank.messenger, *rank.inbox, sequence_, call.fingerprint);
    rank.inbox->enter(sequence_, call.fingerprint);
    rank.task.emplace(call.algorithm(*rank.exchange, call.arguments));
    rank.task->resume();
    if (seed_ != 0 && random_() % 2 == 0) advance();
  }
}

// A little progress on every rank that lives; false if nothing moved.
bool World::advance() {
  bool moved = false;
  for (size_t index = 0; index < ranks_.size(); ++index) {
    if (!network_.is_alive(static_cast<int>(index))) continue;
    moved |= ranks_[index]->messenger.progress() != 0;
  }
  return moved;
}

bool World::all_done() const noexcept {
  for (size_t index = 0; index < ranks_.size(); ++index) {
    if (network_.is_alive(static_cast<int>(index)) && !ranks_[index]->is_done()) return false;
  }
  return true;
}

bool World::any_failed() const noexcept {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const auto& rank) { return rank->exchange && !rank->exchange->failure().ok(); });
}

void World::fail_all(const Status& reason) noexcept {
  for (size_t index = 0; index < ranks_.size(); ++index) {
    Rank& rank = *ranks_[index];
    if (!network_.is_alive(static_cast<int>(index)) || !rank.exchange) continue;
    rank.exchange->fail(reason.clone());
    rank.messenger.run_ready();
  }
}

// What nobody fetched is refused; then nothing may be left in the network's hands.
void World::come_to_rest() {
  for (auto& rank : ranks_) {
    if (rank->exchange) rank->exchange->fail({ErrorCode::kAborted, "the world ends"});
    rank->task.reset();
    rank->messenger.detach(*rank->inbox);
    rank->inbox.reset();
  }
  bool moved = true;
  while (std::exchange(moved, false)) {
    for (auto& rank : ranks_) moved |= rank->messenger.progress() != 0;
  }
  for (auto& rank : ranks_) {
    EXPECT_TRUE(!rank->exchange || rank->exchange->at_rest());
  }
}

}  // namespace axon
