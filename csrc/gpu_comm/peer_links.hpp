// Which other ranks of a group this rank's GPU reaches, as both ends agree.
//
//   auto links = PeerLinks::open(communicator, arena, slice);     // sends this rank's address to all; waits for nobody
//   Result<PeerAccess> access = links->agree(peer, timeout);
//
//   address     what a rank's slice is, sent once it forms its side of the group
//   access   sent back once an address has come and its arena is mapped: how much of the pair's two slices this rank
//   can use
//
// Both are sent and answered by whichever thread drives the engine, whatever the rank's own threads do: an agreement
// needs the peer to have formed its side, nothing else of it. So no order in which ranks ask for their links can make
// them wait for each other.
//
// Shared by the group that opens it and the engine, which has control messages under way. Any thread.
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
#include "ipc/arena.hpp"

namespace axon::gpu_comm {

// What two ranks can use of each other's slices; on the wire. Of two that differ, the lesser holds.
enum class PeerAccess : uint8_t { kNone, kSmall, kLarge };

class PeerLinks final : public std::enable_shared_from_this<PeerLinks>, private ControlMessage::Reader {
 public:
  // Without an arena (null) this rank reaches nobody, and tells them. `round`: how often the group has given its links
  // up before, the same on all ranks.
  static std::shared_ptr<PeerLinks> open(engine::Communicator& communicator, ipc::Arena* arena, ipc::ArenaSlice slice,
                                         uint32_t round = 0);

  // The first call for a peer waits until it has formed its side. The own rank: kNone. These two fail with kCancelled
  // once interrupts are pending, and may be called again.
  Result<PeerAccess> agree(int peer, std::chrono::milliseconds timeout);
  // The least of all pairs of the group. The first call is a collective, once all have formed their sides.
  Result<PeerAccess> agree_all(std::chrono::milliseconds timeout);

  // Why this rank's GPU cannot use that of the peer, whose address has come; ok where it can.
  Status obstacle_to(int peer) const;

  // Where a rank's slice is, once an agreement with it says more than kNone.
  ipc::PeerSlice peer_slice(int rank) const;
  // Whose slices this rank has mapped, its own included: they wait for its notice.
  std::vector<ipc::PeerSlice> slice_owners() const;
  // Who may use this rank's slice, for all that it knows, itself included.
  std::vector<ipc::PeerSlice> slice_users() const;

  // When this returns, the communicator is not used any more but by callers of agree().
  void close() noexcept;

 private:
  struct Peer {
    ControlMessage address_out, address_in, access_out, access_in;
    ipc::PeerSlice peer_slice;              // guarded by mutex_
    PeerAccess access = PeerAccess::kNone;  // as far as this rank is concerned; guarded by mutex_
    Status obstacle;                        // why that is kNone; guarded by mutex_
  };
  struct Deadline {
    sync::Clock::time_point time;
    std::chrono::milliseconds timeout;  // what it is called in messages
  };

  PeerLinks(engine::Communicator& communicator, ipc::Arena* arena, ipc::ArenaSlice slice, uint32_t round);
  bool is_own(size_t rank) const noexcept { return static_cast<int>(rank) == communicator_.rank(); }
  void send_addresses();
  void start(HeldOperation& operation);

  void on_control_message(ControlMessage& message) noexcept override;
  void answer(int peer, const ControlMessage& address);
  Result<PeerAccess> meet(int peer, const ControlMessage& message);
  bool enter() noexcept;
  void leave() noexcept;

  Status await(ControlMessage& message, const Deadline& deadline);
  Result<PeerAccess> vote(PeerAccess mine, std::chrono::milliseconds timeout);
  PeerAccess access_to(int peer) const;

  engine::Communicator& communicator_;
  ipc::Arena* const arena_;
  const ipc::ArenaSlice slice_;
  const uint32_t round_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank; none where a team cannot be so large

  InterruptibleMutex voting_;  // held while the ranks vote, once
  MinimumVote vote_;
  bool has_cast_ = false;                    // guarded by voting_
  std::optional<Result<PeerAccess>> voted_;  // guarded by voting_

  mutable std::mutex mutex_;
  std::condition_variable left_;
  bool closed_ = false;  // guarded by mutex_
  int num_inside_ = 0;   // threads that answer a control message; guarded by mutex_
};

}  // namespace axon::gpu_comm
