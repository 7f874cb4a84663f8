#include "transport/sockets/socket_links.hpp"

#include <algorithm>
#include <utility>

namespace axon::transport {

SocketLinks::SocketLinks(uint64_t own_name) : own_name_(own_name) {
  gone_for({ErrorCode::kPeerLost, "its process is gone, or has been given up"});
}

SocketLink& SocketLinks::gone_for(const Status& loss) {
  const auto known = std::ranges::find_if(gone_, [&](const SocketLink& link) {
    return link.loss.code() == loss.code() && link.loss.message() == loss.message();
  });
  if (known != gone_.end()) return *known;
  if (gone_.size() == kMostReasons) return gone_.front();
  SocketLink& link = gone_.emplace_back(0, SocketLink::To::kOther);
  link.loss = loss.clone();
  return link;
}

SocketLink* SocketLinks::find(uint64_t name) const noexcept {
  const auto known = link_of_.find(name);
  return known != link_of_.end() ? known->second : nullptr;
}

SocketLink& SocketLinks::make(uint64_t name) {
  SocketLink& link = links_.emplace_back(name, name == own_name_ ? SocketLink::To::kSelf : SocketLink::To::kOther);
  const SocketLink* const former = find(name);
  link.was_connected = connected_.contains(name) || (former != nullptr && former->was_connected);
  link_of_[name] = &link;
  return link;
}

PeerId SocketLinks::number(SocketLink& link) {
  const auto id = static_cast<PeerId>(peers_.size());
  link.peer = id;
  peers_.push_back(&link);
  return id;
}

void SocketLinks::free_lost() noexcept {
  if (!std::exchange(may_free_, false)) [[likely]]
    return;
  links_.remove_if([this](SocketLink& link) {
    if (link.loss.ok() || link.has_messages()) return false;
    forget(link);
    return true;
  });
}

void SocketLinks::forget(SocketLink& link) noexcept {
  if (link.linked()) link.unlink();
  if (link.peer) peers_[*link.peer] = &gone_for(link.loss);
  const auto latest = link_of_.find(link.name);
  if (latest != link_of_.end() && latest->second == &link) link_of_.erase(latest);
  (link.was_connected ? connected_ : unconnected_).insert(link.name);
}

bool SocketLinks::was_lost_unconnected(uint64_t name) {
  if (SocketLink* const known = find(name)) return !known->loss.ok() && !std::exchange(known->was_connected, true);
  if (connected_.contains(name) || !unconnected_.contains(name)) return false;
  unconnected_.erase(name);
  connected_.insert(name);
  return true;
}

}  // namespace axon::transport
