#include "transport/sockets/socket_connector.hpp"

#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/resources.hpp"

namespace axon::transport {

static constexpr std::chrono::milliseconds kRetryInterval{100};
// For how long a port that ends every handshake is tried again: its process may have been stopped meanwhile.
static constexpr std::chrono::seconds kMostRefusals{10};

SocketConnector::SocketConnector(RailHandshakes& port, SocketLinks& links, SocketMessages& messages, SocketRails& rails,
                                 SocketOwner& owner)
    : port_(port), links_(links), messages_(messages), rails_(rails), owner_(owner) {
  port_.serve(RailUse::kMessages, this);
}

Status SocketConnector::open() {
  AXON_TRY(arrivals_.open());
  return rails_.wake_for(arrivals_.event());
}

// ---- Requests

Status SocketConnector::connect(SocketLink& link) noexcept {
  if (link.is_connecting) return Status();
  AXON_TRY(check_descriptors(kDescriptorsOfALink, "connect to it"));
  request_rail(link, {});
  return Status();
}

void SocketConnector::request_rail(SocketLink& link, Clock::time_point not_before) noexcept {
  link.is_connecting = true;
  link.is_to_connect = false;
  port_.connect({.peer = *link.peer, .rail = kMessageRail, .address = link.address, .not_before = not_before});
}

void SocketConnector::connect_later(SocketLink& link) noexcept {
  link.is_to_connect = true;
  rails_.start_timer();
}

bool SocketConnector::connect_due() noexcept {
  bool are_due_again = false;
  for (SocketLink& link : links_.all()) {
    const bool is_due = link.is_to_connect && link.loss.ok() && !link.is_connecting;
    if (!is_due) continue;
    const Status connected = connect(link);
    if (connected.ok()) continue;
    warn_of_shortage(link, connected);
    are_due_again = true;
  }
  return are_due_again;
}

void SocketConnector::cancel(const SocketLink& link) noexcept {
  if (link.peer) port_.cancel(RailUse::kMessages, *link.peer);
}

// ---- What the port's thread reports

void SocketConnector::on_connected(const RailRequest& request, FileDescriptor socket, const Digest& /*key*/) noexcept {
  arrivals_.push({.kind = RailArrival::Kind::kConnected, .request = request, .socket = std::move(socket), .why = {}});
}

void SocketConnector::on_not_connected(const RailRequest& request, Status why) noexcept {
  arrivals_.push({.kind = RailArrival::Kind::kNotConnected,
                  .request = request,
                  .socket = FileDescriptor(),
                  .why = std::move(why)});
}

void SocketConnector::on_accepted(uint64_t name, uint32_t /*rail*/, FileDescriptor socket,
                                  const Digest& /*key*/) noexcept {
  arrivals_.push(
      {.kind = RailArrival::Kind::kAccepted, .name = name, .request = {}, .socket = std::move(socket), .why = {}});
}

void SocketConnector::on_stranger(const char* what) noexcept {
  arrivals_.push({.kind = RailArrival::Kind::kStranger,
                  .request = {},
                  .socket = FileDescriptor(),
                  .why = Status(ErrorCode::kUnauthenticated, what)});
}

// ---- Arrivals

unsigned SocketConnector::handle_arrivals() noexcept {
  if (!arrivals_.any()) [[likely]]
    return 0;
  std::vector<RailArrival> arrivals = arrivals_.take();
  for (RailArrival& arrival : arrivals) handle(arrival);
  return static_cast<unsigned>(arrivals.size());
}

void SocketConnector::handle(RailArrival& arrival) noexcept {
  switch (arrival.kind) {
    case RailArrival::Kind::kConnected: {
      SocketLink& link = links_.of(arrival.request.peer);
      link.is_connecting = false;
      return rails_.add(link, std::move(arrival.socket), RailOpener::kThis);
    }
    case RailArrival::Kind::kAccepted:
      return accept(arrival);
    case RailArrival::Kind::kNotConnected:
      return go_on_without(links_.of(arrival.request.peer), arrival);
    case RailArrival::Kind::kStranger:
      return owner_.on_refused(arrival.why.message().c_str());
  }
}

// The other process may be added as a peer a moment later. A process that was lost may be back: it has lost this one,
// too, and each end begins anew. A process that this one lost before a rail ever connected them does not know that. It
// finds out when its first rail is closed.
void SocketConnector::accept(RailArrival& arrival) noexcept {
  SocketLink* const known = links_.find(arrival.name);
  if (known != nullptr && known->is_self) return owner_.on_refused("a rail for messages from this process itself");
  const bool is_live = known != nullptr && known->loss.ok();
  if (!is_live && links_.was_lost_unconnected(arrival.name)) return;
  const bool is_replaced = is_live && SocketRails::is_new_connection(*known);
  SocketLink& link = is_live && !is_replaced ? *known : links_.make(arrival.name);
  rails_.add(link, std::move(arrival.socket), RailOpener::kPeer);
  // A rail of this process that came much later would look like that of a new connection.
  if (link.is_connecting) port_.cancel(RailUse::kMessages, *link.peer, RailHandshakes::Which::kUnopened);
  // The new link is there by now: the receiver may add the process as a peer again, to tell it of the loss.
  if (is_replaced)
    owner_.lose(*known, {ErrorCode::kPeerLost, "its process has given up the connection, and has opened another one"});
}

// The peer is not lost: messages to it fail until there is room again.
void SocketConnector::await_resources(SocketLink& link, const Status& why) noexcept {
  messages_.end_queue_of(link, why);
  warn_of_shortage(link, why);
  if (link.is_watched) connect_later(link);
}

void SocketConnector::warn_of_shortage(SocketLink& link, const Status& why) {
  if (std::exchange(link.has_warned, true)) return;
  log::warn("a peer cannot be connected, so messages to it fail for now: " + why.message() +
            (link.is_watched ? "; this is tried again every second" : "; the next message tries it again"));
}

// A port that accepts connections and does not answer may be that of a stopped process, for which there is no deadline.
void SocketConnector::go_on_without(SocketLink& link, RailArrival& arrival) noexcept {
  link.is_connecting = false;
  if (!link.loss.ok() || !link.rails.empty()) return;
  const Clock::time_point now = Clock::now();
  if (arrival.why.code() == ErrorCode::kResourceExhausted) return await_resources(link, arrival.why);
  const bool is_silent = arrival.why.code() == ErrorCode::kTimeout;
  if (!is_silent && !link.refused_since) link.refused_since = now;
  if (is_silent) link.refused_since.reset();
  const bool is_worth_it = is_silent || now < *link.refused_since + kMostRefusals;
  if (arrival.request.was_accepted && is_worth_it) return request_rail(link, now + kRetryInterval);
  owner_.lose(link, {ErrorCode::kPeerLost, "no connection to it can be opened: " + arrival.why.message()});
}

}  // namespace axon::transport
