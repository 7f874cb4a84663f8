#include "transport/rails/rail_transport.hpp"

#include <sys/epoll.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/log.hpp"
#include "base/random.hpp"
#include "base/resources.hpp"
#include "base/tcp_socket.hpp"
#include "transport/flush_layer.hpp"
#include "transport/rails/rail_count.hpp"
#include "transport/rails/rail_messages.hpp"

namespace axon::transport {

static constexpr std::chrono::seconds kRetryInterval{5};
static constexpr std::chrono::seconds kMeasuringInterval{1};
static constexpr std::chrono::seconds kRescueTime{2};
static constexpr std::chrono::milliseconds kRescueInterval{50};
// After rails have worked for this long, kRescueTime begins anew when they break. A peer that only accepts them is
// lost.
static constexpr std::chrono::seconds kLeastWorking{1};

RailTransport::Peer::Peer() noexcept {
  done = [](Completion& self, Status status) noexcept {
    auto& peer = static_cast<Peer&>(self);
    if (!status.ok()) peer.owner->distrust(peer, "an answer could not be sent to it: " + status.message());
  };
}

std::unique_ptr<Transport> with_rails(std::unique_ptr<Transport> network, const RailOptions& options) {
  return std::make_unique<RailTransport>(std::move(network), options);
}

// With fewer cores, the threads of rails take turns with the progress owner, which saves no time. A user who sets the
// number of rails knows better.
static uint16_t most_processes_of(const RailOptions& options, size_t num_cores) noexcept {
  static constexpr size_t kAny = UINT16_MAX;
  const size_t by_cores = num_cores / kCoresPerRail;
  return static_cast<uint16_t>(options.num_rails ? kAny : std::min(by_cores, kAny));
}

// ---- Opening and closing

RailTransport::RailTransport(std::unique_ptr<Transport> network, const RailOptions& options)
    : options_(options),
      name_(options.port != nullptr ? options.port->address().name : random_number()),
      num_cores_(num_cores()),
      are_paced_(congestion_control_of(open_tcp_socket(AF_INET)) == "bbr"),
      network_(std::move(network)) {
  Status opened = options.num_rails == size_t{0} ? Status() : open_threads();
  why_none_ = options.num_rails == size_t{0} ? options.why_none : describe_few_descriptors();
  if (!opened.ok()) go_without_threads(opened);
  RailAddress rails{.name = name_, .token = {}, .port = 0, .takes_turns = false, .most_processes = 0, .addresses = {}};
  if (threads_ != nullptr) {
    rails = threads_->address();
    rails.most_processes = most_processes_of(options, num_cores_);
  }
  const std::vector<std::byte> own = rails.encode();
  const auto below = network_->address();
  const auto num_bytes = static_cast<uint32_t>(own.size());
  const auto length = std::as_bytes(std::span(&num_bytes, 1));
  address_.assign(below.begin(), below.end());
  address_.insert(address_.end(), own.begin(), own.end());
  address_.insert(address_.end(), length.begin(), length.end());
  network_->set_receiver(*this);
}

static bool has_descriptors_for_rails() noexcept {
  return num_free_descriptors().value_or(SIZE_MAX) > RailHandshakes::kDescriptorsLeftAlone;
}

Status RailTransport::open_threads() {
  if (!has_descriptors_for_rails()) return Status();
  auto threads =
      RailThreads::open(options_.num_rails.value_or(num_rails_for(num_cores_, 1, are_paced_)), options_, name_);
  if (!threads.ok()) return std::move(threads.status());
  threads_ = std::move(threads).value();
  Status watched = watch_events();
  if (!watched.ok()) threads_.reset();
  return watched;
}

Status RailTransport::watch_events() {
  FileDescriptor wakeups(epoll_create1(EPOLL_CLOEXEC));
  if (!wakeups.valid()) return out_of("epoll_create1", errno);
  for (const int descriptor : {threads_->events().event().get(), network_->event_fd()}) {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = 0}};
    if (epoll_ctl(wakeups.get(), EPOLL_CTL_ADD, descriptor, &event) != 0) return out_of("epoll_ctl", errno);
  }
  wakeups_ = std::move(wakeups);
  return Status();
}

void RailTransport::go_without_threads(const Status& why) {
  why_none_ = why.message();
  log::warn("long messages between hosts take one TCP connection: " + why_none_);
}

void RailTransport::start_threads() noexcept {
  if (threads_ == nullptr || are_started_ || !has_descriptors_for_rails()) return;
  are_started_ = true;
  if (Status started = threads_->start(); !started.ok()) {
    threads_.reset();
    go_without_threads(started);
  }
}

// The threads end before anything that they use. The network refers to the objects that are released after it.
RailTransport::~RailTransport() {
  threads_.reset();
  network_.reset();
  while (Incoming* message = held_.front()) release(*message);
  while (Nack* nack = nacks_.front()) release(*nack);
  for (Peer& peer : peers_) {
    for (IntrusiveList<Outgoing>* list : {&peer.outgoing, &peer.leaving}) {
      while (Outgoing* message = list->front()) (void)release(*message);
    }
    while (Incoming* message = peer.fetched.front()) release(*message);
  }
}

// ---- Peers

Result<PeerId> RailTransport::add_peer(std::span<const std::byte> address, bool same_host) {
  uint32_t num_bytes = 0;
  if (address.size() >= sizeof num_bytes)
    std::memcpy(&num_bytes, address.last(sizeof num_bytes).data(), sizeof num_bytes);
  if (address.size() < sizeof num_bytes || address.size() - sizeof num_bytes < num_bytes) {
    return Status(ErrorCode::kInvalidArgument, "not a transport address: " + std::to_string(address.size()) +
                                                   " bytes, too few for that of its rails");
  }
  address = address.first(address.size() - sizeof num_bytes);
  Result<RailAddress> rails = RailAddress::decode(address.last(num_bytes));
  if (!rails.ok()) return std::move(rails.status());
  Result<PeerId> added = network_->add_peer(address.first(address.size() - num_bytes), same_host);
  if (!added.ok()) return added;
  while (peers_.size() <= added.value()) peers_.emplace_back();
  Peer& peer = peers_[added.value()];
  peer.owner = this;
  peer.id = added.value();
  peer.name = rails.value().name;
  if (!same_host && !rails.value().takes_turns) subnets_.order_by_nearness(rails.value().addresses);
  peer.address = std::make_shared<const RailAddress>(std::move(rails).value());
  const bool is_for_all = options_.use == RailOptions::Use::kToAll;
  peer.is_neighbour = same_host && peer.name != name_;
  if (peer.is_neighbour) ++num_neighbours_;
  if (!same_host || is_for_all) start_threads();
  if (has_rails()) threads_->admit(peer.name);
  if (!has_rails() || peer.address->port == 0 || (same_host && !is_for_all)) {
    peer.may_take_rails = false;
  } else if (is_for_all) {
    peer.may_take_rails = true;
  }
  return added;
}

std::optional<PeerId> RailTransport::peer_named(uint64_t name) const noexcept {
  const auto found = std::ranges::find_if(peers_, [&](const Peer& peer) { return peer.name == name && !peer.is_gone; });
  if (found == peers_.end()) return std::nullopt;
  return static_cast<PeerId>(found - peers_.begin());
}

bool RailTransport::takes_rails(PeerId id, ConstBuffer payload) noexcept {
  if (payload.num_bytes <= kLongestWhole || payload.kind != MemoryKind::kHost) return false;
  Peer& peer = peers_[id];
  if (peer.is_gone) return false;
  if (!peer.may_take_rails) {
    auto lanes = network_->lanes(id);
    if (!lanes.ok()) return false;  // the network reports the failure
    const auto is_tcp = [](const Lane& lane) { return lane.name == "tcp"; };
    peer.may_take_rails = !lanes.value().empty() && std::ranges::all_of(lanes.value(), is_tcp);
  }
  if (!*peer.may_take_rails) return false;
  connect_if_due(peer);
  return peer.open.any() && should_take_rails(peer);
}

bool RailTransport::needs_no_rails(const Peer& peer) const noexcept {
  return !options_.num_rails && !are_paced_ && !has_cores_for_rails(num_cores_, 1 + num_neighbours_) &&
         (peer.open & peer.are_fast).any();
}

// The link is measured again now and then.
bool RailTransport::should_take_rails(Peer& peer) noexcept {
  if (!needs_no_rails(peer)) return true;
  const Clock::time_point now = Clock::now();
  if (now < peer.next_measurement) return false;
  peer.next_measurement = now + kMeasuringInterval;
  return true;
}

size_t RailTransport::num_rails_of_a_peer() const noexcept {
  if (options_.num_rails) return threads_->num_rails();
  return std::min(num_rails_for(num_cores_, 1 + num_neighbours_, are_paced_), threads_->num_rails());
}

// Connects the rails that are missing, after a while if they were tried before.
void RailTransport::connect_if_due(Peer& peer) noexcept {
  if ((peer.open | peer.connecting).count() >= num_rails_of_a_peer()) return;
  const Clock::time_point now = Clock::now();
  if (now < peer.next_try) return;
  peer.next_try = now + kRetryInterval;
  connect(peer, now, Clock::time_point::max());
}

void RailTransport::connect(Peer& peer, Clock::time_point not_before, Clock::time_point deadline) noexcept {
  const auto used = peer.open | peer.connecting;
  for (size_t rail = 0; rail < num_rails_of_a_peer(); ++rail) {
    if (used[rail]) continue;
    peer.connecting.set(rail);
    threads_->connect(
        {.peer = peer.id, .rail = rail, .address = peer.address, .not_before = not_before, .deadline = deadline});
  }
}

// The caller may free the memory of transfers with this peer when this returns.
void RailTransport::drop_peer(PeerId id) noexcept {
  network_->drop_peer(id);
  withdraw_memory_of(peers_[id]);
  part_with(peers_[id], peer_gone(), /*is_news=*/false);
}

void RailTransport::withdraw_memory_of(Peer& peer) noexcept {
  if (!has_rails()) return;
  threads_->drop(peer.id, peer.name);
  for (Outgoing* message = peer.outgoing.front(); message != nullptr; message = peer.outgoing.next(*message)) {
    threads_->outgoing().remove(message->number, OutgoingStripes::Why::kGivenUp);
  }
  for (Incoming* message = peer.fetched.front(); message != nullptr; message = peer.fetched.next(*message)) {
    threads_->incoming().cancel(message->ticket);
  }
}

// A message of which something cannot be sent never ends, at either end. The connection is therefore ended at both.
void RailTransport::distrust(Peer& peer, std::string why) noexcept {
  part_with(peer, Status(ErrorCode::kPeerLost, std::move(why)), /*is_news=*/true);
}

// Returns whether the peer was not gone yet.
bool RailTransport::mark_gone(Peer& peer) noexcept {
  if (std::exchange(peer.is_gone, true)) return false;
  if (peer.is_neighbour) --num_neighbours_;
  return true;
}

// Transfers in progress end in the next progress(), which may call completions.
void RailTransport::part_with(Peer& peer, Status why, bool is_news) noexcept {
  if (!mark_gone(peer)) return;
  partings_.push_back({.peer = peer.id, .why = std::move(why), .is_news = is_news});
}

void RailTransport::on_peer_lost(PeerId id, Status reason) noexcept {
  Peer& peer = peers_[id];
  mark_gone(peer);
  std::erase_if(partings_, [&](const Parting& parting) { return parting.peer == id; });
  withdraw_memory_of(peer);
  receiver_->on_peer_lost(id, reason.clone());
  end_all_with(peers_[id], reason);
}

void RailTransport::end_all_with(Peer& peer, const Status& why) noexcept {
  withdraw_memory_of(peer);
  while (Outgoing* message = peer.outgoing.front()) conclude(*message, why.clone());
  while (Incoming* message = peer.fetched.front()) {
    Completion& completion = *message->completion;
    release(*message);
    completion.done(completion, why.clone());
  }
}

// ---- What the threads report

unsigned RailTransport::handle_events() noexcept {
  if (threads_ == nullptr || !threads_->events().any()) return 0;
  std::vector<RailEvent> events = threads_->events().take();
  for (RailEvent& event : events) handle(event);
  return static_cast<unsigned>(events.size());
}

void RailTransport::handle(RailEvent& event) noexcept {
  switch (event.kind) {
    case RailEvent::Kind::kArrived:
      return on_arrived(event.ticket);
    case RailEvent::Kind::kConnected:
      peers_[event.peer].routes[event.rail] = std::move(event.route);
      return;
    case RailEvent::Kind::kOpened:
      return on_opened(peers_[event.peer], event.rail);
    case RailEvent::Kind::kIsFast:
    case RailEvent::Kind::kIsSlow:
      peers_[event.peer].are_fast[event.rail] = event.kind == RailEvent::Kind::kIsFast;
      return;
    case RailEvent::Kind::kNotOpened:
      return on_not_opened(peers_[event.peer], event.rail, event.why);
    case RailEvent::Kind::kBroken:
      return on_broken(peers_[event.peer], event.rail, event.why);
    case RailEvent::Kind::kRefused:
      return receiver_->on_refused(event.why.message().c_str());
  }
}

void RailTransport::on_opened(Peer& peer, size_t rail) noexcept {
  peer.connecting.reset(rail);
  if (peer.open.none()) peer.opened_at = Clock::now();
  peer.open.set(rail);
  peer.are_fast.reset(rail);                                              // not known
  peer.is_gone ? threads_->drop_own(peer.id) : threads_->send_waiting();  // the process may be another peer by now
}

// The first failure is worth a warning: long messages are slower from now on.
void RailTransport::on_not_opened(Peer& peer, size_t rail, const Status& why) noexcept {
  peer.connecting.reset(rail);
  if (peer.is_gone) return;
  peer.failure = why.message();
  if (!std::exchange(peer.has_warned, true))
    log::warn("a rail cannot be opened, which slows long messages: " + why.message());
  rescue_messages_of(peer, why);
}

// The stripes of the broken rail are sent over the others.
void RailTransport::on_broken(Peer& peer, size_t rail, const Status& why) noexcept {
  peer.open.reset(rail);
  peer.next_try = {};
  if (peer.is_gone) return;
  peer.failure = why.message();
  log::info("a rail broke: " + why.message());
  if (peer.open.none() && Clock::now() > peer.opened_at + kLeastWorking) peer.stranded_at.reset();
  threads_->outgoing().take_back(peer.id, rail);
  threads_->send_waiting();
  rescue_messages_of(peer, why);
}

// The ACK of a peer that has just ended regularly may arrive after the news of its rails. And what has broken the rails
// may pass, as when a firewall forgets connections. So rails are opened anew for a while before the peer is given up.
void RailTransport::rescue_messages_of(Peer& peer, const Status& why) noexcept {
  if (peer.open.any() || peer.connecting.any() || peer.outgoing.empty()) return;
  const Clock::time_point now = Clock::now();
  if (!peer.stranded_at) peer.stranded_at = now;
  const Clock::time_point deadline = *peer.stranded_at + kRescueTime;
  if (now < deadline) return connect(peer, now + kRescueInterval, deadline);
  distrust(peer, "all rails to it broke, and no new one can be opened: " + why.message());
}

// ---- Both

unsigned RailTransport::progress() noexcept {
  for (Parting& parting : std::exchange(partings_, {})) {
    if (parting.is_news) {
      network_->drop_peer(parting.peer);
      receiver_->on_peer_lost(parting.peer, parting.why.clone());
    }
    end_all_with(peers_[parting.peer], parting.why);
  }
  return handle_events() + network_->progress();
}

bool RailTransport::arm() noexcept {
  if (!partings_.empty()) return false;
  return (threads_ == nullptr || threads_->events().arm()) && network_->arm();
}

void RailTransport::flush(int timeout_ms) noexcept {
  const auto has_sent = [](const Peer& peer) {
    return peer.is_gone || (peer.outgoing.empty() && peer.leaving.empty());
  };
  flush_layer(*this, *network_, timeout_ms, [&] { return std::ranges::all_of(peers_, has_sent); });
}

}  // namespace axon::transport
