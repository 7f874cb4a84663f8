#include "gpu_comm/peer_links.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <string>
#include <utility>

#include "base/log.hpp"
#include "engine/device_hook.hpp"
#include "gpu_comm/attention.hpp"

namespace axon::gpu_comm {

// Longer than mapping an arena takes. The limit ends a wait of a thread for itself: a callback may destroy the group
// from within answer().
static constexpr std::chrono::seconds kLongestAnswer{20};

static PeerAccess access_of(const ipc::ArenaSlice& slice) noexcept {
  if (slice.num_bytes >= ipc::SliceAllocator::kLargeSlice) return PeerAccess::kLarge;
  return slice.num_bytes >= ipc::SliceAllocator::kSmallSlice ? PeerAccess::kSmall : PeerAccess::kNone;
}

// Returns whether kernels can serve all hosts of a group. Otherwise all ranks know that without addresses or a vote.
static bool fits_teams(const messaging::Topology& topology) noexcept {
  return topology.largest_host() >= 2 && topology.largest_host() <= cuda::kMaxTeamRanks;
}

std::shared_ptr<PeerLinks> PeerLinks::open(engine::Communicator& communicator, ipc::SliceMapper* arena,
                                           ipc::ArenaSlice slice, uint32_t round) {
  std::shared_ptr<PeerLinks> links(new PeerLinks(communicator, arena, slice, round));
  links->send_addresses();
  return links;
}

PeerLinks::PeerLinks(engine::Communicator& communicator, ipc::SliceMapper* arena, ipc::ArenaSlice slice, uint32_t round)
    : communicator_(communicator),
      team_(communicator.topology(), communicator.rank()),
      arena_(arena),
      slice_(slice),
      round_(round) {
  if (team_.size() > cuda::kMaxTeamRanks) return;
  for (int index = 0; index < team_.size(); ++index) peers_.push_back(std::make_unique<Peer>());
}

// The content of an address message: the address, and the kernels that AXON_ALGO names.
static std::array<std::byte, ControlMessage::kMostBytes> encode(
    const ipc::DeviceAddress& address, const collectives::AlgorithmOverrides::Kernels& kernels) {
  std::array<std::byte, ControlMessage::kMostBytes> content{};
  const auto end = std::ranges::copy(address.encode(), content.begin()).out;
  std::ranges::copy(std::as_bytes(std::span(kernels)), end);
  return content;
}

void PeerLinks::send_addresses() {
  const ipc::DeviceAddress address = arena_ != nullptr ? arena_->address_of(slice_) : ipc::DeviceAddress{};
  const auto encoded = encode(address, communicator_.overrides().kernels());
  for (int index = 0; index < static_cast<int>(peers_.size()); ++index) {
    const int rank = team_.rank_of(index);
    Peer& peer = at(rank);
    if (index == team_.index()) {
      if (arena_ == nullptr) continue;
      if (const Result<std::shared_ptr<const ipc::ArenaView>> view = arena_->view_of(address); view.ok()) {
        peer.peer_slice = {index, view.value(), slice_};
      }
      continue;
    }
    peer.address_in.prepare_receive(rank, tag_of(Subject::kAddress, round_), encoded.size(), *this);
    peer.access_in.prepare_receive(rank, tag_of(Subject::kAccess, round_), sizeof(PeerAccess), *this);
    peer.address_out.prepare_send(rank, tag_of(Subject::kAddress, round_), encoded);
    for (ControlMessage* message : {&peer.access_in, &peer.address_in, &peer.address_out}) start(*message);
  }
}

void PeerLinks::start(HeldOperation& operation) {
  operation.keep_alive(shared_from_this());
  communicator_.start(operation);
}

void PeerLinks::on_control_message(ControlMessage& message) noexcept {
  if (message.subject() != Subject::kAddress || !message.status().ok() || !enter()) return;
  answer(message.peer, message);
  leave();
}

// Maps the peer's arena and sends the resulting access to the peer.
void PeerLinks::answer(int peer, const ControlMessage& address) {
  Result<PeerAccess> met = meet(peer, address);
  if (!met.ok()) {
    log::info("group '" + communicator_.name() + "': rank " + std::to_string(communicator_.rank()) +
              "'s GPU has no access to that of rank " + std::to_string(peer) + ": " + met.status().message());
    const std::lock_guard lock(mutex_);
    at(peer).obstacle = met.status().clone();
  }
  const PeerAccess access = met.ok() ? met.value() : PeerAccess::kNone;
  ControlMessage& message = at(peer).access_out;
  message.prepare_send(peer, tag_of(Subject::kAccess, round_), std::as_bytes(std::span(&access, 1)));
  start(message);
}

// A pid is meaningful only on this host. The address merely claims the host; the engine has it proven.
Result<PeerAccess> PeerLinks::meet(int peer, const ControlMessage& message) {
  Result<ipc::DeviceAddress> address =
      ipc::DeviceAddress::decode(message.content().first(ipc::DeviceAddress::kNumBytes));
  if (!address.ok()) return std::move(address.status());
  if (!communicator_.shares_host(peer)) {
    return Status(ErrorCode::kInvalidArgument, "its process runs on another host or in other namespaces");
  }
  const PeerAccess access = std::min(access_of(slice_), access_of(address.value().slice));
  if (access == PeerAccess::kNone) {
    return Status(ErrorCode::kResourceExhausted, "one of the two ranks has no slice of the arena for this group");
  }
  Result<std::shared_ptr<const ipc::ArenaView>> view = arena_->view_of(address.value());
  if (!view.ok()) return std::move(view.status());
  const std::lock_guard lock(mutex_);
  Peer& met = at(peer);
  met.peer_slice = {team_.index_of(peer), view.value(), address.value().slice};
  met.access = access;
  return access;
}

bool PeerLinks::enter() noexcept {
  const std::lock_guard lock(mutex_);
  if (!closed_) ++num_inside_;
  return !closed_;
}

void PeerLinks::leave() noexcept {
  {
    const std::lock_guard lock(mutex_);
    --num_inside_;
  }
  left_.notify_all();
}

void PeerLinks::close() noexcept {
  std::unique_lock lock(mutex_);
  closed_ = true;
  left_.wait_for(lock, kLongestAnswer, [this] { return num_inside_ == 0; });
}

Status PeerLinks::await(ControlMessage& message, const Deadline& deadline) {
  const std::string rank = "rank " + std::to_string(message.peer);
  if (!wait_attentively(communicator_, message, deadline.time)) {
    if (interrupts::are_pending()) return interrupts::interrupted();
    const bool address = message.subject() == Subject::kAddress;
    return {ErrorCode::kTimeout,
            communicator_.signed_text(
                "Timed out after " + std::to_string(deadline.timeout.count()) + " ms: " + rank +
                (address ? " has not used a GPU in this group yet" : " has not mapped this GPU yet"))};
  }
  if (message.status().ok()) return Status();
  return {message.status().code(), "connecting to the GPU of " + rank + ": " + message.status().message()};
}

// Ranks that choose different kernels would wait for each other. If the ranks of a host differ, each of them finds one
// that differs from itself, because it compares itself with all of them.
Status PeerLinks::await_address(int peer, const Deadline& deadline) {
  ControlMessage& address = at(peer).address_in;
  AXON_TRY(await(address, deadline));
  const auto theirs = address.content().subspan(ipc::DeviceAddress::kNumBytes);
  if (std::ranges::equal(theirs, std::as_bytes(std::span(communicator_.overrides().kernels())))) return Status();
  return {ErrorCode::kMismatch,
          communicator_.signed_text("AXON_ALGO names other kernels for CUDA tensors here than on rank " +
                                    std::to_string(peer) + "; it must be the same on all ranks of a host")};
}

Result<PeerAccess> PeerLinks::agree(int peer, std::chrono::milliseconds timeout) {
  const int index = team_.index_of(peer);
  if (index < 0 || index == team_.index() || peers_.empty()) return PeerAccess::kNone;
  const Deadline deadline{sync::Clock::now() + timeout, timeout};
  if (Status met = await_address(peer, deadline); !met.ok()) {
    if (met.code() != ErrorCode::kTimeout) return met;
    return Status(met.code(), met.message() + "." + engine::kMeetingUnderTags);
  }
  ControlMessage& theirs = at(peer).access_in;
  AXON_TRY(await(theirs, deadline));
  return std::min(access_to(peer), static_cast<PeerAccess>(theirs.content().front()));
}

Status PeerLinks::obstacle_to(int rank) const {
  if (team_.index_of(rank) < 0) return {ErrorCode::kInvalidArgument, "its process runs on another host"};
  const std::lock_guard lock(mutex_);
  return peers_.empty() ? Status() : at(rank).obstacle.clone();
}

PeerAccess PeerLinks::access_to(int peer) const {
  const std::lock_guard lock(mutex_);
  return at(peer).access;
}

// A rank that is alone on its host needs no access.
Result<PeerAccess> PeerLinks::access_to_peers(const Deadline& deadline) {
  PeerAccess least = team_.size() == 1 ? PeerAccess::kLarge : access_of(slice_);
  Status late;
  for (int index = 0; index < team_.size(); ++index) {
    if (index == team_.index()) continue;
    Status met = await_address(team_.rank_of(index), deadline);
    if (met.code() == ErrorCode::kTimeout) {  // the settings of a later one may differ, which explains more
      if (late.ok()) late = std::move(met);
      continue;
    }
    if (!met.ok()) return met;
    least = std::min(least, access_to(team_.rank_of(index)));
  }
  if (!late.ok()) return late;
  return least;
}

// A rank that finds a neighbour late, or its settings different, still votes: the ranks of other hosts wait for its
// ballot, and learn the reason by it. They wait twice as long, since it may have waited for its neighbours.
Result<PeerAccess> PeerLinks::agree_all(std::chrono::milliseconds timeout) {
  if (!fits_teams(communicator_.topology())) return PeerAccess::kNone;
  const Deadline deadline{sync::Clock::now() + timeout, timeout};
  const Result<InterruptibleMutex::Held> voting = voting_.lock_until(deadline.time);
  if (!voting.ok()) return voting.status().clone();
  if (!voted_) {
    const bool is_one_host = communicator_.topology().is_one_host();
    Result<PeerAccess> mine = access_to_peers(deadline);
    if (!mine.ok() && (is_one_host || mine.status().code() == ErrorCode::kCancelled)) return mine;
    Result<PeerAccess> voted = vote(mine, is_one_host ? timeout : 2 * timeout);
    if (!voted.ok() && voted.status().code() == ErrorCode::kCancelled) return voted;
    voted_.emplace(mine.ok() ? std::move(voted) : std::move(mine));
  }
  if (!voted_->ok()) return voted_->status().clone();
  return voted_->value();
}

// The smallest ballot wins.
static constexpr uint8_t kMismatchBallot = 0;
static constexpr uint8_t kLateBallot = 1;
static constexpr uint8_t kNoneBallot = 2;

static uint8_t ballot_of(const Result<PeerAccess>& access) noexcept {
  if (access.ok()) return static_cast<uint8_t>(kNoneBallot + static_cast<uint8_t>(access.value()));
  return access.status().code() == ErrorCode::kMismatch ? kMismatchBallot : kLateBallot;
}

// An interrupted vote continues in the engine, and the next call waits for the same vote.
Result<PeerAccess> PeerLinks::vote(const Result<PeerAccess>& mine, std::chrono::milliseconds timeout) {
  if (!std::exchange(has_cast_, true)) {
    vote_.cast(ballot_of(mine), timeout);
    start(vote_);
  }
  if (!wait_attentively(communicator_, vote_, sync::Clock::now() + timeout + kLongestAnswer)) {
    return interrupts::are_pending() ? interrupts::interrupted() : communicator_.explain(vote_);
  }
  if (!vote_.status().ok()) return vote_.status().clone();
  if (vote_.outcome() == kMismatchBallot) {
    return Status(ErrorCode::kMismatch,
                  communicator_.signed_text("AXON_ALGO names different kernels for CUDA tensors on the ranks of one "
                                            "other host; it must be the same on all ranks of a host"));
  }
  if (vote_.outcome() == kLateBallot) {
    return Status(ErrorCode::kTimeout,
                  communicator_.signed_text("Timed out: a rank of another host has not used a GPU in this group in "
                                            "time"));
  }
  return static_cast<PeerAccess>(vote_.outcome() - kNoneBallot);
}

ipc::PeerSlice PeerLinks::peer_slice(int index) const {
  const std::lock_guard lock(mutex_);
  return peers_[static_cast<size_t>(index)]->peer_slice;
}

std::vector<ipc::PeerSlice> PeerLinks::slice_owners() const {
  const std::lock_guard lock(mutex_);
  std::vector<ipc::PeerSlice> slice_owners;
  for (const auto& peer : peers_) {
    if (peer->peer_slice.arena != nullptr) slice_owners.push_back(peer->peer_slice);
  }
  return slice_owners;
}

// Ranks whose arenas this rank has mapped, and which it told so; except those that have answered that they cannot use
// its slice.
std::vector<ipc::PeerSlice> PeerLinks::slice_users() const {
  std::vector<ipc::PeerSlice> slice_users = slice_owners();
  std::erase_if(slice_users, [this](const ipc::PeerSlice& peer_slice) {
    const ControlMessage& answer = peers_[static_cast<size_t>(peer_slice.rank)]->access_in;
    return answer.finished() && answer.status().ok() &&
           answer.content().front() == static_cast<std::byte>(PeerAccess::kNone);
  });
  return slice_users;
}

}  // namespace axon::gpu_comm
