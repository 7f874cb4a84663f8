#include "transport/rails/incoming_stripes.hpp"

#include "base/condition.hpp"

namespace axon::transport {

void IncomingStripes::expect(uint64_t ticket, const Message& message) {
  const size_t num_stripes = num_stripes_of(message.into.num_bytes, message.stripe_num_bytes);
  const std::lock_guard lock(mutex_);
  Expected& expected = expected_[ticket];
  expected.message = message;
  expected.is_here.assign(num_stripes, false);
  expected.num_missing = num_stripes;
}

void IncomingStripes::cancel(uint64_t ticket) noexcept {
  std::unique_lock lock(mutex_);
  const auto found = expected_.find(ticket);
  if (found == expected_.end()) return;
  found->second.is_cancelled = true;
  await(unused_, lock, [&] { return found->second.num_writers == 0; });
  expected_.erase(found);
}

bool IncomingStripes::is_stripe_of(const Message& message, const StripeHeader& header) noexcept {
  const size_t total = message.into.num_bytes;
  if (header.offset >= total || header.offset % message.stripe_num_bytes != 0) return false;
  return header.num_bytes == std::min<uint64_t>(message.stripe_num_bytes, total - header.offset);
}

bool IncomingStripes::is_valid(uint64_t sender, const StripeHeader& header) const noexcept {
  if (header.num_bytes == 0 || header.num_bytes > kMostStripeBytes || !has_valid_length(header)) return false;
  const std::lock_guard lock(mutex_);
  const auto found = expected_.find(header.ticket);
  if (found == expected_.end()) return true;
  const Message& message = found->second.message;
  return message.sender == sender && is_stripe_of(message, header);
}

// A ticket of the same number may have been given to another message since the header was read.
StripeMemory IncomingStripes::open(uint64_t sender, const StripeHeader& header, size_t num_here) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = expected_.find(header.ticket);
  if (found == expected_.end()) return {};
  Expected& expected = found->second;
  const Message& message = expected.message;
  if (expected.is_cancelled || message.sender != sender || !is_stripe_of(message, header)) return {};
  if (expected.is_here[header.offset / message.stripe_num_bytes]) return {};
  ++expected.num_writers;
  return {*this, header.ticket, message.into.data + header.offset + num_here};
}

void IncomingStripes::close(uint64_t ticket) noexcept {
  const std::lock_guard lock(mutex_);
  Expected& expected = expected_.at(ticket);
  if (--expected.num_writers != 0) return;
  expected.is_cancelled ? unused_.notify_all() : report_if_whole(ticket, expected);
}

void IncomingStripes::arrived(const StripeHeader& header) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = expected_.find(header.ticket);
  if (found == expected_.end() || found->second.is_cancelled) return;
  Expected& expected = found->second;
  std::vector<bool>::reference is_here = expected.is_here[header.offset / expected.message.stripe_num_bytes];
  if (is_here) return;
  is_here = true;
  --expected.num_missing;
  report_if_whole(header.ticket, expected);
}

// Another thread may still be writing a stripe that has arrived by another rail.
void IncomingStripes::report_if_whole(uint64_t ticket, const Expected& expected) noexcept {
  if (expected.num_missing != 0 || expected.num_writers != 0) return;
  expected_.erase(ticket);
  events_.push({.kind = RailEvent::Kind::kArrived, .ticket = ticket, .why = {}});
}

}  // namespace axon::transport
