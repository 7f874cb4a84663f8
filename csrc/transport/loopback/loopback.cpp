#include "transport/loopback/loopback.hpp"

#include <algorithm>
#include <utility>

#include "transport/loopback/loopback_transport.hpp"

namespace axon::transport {

LoopbackFabric::LoopbackFabric(FaultPlan plan) : plan_(std::move(plan)) {}

LoopbackFabric::~LoopbackFabric() = default;

std::unique_ptr<Transport> LoopbackFabric::make_transport() {
  const std::lock_guard lock(mutex_);
  const auto process = static_cast<uint32_t>(mailboxes_.size());
  return std::make_unique<LoopbackTransport>(*this, mailboxes_.emplace_back(plan_.seed, process), process);
}

void LoopbackFabric::kill(uint32_t process) {
  const std::lock_guard lock(mutex_);
  kill_held(process);
}

void LoopbackFabric::kill_held(uint32_t process) {
  Mailbox& victim = mailboxes_[process];
  if (std::exchange(victim.dead, true)) return;
  for (const WaitingSend* lost : victim.waiting_sends()) --mailboxes_[lost->source].num_unfetched;
  victim.clear();
  for (Mailbox& survivor : mailboxes_) {
    if (survivor.connected.contains(process)) tell_loss(survivor, process);
  }
}

void LoopbackFabric::tell_loss(Mailbox& survivor, uint32_t process) {
  survivor.put({.content = LostProcess{process}}, plan_);
}

void LoopbackFabric::wedge(uint32_t process) {
  const std::lock_guard lock(mutex_);
  mailboxes_[process].wedged = true;
}

bool LoopbackFabric::is_dead(uint32_t process) const {
  const std::lock_guard lock(mutex_);
  return mailboxes_[process].dead;
}

uint64_t LoopbackFabric::num_steps(uint32_t process) const {
  const std::lock_guard lock(mutex_);
  return mailboxes_[process].num_steps;
}

size_t LoopbackFabric::num_connections(uint32_t process) const {
  const std::lock_guard lock(mutex_);
  return mailboxes_[process].connected.size();
}

uint64_t LoopbackFabric::num_fetches() const {
  const std::lock_guard lock(mutex_);
  return num_fetches_;
}

uint64_t LoopbackFabric::num_sends() const {
  const std::lock_guard lock(mutex_);
  return num_sends_;
}

}  // namespace axon::transport
