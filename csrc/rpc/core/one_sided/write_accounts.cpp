#include "rpc/core/one_sided/write_accounts.hpp"

#include <utility>

namespace axon::rpc {

WriteAccounts::Account* WriteAccounts::open(uint32_t transfer) noexcept {
  const auto found = accounts_.find(transfer);
  if (found != accounts_.end()) return &found->second;
  return accounts_.size() < kMost ? &accounts_[transfer] : nullptr;
}

Status WriteAccounts::too_many() {
  return {ErrorCode::kResourceExhausted,
          std::to_string(kMost) + " transfers with a notification are under way, the limit"};
}

Status WriteAccounts::begin_write(uint32_t transfer) noexcept {
  Account* const account = open(transfer);
  if (account == nullptr) return too_many();
  ++account->num_running;
  return {};
}

std::optional<WriteAccounts::Settled> WriteAccounts::end_write(uint32_t transfer, bool is_written) noexcept {
  const auto found = accounts_.find(transfer);
  if (found == accounts_.end()) return std::nullopt;  // the connection has ended meanwhile
  --found->second.num_running;
  ++found->second.num_ended;
  found->second.has_failed |= !is_written;
  return close_if_decided(transfer);
}

Result<std::optional<WriteAccounts::Settled>> WriteAccounts::notify(uint32_t transfer, Notification notification) {
  if (notification.tag.size() > kMostTagBytes - num_tag_bytes_) {
    return Status(ErrorCode::kResourceExhausted,
                  "tags of " + std::to_string(num_tag_bytes_) +
                      " bytes wait for their data, and this one would exceed the limit of " +
                      std::to_string(kMostTagBytes));
  }
  Account* const account = open(transfer);
  if (account == nullptr) return too_many();
  if (account->notification) return Status(ErrorCode::kTransport, "a transfer has two notifications");
  num_tag_bytes_ += notification.tag.size();
  account->num_expected = notification.num_writes;
  account->notification = std::move(notification);
  return close_if_decided(transfer);
}

// If the notification was sent, and nothing of the transfer is known, it has been delivered, or all its messages are
// yet to arrive. Those deliver it.
std::optional<WriteAccounts::Settled> WriteAccounts::forget(uint32_t transfer, uint64_t num_writes,
                                                            WasNotified was_notified) noexcept {
  const bool awaits_notification = was_notified == WasNotified::kYes;
  if (awaits_notification && !accounts_.contains(transfer)) return std::nullopt;
  Account* const account = open(transfer);
  if (account == nullptr) return std::nullopt;
  account->is_forgotten = true;
  account->awaits_notification = awaits_notification;
  account->num_expected = num_writes;
  return close_if_decided(transfer);
}

// A forgotten transfer keeps its account until all of its messages have arrived, since each would open another one.
std::optional<WriteAccounts::Settled> WriteAccounts::close_if_decided(uint32_t transfer) noexcept {
  const auto found = accounts_.find(transfer);
  Account& account = found->second;
  const bool is_decided = account.notification || (account.is_forgotten && !account.awaits_notification);
  if (!is_decided || account.num_running != 0 || account.num_ended < account.num_expected) return std::nullopt;
  Account ended = std::move(account);
  accounts_.erase(found);
  if (!ended.notification) return std::nullopt;
  num_tag_bytes_ -= ended.notification->tag.size();
  return Settled{.request = ended.notification->request,
                 .tag = std::move(ended.notification->tag),
                 .is_to_deliver = !ended.has_failed && !ended.is_forgotten};
}

void WriteAccounts::clear() noexcept {
  for (const auto& [transfer, account] : accounts_) {
    if (account.notification) num_tag_bytes_ -= account.notification->tag.size();
  }
  accounts_.clear();
}

}  // namespace axon::rpc
