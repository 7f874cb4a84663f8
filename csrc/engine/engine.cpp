#include "engine/engine.hpp"

#include <algorithm>
#include <cstring>
#include <new>
#include <stdexcept>

#include "base/coarse_clock.hpp"
#include "base/log.hpp"
#include "base/random.hpp"
#include "base/resources.hpp"
#include "base/trace.hpp"
#include "engine/overlay.hpp"

namespace axon::engine {

static constexpr std::chrono::milliseconds kTickInterval{10};
static constexpr int kFlushTimeoutMs = 1000;
// What a process sent before it ended still counts, but others may keep sending meanwhile. kUnreadDrainTime applies if
// messages of the process are already here and need only be read.
static constexpr std::chrono::milliseconds kDrainTime{20};
static constexpr std::chrono::milliseconds kUnreadDrainTime{1000};

Engine::Engine(std::unique_ptr<transport::Transport> transport, uint64_t host,
               collectives::AlgorithmOverrides overrides, std::shared_ptr<StatusPage> status_page)
    : status_page_(std::move(status_page)),
      transport_(std::move(transport)),
      peers_(*transport_, host),
      overrides_(std::move(overrides)),
      messenger_(*transport_, *this),
      doorbell_(transport_->event_fd()) {
  try {
    progress_.emplace(static_cast<Driver&>(*this), doorbell_);
  } catch (const std::system_error& failure) {
    throw std::runtime_error("torch_axon: " + describe_thread_failure("axon-progress", failure));
  }
}

Engine::~Engine() {
  shut_down();
}

OwnAddress Engine::make_address() {
  PeerAddress peer_address = peers_.own_address();
  peer_address.key = random_number();
  progress_->exclusively([&] { messenger_.expect(peer_address.key); });
  return {*this, std::move(peer_address)};
}

StandingAddress Engine::make_standing_address() {
  PeerAddress peer_address = peers_.own_address();
  peer_address.key = random_number();
  progress_->exclusively([&] { messenger_.expect_series(peer_address.series()); });
  return {*this, std::move(peer_address)};
}

OwnAddress StandingAddress::in_instance(uint64_t number) const {
  PeerAddress own = address_.in_instance(number);
  engine_.exclusively([&] { engine_.messenger().expect(own.key); });
  return {engine_, std::move(own)};
}

StandingAddress::~StandingAddress() {
  if (engine_.is_forked()) return;
  engine_.exclusively([this] { engine_.messenger().retire_series(address_.series()); });
}

OwnAddress::~OwnAddress() {
  if (engine_.is_forked()) return;
  engine_.exclusively([this] { engine_.messenger().retire(address_.key); });
}

static Status unreachable(const GroupSpecification& group, size_t rank, const Status& why) {
  return {why.code(), "[rank " + std::to_string(group.rank) + " of group '" + group.name + "'] rank " +
                          std::to_string(rank) + " cannot be reached: " + why.message()};
}

std::vector<PeerAddress> Engine::connected_from_the_start(const std::vector<PeerAddress>& addresses,
                                                          const std::vector<int>& watched) const {
  std::vector<PeerAddress> connected;
  for (size_t rank = 0; rank < addresses.size(); ++rank) {
    const bool is_here = addresses[rank].host == peers_.own_address().host;
    if (is_here || std::ranges::binary_search(watched, static_cast<int>(rank))) connected.push_back(addresses[rank]);
  }
  return connected;
}

// From facts in the addresses alone, so that all ranks get the same.
static bool are_rails_faster(const transport::Transport& transport, const messaging::Team& team) noexcept {
  for (int rank = 0; rank < team.size(); ++rank) {
    const size_t num_sharing = team.topology.ranks_on(team.topology.host_of(rank)).size();
    if (num_sharing > transport.most_processes_with_rails(team.peers[static_cast<size_t>(rank)])) return false;
  }
  return true;
}

Result<std::unique_ptr<Communicator>> Engine::form(GroupSpecification specification) {
  return progress_->exclusively([&]() -> Result<std::unique_ptr<Communicator>> {
    AXON_TRY(check_open());
    if (!messenger_.expects(specification.addresses[static_cast<size_t>(specification.rank)].key)) {
      return Status(ErrorCode::kInvalidArgument, "the address given for rank " + std::to_string(specification.rank) +
                                                     ", this process, does not come from make_address()");
    }
    messaging::Team team{.rank = specification.rank, .peers = {}, .keys = {}};
    const std::vector<PeerAddress>& addresses = specification.addresses;
    const std::vector<int> watched = overlay::watched_by(team.rank, static_cast<int>(addresses.size()));
    if (Status room = peers_.check_room_for(connected_from_the_start(addresses, watched)); !room.ok()) {
      return Status(room.code(), "[rank " + std::to_string(specification.rank) + " of group '" + specification.name +
                                     "'] other ranks cannot be reached: " + room.message());
    }
    std::vector<uint64_t> hosts;
    for (const PeerAddress& peer_address : addresses) {
      Result<transport::PeerId> peer = meet_unchecked(peer_address);
      if (!peer.ok()) return unreachable(specification, team.peers.size(), peer.status());
      team.peers.push_back(peer.value());
      team.keys.push_back(peer_address.key);
      team.shares_host.push_back(peers_.shares_host(peer.value()));
      hosts.push_back(peer_address.host);
    }
    for (const int other : watched) {
      const auto rank = static_cast<size_t>(other);
      if (Status begun = peers_.watch(team.peers[rank]); !begun.ok()) return unreachable(specification, rank, begun);
    }
    team.topology = messaging::Topology(hosts);
    team.has_rails = are_rails_faster(messenger_.transport(), team);
    auto group = std::make_shared<Group>(*this, std::move(specification.name), std::move(team));
    clients_.push_back(group.get());
    group->open();
    return std::make_unique<Communicator>(std::move(group));
  });
}

uint64_t Engine::num_refused() {
  return progress_->exclusively([this] { return messenger_.num_refused(); });
}

// A table of this size takes 8 KiB.
static constexpr size_t kMostReserved = 1024;

// The program may ask for room before it knows that the engine has ended.
Status Engine::check_room_for_group(size_t num_ranks) {
  size_t num_wanted = 0;
  Status room = progress_->exclusively([&] {
    AXON_TRY(check_open());
    const size_t num_known = peers_.num_known();  // most likely they are in this group, too; form() checks again
    const size_t num_connected = std::min<size_t>(num_ranks, messaging::Team::kMostFullyConnected);
    const size_t num_new = num_connected > num_known ? num_connected - num_known : 0;
    if (num_new != 0) num_wanted = peers_.num_descriptors_for(num_new) + std::min(num_ranks, kMostReserved);
    return peers_.check_room(num_new);
  });
  // Here, rather than in the group's first operation, and without the token. All ranks may be on this host, where each
  // has a pidfd.
  if (room.ok() && num_wanted != 0) reserve_descriptors(num_wanted);
  return room;
}

Result<transport::PeerId> Engine::meet(const PeerAddress& peer_address) {
  AXON_TRY(peers_.check_room_for({&peer_address, 1}));
  Result<transport::PeerId> met = meet_unchecked(peer_address);
  if (met.ok()) AXON_TRY(peers_.watch(met.value()));
  return met;
}

Status Engine::watch_peer(transport::PeerId peer) noexcept {
  Status watched = peers_.watch(peer);
  if (watched.ok() || watched.code() == ErrorCode::kResourceExhausted) return watched;
  lose(peer, "no connection to it can be opened: " + watched.message());
  return Status();
}

// Messages to this process must not leave it.
Result<transport::PeerId> Engine::meet_unchecked(const PeerAddress& peer_address) {
  const PeerAddress& own = peers_.own_address();
  if (peer_address.process == own.process &&
      (peer_address.pid != own.pid || peer_address.transport_address != own.transport_address)) {
    return Status(ErrorCode::kUnauthenticated, "a peer claims to be this process, at another address");
  }
  if (const auto known = peers_.find(peer_address.process)) return *known;
  Result<transport::PeerId> added = peers_.add(peer_address);
  if (added.ok() && peers_.is_neighbour(added.value())) watch(added.value());
  return added;
}

void Engine::watch(transport::PeerId peer) {
  if (peers_.outnumber_cores()) progress_->set_oversubscribed();
  if (Status watched = doorbell_.watch(peers_.pid_of(peer), peer); !watched.ok()) lose(peer, watched.message());
}

Status Engine::check_open() const {
  return shut_down_ ? Status(ErrorCode::kAborted, "torch_axon has been shut down in this process") : Status();
}

Status Engine::enter(Client& client) {
  return progress_->exclusively([&]() -> Status {
    AXON_TRY(check_open());
    clients_.push_back(&client);
    return Status();
  });
}

// Items that were submitted earlier begin earlier.
void Engine::submit(Submission& item) noexcept {
  const auto begin = [&] {
    begin_submitted();
    item.begin();
    run_ready();
  };
  if (progress_->pump(begin)) return;
  submitted_.push(item);
  progress_->pump();
}

// Reads a whole ring of small messages, 16 at a time, and what the network brings meanwhile.
static constexpr unsigned kMostRoundsToCatchUp = 512;
// A process that has run all along looks more often than this.
static constexpr std::chrono::milliseconds kMostRecent{20};

void Engine::catch_up() noexcept {
  progress_->exclusively([&] {
    for (unsigned round = 0; round < kMostRoundsToCatchUp && drive() != 0; ++round) {
    }
  });
  caught_up_at_.store(coarse_now(), std::memory_order_relaxed);
}

bool Engine::has_events_since(std::chrono::milliseconds then) const noexcept {
  return coarse_now() - std::max(then, caught_up_at_.load(std::memory_order_relaxed)) > kMostRecent;
}

static thread_local bool completes = false;

void Engine::submit_after_completion(Submission& item) noexcept {
  if (!completes) return submit(item);
  submitted_.push(item);
}

bool Engine::is_completing() noexcept {
  return completes;
}

namespace {

class Refusal final : public Submission {
 public:
  Refusal(const std::unique_ptr<transport::Transport>& transport, void* rendezvous) noexcept
      : transport_(transport), rendezvous_(rendezvous) {}
  [[gnu::cold]] void begin() noexcept override {  // so that begin_submitted() does not expect it
    if (transport_) transport_->refuse(rendezvous_, Status());
    delete this;
  }
  void complete() noexcept override {}

 private:
  const std::unique_ptr<transport::Transport>& transport_;
  void* const rendezvous_;
};

}  // namespace

void Engine::refuse_later(void* rendezvous) noexcept {
  if (is_forked()) return;
  submitted_.push(*new Refusal(transport_, rendezvous));
  wake();
}

void Engine::submit_to_drivers(Submission& item) noexcept {
  submitted_.push(item);
  progress_->wake_all();
}

size_t Engine::begin_submitted() noexcept {
  size_t num_begun = 0;
  for (QueueNode* item = submitted_.take_all(); item != nullptr; ++num_begun) {
    static_cast<Submission&>(*std::exchange(item, item->next)).begin();
  }
  return num_begun;
}

void Engine::wait_for_flag(FlagWaiter& item, const std::atomic<uint32_t>& flag, uint32_t awaited) noexcept {
  if (!transport_) return item.on_flag_set();
  flag_waiters_.add(item, flag, awaited);
  progress_->wake_to_look();
}

void Engine::wait_for_any_flag(FlagWaiter& item, std::span<const std::atomic<uint32_t>> flags,
                               uint32_t awaited) noexcept {
  if (!transport_) return item.on_flag_set();
  flag_waiters_.add(item, flags, awaited);
  progress_->wake_to_look();
}

unsigned Engine::drive() noexcept {
  const size_t num_begun = begin_submitted() + flag_waiters_.run_set();
  if (num_begun != 0) run_ready();  // before messages arrive for what failed at once: peers must get the reason first
  if (shut_down_) return 0;         // all clients are closed, so nothing runs
  unsigned num_moved = messenger_.progress() + static_cast<unsigned>(num_begun);
  if (QueueNode* item = unfinished_.pop()) [[unlikely]] {
    static_cast<Submission&>(*item).begin();
    ++num_moved;
  }
  finish_ended();
  return num_moved;
}

void Engine::settle() noexcept {
  begin_submitted();
  flag_waiters_.run_set();
  run_ready();
}

void Engine::run_ready() noexcept {
  messenger_.run_ready();
  finish_ended();
}

void Engine::finish_ended() noexcept {
  while (QueueNode* item = ended_.pop()) {
    static_cast<Submission&>(*item).finish();
    messenger_.run_ready();  // a failure may have ended others
  }
}

void Engine::complete(QueueNode* chain) noexcept {
  const bool is_within_another = std::exchange(completes, true);
  while (chain != nullptr) static_cast<Submission&>(*std::exchange(chain, chain->next)).complete();
  completes = is_within_another;
}

bool Engine::has_running() const noexcept {
  return std::ranges::any_of(clients_, &Client::has_running);
}

void Engine::tick(sync::Clock::time_point now) noexcept {
  if (now < next_tick_ || shut_down_) return;
  next_tick_ = now + kTickInterval;
  for (size_t i = 0; i < clients_.size();) {
    if (clients_[i]->tick(now)) {
      ++i;
    } else {  // it may be freed
      clients_.erase(clients_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }
  replays_.tick(now);
  run_ready();
}

void Engine::on_peer_lost(transport::PeerId peer, Status reason) noexcept {
  lose(peer, reason.message());
}

void Engine::on_process_ended(transport::PeerId peer) noexcept {
  if (shut_down_) return;
  const sync::Clock::time_point began = sync::Clock::now();
  while (drive() != 0 && sync::Clock::now() < began + (transport_->has_unread(peer) ? kUnreadDrainTime : kDrainTime)) {
  }
  lose(peer, "its process (pid " + std::to_string(peers_.pid_of(peer)) + ") has ended");
  run_ready();
}

void Engine::lose(transport::PeerId peer, std::string reason) noexcept {
  if (messenger_.is_lost(peer)) return;
  messenger_.mark_lost(peer, std::move(reason));
  peers_.note_loss(peer);
  if (peers_.is_neighbour(peer) && !peers_.outnumber_cores()) progress_->clear_oversubscribed();
  for (Client* client : clients_) client->on_peer_lost(peer, messenger_.loss_of(peer));
}

Status Engine::forked() {
  return {ErrorCode::kAborted,
          "this process was forked from one that uses torch_axon, whose connections it must not touch: start it with "
          "the 'spawn' or 'forkserver' method of multiprocessing if it is to communicate, or fork it while its parent "
          "has no process group and no runtime"};
}

void Engine::shut_down() noexcept {
  if (is_forked()) return;
  const bool first = progress_->exclusively([&] {
    if (shut_down_) return false;
    for (Client* client : clients_) client->on_shut_down();
    replays_.shut_down();
    while (QueueNode* item = unfinished_.pop()) static_cast<Submission&>(*item).begin();  // finds that it has failed
    settle();
    shut_down_ = true;
    return true;
  });
  if (!first) return;
  progress_->stop();
  progress_->exclusively([&] {
    transport_->flush(kFlushTimeoutMs);
    messenger_.discard_early();
    if (const uint64_t refused = messenger_.num_refused(); refused != 0) {
      log::info("refused messages (repeated, or not from a member of a group): " + std::to_string(refused));
    }
    transport_.reset();
    peers_.hide();
    if (status_page_ != nullptr) status_page_->hide();
    flag_waiters_.run_all();
    for (Client* client : std::exchange(clients_, {})) client->on_transport_gone();
  });
  doorbell_.close();
  has_ended_.store(true, std::memory_order_release);
}

bool Engine::is_used() noexcept {
  return progress_->exclusively([this] {
    settle();
    return !std::ranges::all_of(clients_, &Client::is_closed);
  });
}

}  // namespace axon::engine
