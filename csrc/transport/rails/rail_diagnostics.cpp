// What RailTransport tells of a peer's rails.
#include <algorithm>
#include <string>

#include "transport/rails/rail_count.hpp"
#include "transport/rails/rail_transport.hpp"

namespace axon::transport {

static std::string number_of(size_t number, const char* one, const char* several) {
  return std::to_string(number) + " " + (number == 1 ? one : several);
}

static std::string addresses_in(const RailAddress& address) {
  std::string text;
  for (const IpAddress& each : address.addresses) {
    text += (text.empty() ? "" : ", ") + text_of(each, address.port);
  }
  return text.empty() ? "no address" : text;
}

static bool is_tcp(const Lane& lane) noexcept {
  return lane.name == "tcp";
}

Result<std::vector<Lane>> RailTransport::lanes(PeerId id) {
  Result<std::vector<Lane>> lanes = network_->lanes(id);
  if (!lanes.ok()) return lanes;
  const Peer& peer = peers_[id];
  for (const auto& [rail, route] : peer.routes) {
    if (peer.open[rail]) lanes.value().push_back({.name = "rail", .device = route});
  }
  return lanes;
}

std::vector<std::string> RailTransport::obstacles(PeerId id) {
  if (!has_rails()) return {threads_ != nullptr ? describe_few_descriptors() : why_none_};
  const Peer& peer = peers_[id];
  if (peer.address->port == 0) return {"it accepts no rails"};
  const auto lanes = network_->lanes(id);
  if (!lanes.ok()) return {lanes.status().message()};
  const auto other = std::ranges::find_if_not(lanes.value(), is_tcp);
  if (options_.use == RailOptions::Use::kToOtherHosts && other != lanes.value().end()) {
    return {"UCX carries long messages, over " + other->name + " (" + other->device + ")"};
  }
  std::vector<std::string> found;
  if (peer.open.count() < num_rails_of_a_peer()) found.push_back(why_missing(peer));
  if (needs_no_rails(peer))
    found.push_back("its link is fast, and rails have no cores of their own, so one connection carries most messages");
  if (std::string why = why_so_few(); !why.empty()) found.push_back(std::move(why));
  return found;
}

std::string RailTransport::describe_few_descriptors() {
  return "no rails, because fewer than " + std::to_string(RailHandshakes::kDescriptorsLeftAlone) +
         " file descriptors were free in this process";
}

std::string RailTransport::why_missing(const Peer& peer) const {
  const size_t num_missing = num_rails_of_a_peer() - peer.open.count();
  const std::string missing = number_of(num_missing, "rail", "rails") + " to it ";
  if (!peer.failure.empty()) return missing + "cannot be opened: " + peer.failure;
  if (peer.connecting.any()) return missing + "got no answer yet from " + addresses_in(*peer.address);
  return missing + "will be opened for the next message above " + std::to_string(kLongestWhole >> 10) + " KiB";
}

// Returns an empty text if the number is at least the default for many cores.
std::string RailTransport::why_so_few() const {
  const size_t number = num_rails_of_a_peer();
  const size_t num_processes = 1 + num_neighbours_;
  if (options_.num_rails) {
    const bool is_raised = number >= num_rails_for(num_cores_, num_processes, are_paced_);
    return is_raised ? "" : "AXON_RAILS is " + std::to_string(number);
  }
  if (number >= kMostByDefault) return "";
  return number_of(number, "rail", "rails") + " for " + number_of(num_cores_, "core", "cores") + " and " +
         number_of(num_processes, "process", "processes") + " of this host";
}

}  // namespace axon::transport
