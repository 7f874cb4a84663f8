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
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

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
  using Blob = std::vector<uint8_t>;

  // How a round ended.
  struct End {
    int64_t latest_group = 0;                    // the latest earlier round that ended with a group; 0: none
    int64_t next_round = 0;                      // the round that its ranks join next; 0: it ended with a group
    std::vector<engine::PeerAddress> addresses;  // of the group, by rank
  };

  std::vector<engine::PeerAddress> lead();
  std::vector<engine::PeerAddress> follow();
  void open_next_round();
  void end_unfinished_rounds();
  void move_all_from(int64_t first_round);
  std::vector<Blob> read_addresses();
  bool is_member(const End& end) const;

  Blob encode_group(const std::vector<Blob>& addresses) const;
  Blob encode_move() const;
  static End decode(const Blob& blob);
  static engine::PeerAddress decode_address(size_t rank, const Blob& blob);

  std::string key(int64_t round, const std::string& name) const;
  std::string address_key(int64_t round, int rank) const { return key(round, std::to_string(rank)); }
  std::string end_key(int64_t round) const { return key(round, "end"); }
  std::string next_key(int64_t round) const { return key(round, "next"); }

  Blob get(const std::string& key);
  int64_t get_number(const std::string& key);
  void forget(const std::string& key) noexcept;
  void sweep(int64_t first_round) noexcept;
  std::string absentees() noexcept;
  std::chrono::milliseconds time_left() const;

  c10d::Store& store_;
  const Membership& membership_;
  engine::Engine& engine_;
  const std::string prefix_;
  const std::chrono::steady_clock::time_point deadline_;
  int64_t round_ = 0;                                // the round that this rank takes part in; 0: none yet
  int64_t latest_group_ = 0;                         // rank 0 only; as in End
  std::chrono::steady_clock::time_point opened_at_;  // rank 0 only
  std::unique_ptr<const engine::OwnAddress> own_;    // for this round: messages to an earlier one match nothing
};

}  // namespace axon::c10d_backend
