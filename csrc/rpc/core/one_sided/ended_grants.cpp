#include "rpc/core/one_sided/ended_grants.hpp"

#include <utility>

namespace axon::rpc {

using transport::MessageKind;

void EndedGrants::add(Ended ended) {
  if (ended.grants.empty()) return;
  Waiting& waiting = waiting_.emplace_back(*this, std::move(ended));
  engine_.messenger().attach(waiting.ended().key, waiting);
}

void EndedGrants::on_peer_lost(transport::PeerId peer) noexcept {
  for (auto each = waiting_.begin(); each != waiting_.end();) {
    const Waiting& waiting = *each++;
    if (waiting.ended().peer == peer) forget(waiting);
  }
}

void EndedGrants::forget(const Waiting& waiting) noexcept {
  engine_.messenger().detach(waiting.ended().key);
  waiting_.remove_if([&](const Waiting& each) { return &each == &waiting; });
}

void EndedGrants::Waiting::release(Grants::const_iterator grant) noexcept {
  const std::shared_ptr<Region> region = grant->second;
  ended_.grants.erase(grant);
  all_.regions_.remove_reader(*region, ended_.peer, ended_.name);
}

// A peer that closes the connection itself uses nothing any more.
void EndedGrants::Waiting::on_message(const transport::CallHeader& header, const transport::Payload& payload) noexcept {
  messaging::drop_payload(all_.engine_.messenger(), payload);
  if (header.kind != MessageKind::kClose) return;
  while (!ended_.grants.empty()) release(ended_.grants.cbegin());
  all_.forget(*this);
}

void EndedGrants::Waiting::on_message(const transport::OneSidedHeader& header,
                                      const transport::Payload& payload) noexcept {
  messaging::drop_payload(all_.engine_.messenger(), payload);
  if (header.kind != MessageKind::kRevoked && header.kind != MessageKind::kRelease) return;
  const auto grant = ended_.grants.find(header.grant);
  if (grant == ended_.grants.end()) return;
  release(grant);
  if (ended_.grants.empty()) all_.forget(*this);
}

}  // namespace axon::rpc
