// Keeps account of the writes of a peer's transfers, so that the notification of a transfer follows its data.
//
// The writes of a transfer with a notification carry its number, and the notification says how many there are. All
// these messages may arrive in any order. An account begins with the first of them, and closes once it is known what
// becomes of the notification.
//
//   AXON_TRY(accounts.begin_write(transfer));
//   settle(accounts.end_write(transfer, status.ok()));
//   settle(accounts.notify(transfer, {.request = number, .tag = tag, .num_writes = n}));   // settle: see Settled
//
// Owned by Target; progress owner only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/status.hpp"

namespace axon::rpc {

class WriteAccounts {
 public:
  // Transfers of one connection. Initiators keep to a quarter of it; some more have ended there, and not here yet.
  static constexpr size_t kMost = 4096;
  // Bytes of the tags of all connections of a runtime that wait for their data.
  static constexpr size_t kMostTagBytes = size_t{64} << 20;

  struct Notification {
    uint32_t request = 0;  // to be answered
    std::string tag;
    uint64_t num_writes = 0;
  };

  // A notification whose writes have all ended.
  struct Settled {
    uint32_t request = 0;
    std::string tag;
    bool is_to_deliver = false;  // otherwise its data were not written
  };

  // `num_tag_bytes` counts for all connections of the runtime, and outlives this.
  explicit WriteAccounts(size_t& num_tag_bytes) noexcept : num_tag_bytes_(num_tag_bytes) {}
  WriteAccounts(const WriteAccounts&) = delete;
  WriteAccounts& operator=(const WriteAccounts&) = delete;
  ~WriteAccounts() { clear(); }

  // Fails if too many transfers are under way. Then end_write() must not follow.
  Status begin_write(uint32_t transfer) noexcept;
  std::optional<Settled> end_write(uint32_t transfer, bool is_written) noexcept;
  // Fails if there is no room for the notification, or the transfer has one already.
  Result<std::optional<Settled>> notify(uint32_t transfer, Notification notification);

  enum class WasNotified : uint8_t { kNo, kYes };
  // The transfer has failed at the initiator after it had sent this many writes, and, if kYes, the notification.
  std::optional<Settled> forget(uint32_t transfer, uint64_t num_writes, WasNotified was_notified) noexcept;
  void clear() noexcept;
  bool empty() const noexcept { return accounts_.empty(); }

 private:
  struct Account {
    uint64_t num_running = 0;  // writes that have begun and not ended
    uint64_t num_ended = 0;
    uint64_t num_expected = 0;  // valid with a notification, or if is_forgotten
    bool has_failed = false;
    bool is_forgotten = false;
    bool awaits_notification = false;  // valid if is_forgotten: the notification was sent, too
    std::optional<Notification> notification;
  };

  // Returns the account of a transfer, or null if there is no room for another one.
  Account* open(uint32_t transfer) noexcept;
  std::optional<Settled> close_if_decided(uint32_t transfer) noexcept;
  static Status too_many();

  size_t& num_tag_bytes_;
  std::unordered_map<uint32_t, Account> accounts_;  // by the peer's number of the transfer
};

}  // namespace axon::rpc
