// Agrees with the other ranks of this host on peer access: what each pair of ranks can use of each other's GPU memory.
//
//   auto links = PeerLinks::open(communicator, arena, slice);   // sends this rank's address; does not block
//   Result<PeerAccess> access = links->agree(peer, timeout);
//
// A rank's peers are the group's other ranks on its host, as all ranks know from the topology. Ranks are given as
// numbers in the group. Only slices are numbered by local index (gpu_comm/local_team.hpp), for kernels and arenas.
//
// A rank exchanges two control messages with each of its peers, in each direction:
//
//   address   describes a rank's slice and names the kernels of its AXON_ALGO; sent when it forms its side
//   access    says how much of the pair's two slices this rank can use; sent when the peer's arena is mapped
//
// The thread that drives the engine sends and answers both, whatever the rank's own threads do. An agreement only needs
// the peer to have formed its side. So ranks cannot deadlock, in whatever order they ask for their links.
//
// Shared by the group that opens it and the engine, which has control messages in flight. Thread-safe.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/interruptible_mutex.hpp"
#include "engine/communicator.hpp"
#include "gpu_comm/control_message.hpp"
#include "gpu_comm/local_team.hpp"
#include "ipc/arena.hpp"

namespace axon::gpu_comm {

// What two ranks can use of each other's slices, as sent on the wire. If two differ, the smaller one applies.
enum class PeerAccess : uint8_t { kNone, kSmall, kLarge };

class PeerLinks final : public std::enable_shared_from_this<PeerLinks>, private ControlMessage::Reader {
 public:
  // With a null arena this rank has no peer access, and tells the other ranks. `round` says how often the group gave up
  // its links before; it is the same on all ranks.
  static std::shared_ptr<PeerLinks> open(engine::Communicator& communicator, ipc::SliceMapper* arena,
                                         ipc::ArenaSlice slice, uint32_t round = 0);

  // The first call for a peer waits until the peer has formed its side. Returns kNone at once for the own rank and for
  // ranks of other hosts. This call and agree_all() fail with kCancelled when interrupts are pending, and may be
  // repeated.
  Result<PeerAccess> agree(int peer, std::chrono::milliseconds timeout);
  // Returns the minimum over all pairs of ranks that share a host, the same on all ranks of the group. The first call
  // is a collective of the group, and waits until all ranks have formed their sides. Returns kNone at once if no host
  // has two ranks, or if one has more than kMaxTeamRanks.
  Result<PeerAccess> agree_all(std::chrono::milliseconds timeout);

  // Returns why this rank's GPU cannot access that of another rank, or ok. The address of a peer must have arrived.
  Status obstacle_to(int rank) const;

  // Returns the slice of the peer with this local index, once an agreement with it is better than kNone.
  ipc::PeerSlice peer_slice(int index) const;
  // Slices that this rank has mapped, including its own. Their owners wait for its detach notice.
  std::vector<ipc::PeerSlice> slice_owners() const;
  // Ranks that may use this rank's slice, as far as it knows, including itself.
  std::vector<ipc::PeerSlice> slice_users() const;

  // When this returns, only callers of agree() still use the communicator.
  void close() noexcept;

 private:
  struct Peer {
    ControlMessage address_out, address_in, access_out, access_in;
    ipc::PeerSlice peer_slice;              // guarded by mutex_
    PeerAccess access = PeerAccess::kNone;  // this rank's own view; guarded by mutex_
    Status obstacle;                        // reason for kNone; guarded by mutex_
  };
  struct Deadline {
    sync::Clock::time_point time;
    std::chrono::milliseconds timeout;  // as named in errors
  };

  PeerLinks(engine::Communicator& communicator, ipc::SliceMapper* arena, ipc::ArenaSlice slice, uint32_t round);
  // Returns the state of a peer, or of this rank. The rank must be one of this host.
  Peer& at(int rank) const noexcept { return *peers_[static_cast<size_t>(team_.index_of(rank))]; }
  void send_addresses();
  void start(HeldOperation& operation);

  void on_control_message(ControlMessage& message) noexcept override;
  void answer(int peer, const ControlMessage& address);
  Result<PeerAccess> meet(int peer, const ControlMessage& message);
  bool enter() noexcept;
  void leave() noexcept;

  Status await(ControlMessage& message, const Deadline& deadline);
  Status await_address(int peer, const Deadline& deadline);
  Result<PeerAccess> access_to_peers(const Deadline& deadline);
  Result<PeerAccess> vote(const Result<PeerAccess>& mine, std::chrono::milliseconds timeout);
  PeerAccess access_to(int peer) const;

  engine::Communicator& communicator_;
  const LocalTeam team_;
  ipc::SliceMapper* const arena_;
  const ipc::ArenaSlice slice_;
  const uint32_t round_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by local index; empty above the largest team size

  InterruptibleMutex voting_;  // held during the ranks' only vote
  MinimumVote vote_;
  bool has_cast_ = false;                    // guarded by voting_
  std::optional<Result<PeerAccess>> voted_;  // guarded by voting_

  mutable std::mutex mutex_;
  std::condition_variable left_;
  bool closed_ = false;  // guarded by mutex_
  int num_inside_ = 0;   // threads that are answering a control message; guarded by mutex_
};

}  // namespace axon::gpu_comm
