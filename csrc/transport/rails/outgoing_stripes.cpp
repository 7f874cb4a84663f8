#include "transport/rails/outgoing_stripes.hpp"

#include <algorithm>

#include "base/condition.hpp"
#include "transport/rails/stripe.hpp"

namespace axon::transport {

void OutgoingStripes::add(uint64_t number, const Message& message) {
  const size_t num_stripes = num_stripes_of(message.payload.num_bytes, message.stripe_num_bytes);
  const std::lock_guard lock(mutex_);
  Pending& pending = pending_[number];
  pending.message = message;
  pending.rails.assign(num_stripes, kUnassigned);
  has_unassigned_[message.peer].push_back(number);
}

void OutgoingStripes::remove(uint64_t number, Why why) noexcept {
  std::unique_lock lock(mutex_);
  const auto found = pending_.find(number);
  if (found == pending_.end() || found->second.removed) return;
  Pending& pending = found->second;
  pending.removed = why;
  std::erase(has_unassigned_[pending.message.peer], number);
  pending.is_awaited = true;
  await(unused_, lock, [&] { return pending.num_readers == 0; });
  pending.is_awaited = false;
  if (why == Why::kGivenUp || pending.num_sending == 0) pending_.erase(number);
}

std::optional<OutgoingStripes::Stripe> OutgoingStripes::take(PeerId peer, size_t rail) noexcept {
  const std::lock_guard lock(mutex_);
  const auto queue = has_unassigned_.find(peer);
  if (queue == has_unassigned_.end() || queue->second.empty()) return std::nullopt;
  const uint64_t number = queue->second.front();
  queue->second.pop_front();
  Pending& pending = pending_.at(number);
  const Message& message = pending.message;
  const size_t index = pending.next;
  pending.rails[index] = static_cast<uint8_t>(rail);
  ++pending.num_sending;
  const auto following =
      std::find(pending.rails.begin() + static_cast<ptrdiff_t>(index), pending.rails.end(), kUnassigned);
  pending.next = static_cast<size_t>(following - pending.rails.begin());
  if (following != pending.rails.end()) queue->second.push_back(number);
  const size_t offset = index * message.stripe_num_bytes;
  return Stripe{.number = number,
                .ticket = message.ticket,
                .offset = offset,
                .num_bytes = std::min(message.stripe_num_bytes, message.payload.num_bytes - offset),
                .dtype = message.dtype};
}

StripePayload OutgoingStripes::open(const Stripe& stripe, size_t num_sent) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = pending_.find(stripe.number);
  if (found == pending_.end()) return StripePayload(StripePayload::State::kGone);
  Pending& pending = found->second;
  if (pending.removed) {
    return StripePayload(*pending.removed == Why::kAcknowledged ? StripePayload::State::kNotNeeded
                                                                : StripePayload::State::kGone);
  }
  ++pending.num_readers;
  return {*this, stripe.number, pending.message.payload.data + stripe.offset + num_sent};
}

void OutgoingStripes::finish(const Stripe& stripe) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = pending_.find(stripe.number);
  if (found == pending_.end()) return;
  Pending& pending = found->second;
  --pending.num_sending;
  if (pending.removed && !pending.is_awaited && pending.num_sending == 0) pending_.erase(found);
}

void OutgoingStripes::close(uint64_t number) noexcept {
  const std::lock_guard lock(mutex_);
  Pending& pending = pending_.at(number);
  if (--pending.num_readers == 0 && pending.is_awaited) unused_.notify_all();
}

void OutgoingStripes::take_back(PeerId peer, size_t rail) noexcept {
  const std::lock_guard lock(mutex_);
  std::deque<uint64_t>& queue = has_unassigned_[peer];
  for (auto& [number, pending] : pending_) {
    if (pending.message.peer != peer || pending.removed) continue;
    const bool is_queued = pending.next != pending.rails.size();
    std::ranges::replace(pending.rails, static_cast<uint8_t>(rail), kUnassigned);
    pending.next = static_cast<size_t>(std::ranges::find(pending.rails, kUnassigned) - pending.rails.begin());
    if (!is_queued && pending.next != pending.rails.size()) queue.push_back(number);
  }
}

}  // namespace axon::transport
