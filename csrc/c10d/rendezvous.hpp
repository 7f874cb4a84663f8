// Exchanges the addresses of a group's ranks through rounds in the group's store, which rank 0 opens and ends.
//
// Rank 0 takes a number for each round that no other process has taken, so that all keys of a round are its own. The
// other ranks answer rank 0, so a dead rank's old address belongs to a round that is over, and no rank reads it:
//
//   axon/<size>/round            the number of the latest round
//   axon/<size>/<round>/<rank>   a rank's address for this round; a process that replaces the rank overwrites it
//   axon/<size>/<round>/end      how the round ended: with all ranks' addresses, or with another round's number
//   axon/<size>/<round>/next     the round that was opened after this one, if this one ended with a group
//
// Store calls if the name is new in its store:
//   rank 0       add(round, 1), multiGet(all addresses), set(end); two get() an address where the store lacks multiGet
//   other ranks  get(round), set(address), get(end), deleteKey(address)
// In a store where a group of this name has been formed before, rank 0 makes four more calls. It reads how the previous
// round ended, announces the next one, and deletes both entries. A rank that comes before rank 0 also makes four more.
// It finds a round that has ended without it, and waits for the next one.
//
// A rank that was killed after it had stored its address would become a member. So if rank 0 had to wait long for a
// round, it opens another one, in which all live ranks answer within milliseconds. See
// docs/adr/0031-let-rank-0-open-rounds-in-the-store.md.
//
// A group of more than kMostRanksInOneEntry ranks exchanges its addresses over a tree (engine/address_tree.hpp), once
// rank 0 has found all ranks in the store. Then each rank reads its neighbours' addresses only:
//
//   axon/<size>/<round>/end       also: the exchange begins; later: the group was formed, or the exchange has failed
//   axon/<size>/<round>/outcome   the latter, or another round's number: for ranks that cannot learn it from the tree
//   axon/<size>/<round>/trouble   why the exchange has failed at some rank
//
//   rank 0       add(round, 1), wait(all addresses), set(end), multiGet(children), multiSet(end, outcome)
//   other ranks  get(round), set(address), get(end), multiGet(parent, children)
// A rank deletes its address when the next group of this name has been formed. See
// docs/adr/0063-exchange-the-addresses-of-large-groups-over-a-tree.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "c10d/round_end.hpp"
#include "c10d/round_entries.hpp"
#include "engine/address_tree.hpp"
#include "engine/engine.hpp"

namespace axon::c10d_backend {

struct Membership {
  std::string group;
  int rank = 0;
  int global_rank = 0;  // in the job; names this rank in log lines and traces
  int size = 1;
  std::chrono::milliseconds timeout{0};
};

// One rank's side of the rendezvous. Used by one thread.
class Rendezvous {
 public:
  Rendezvous(c10d::Store& store, const Membership& membership, engine::Engine& engine);

  // Returns the addresses of all ranks, by rank. This rank's own can form a group for as long as this object lives.
  // Throws DistBackendError, which names the ranks that did not join, once the membership's timeout has passed.
  std::vector<engine::PeerAddress> meet();

 private:
  static constexpr int kMostRanksInOneEntry = 64;

  std::vector<engine::PeerAddress> lead();
  std::vector<engine::PeerAddress> follow();
  void open_next_round();
  void end_unfinished_rounds();
  void move_all_from(int64_t first_round);
  void make_addresses();
  std::vector<engine::PeerAddress> read_addresses();
  bool is_member(const RoundEnd& end) const;
  RoundEnd move_to_this_round() const;

  // For groups that exchange their addresses over a tree; defined in rendezvous_over_tree.cpp.
  bool is_over_tree() const noexcept { return membership_.size > kMostRanksInOneEntry; }
  std::vector<engine::PeerAddress> lead_exchange();
  RoundEnd follow_exchange(const RoundEnd& begun);
  Result<std::vector<engine::PeerAddress>> exchange(const Blob& root_address);
  std::vector<engine::PeerAddress> read_neighbours(const Blob& root_address);
  void announce(const RoundEnd& outcome);
  bool have_others_given_up();
  [[noreturn]] void throw_exchange_failure(const std::string& reason);

  void sweep(int64_t latest_group) noexcept;
  void sweep_as_root() noexcept;
  [[noreturn]] void throw_timeout(const std::string& why);
  std::string absentees() noexcept;

  c10d::Store& store_;
  const Membership& membership_;
  engine::Engine& engine_;
  RoundEntries entries_;
  int64_t round_ = 0;                                // the round that this rank takes part in; 0: none yet
  int64_t latest_group_ = 0;                         // rank 0 only; as in RoundEnd
  std::chrono::steady_clock::time_point opened_at_;  // rank 0 only
  std::unique_ptr<const engine::OwnAddress> own_;    // for this round: messages to an earlier one match nothing
  std::optional<engine::AddressTree> tree_;          // the same
  std::string trouble_;            // why the exchange over the tree has failed here, if it has in this round
  bool has_told_failure_ = false;  // a failed exchange, which concerns no absent rank
};

}  // namespace axon::c10d_backend
