// Tests in which order the messages of a transfer with a notification may arrive: in any.
#include "rpc/core/one_sided/write_accounts.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

namespace axon::rpc {
namespace {

constexpr uint32_t kTransfer = 7;
constexpr uint32_t kRequest = 300;

enum class Event : uint8_t { kBegin0, kEnd0, kBegin1, kEnd1, kNotify, kForget };
using enum Event;

// The accounts of one transfer with two writes, and what became of its notification.
struct Owner {
  void handle(Event event, bool writes_second) {
    switch (event) {
      case kBegin0:
      case kBegin1:
        ASSERT_TRUE(accounts.begin_write(kTransfer).ok());
        return;
      case kEnd0:
        return note(accounts.end_write(kTransfer, true));
      case kEnd1:
        return note(accounts.end_write(kTransfer, writes_second));
      case kNotify: {
        auto settled = accounts.notify(kTransfer, {.request = kRequest, .tag = "tag", .num_writes = 2});
        ASSERT_TRUE(settled.ok()) << settled.status().message();
        return note(settled.value());
      }
      case kForget:
        return note(accounts.forget(kTransfer, 2, was_notified));
    }
  }

  void note(const std::optional<WriteAccounts::Settled>& settled) {
    if (!settled) return;
    ++num_settled;
    EXPECT_EQ(settled->request, kRequest);
    EXPECT_EQ(settled->tag, "tag");
    is_delivered = settled->is_to_deliver;
  }

  size_t num_tag_bytes = 0;
  WriteAccounts accounts{num_tag_bytes};
  WriteAccounts::WasNotified was_notified = WriteAccounts::WasNotified::kYes;
  int num_settled = 0;
  bool is_delivered = false;
};

// Calls `check` with each order of the events in which every write begins before it ends.
void for_each_order(std::vector<Event> events, const std::function<void(const std::vector<Event>&)>& check) {
  std::ranges::sort(events);
  size_t num_orders = 0;
  do {
    const auto at = [&](Event event) { return std::ranges::find(events, event); };
    if (at(kBegin0) > at(kEnd0) || at(kBegin1) > at(kEnd1)) continue;
    check(events);
    ++num_orders;
  } while (std::ranges::next_permutation(events).found);
  EXPECT_GE(num_orders, 6u);
}

TEST(WriteAccounts, a_notification_is_delivered_after_the_last_of_its_writes_in_every_order) {
  for_each_order({kBegin0, kEnd0, kBegin1, kEnd1, kNotify}, [](const std::vector<Event>& order) {
    Owner owner;
    for (const Event event : order) {
      EXPECT_EQ(owner.num_settled, 0);
      owner.handle(event, true);
    }
    EXPECT_EQ(owner.num_settled, 1);
    EXPECT_TRUE(owner.is_delivered);
    EXPECT_TRUE(owner.accounts.empty());
    EXPECT_EQ(owner.num_tag_bytes, 0u);
  });
}

TEST(WriteAccounts, a_failed_write_withholds_the_notification_in_every_order) {
  for_each_order({kBegin0, kEnd0, kBegin1, kEnd1, kNotify}, [](const std::vector<Event>& order) {
    Owner owner;
    for (const Event event : order) owner.handle(event, false);
    EXPECT_EQ(owner.num_settled, 1);
    EXPECT_FALSE(owner.is_delivered);
    EXPECT_TRUE(owner.accounts.empty());
  });
}

TEST(WriteAccounts, a_forgotten_transfer_without_notification_leaves_nothing_in_every_order) {
  for_each_order({kBegin0, kEnd0, kBegin1, kEnd1, kForget}, [](const std::vector<Event>& order) {
    Owner owner;
    owner.was_notified = WriteAccounts::WasNotified::kNo;
    for (const Event event : order) owner.handle(event, true);
    EXPECT_EQ(owner.num_settled, 0);
    EXPECT_TRUE(owner.accounts.empty());
  });
}

// The notification is answered once. It is delivered if the owner does not know of the failure in time.
TEST(WriteAccounts, a_forgotten_transfer_with_a_notification_leaves_nothing_in_every_order) {
  for_each_order({kBegin0, kEnd0, kBegin1, kEnd1, kNotify, kForget}, [](const std::vector<Event>& order) {
    Owner owner;
    for (const Event event : order) owner.handle(event, true);
    EXPECT_EQ(owner.num_settled, 1);
    const bool is_known_in_time = order.front() != kForget && order.back() != kForget;
    EXPECT_EQ(owner.is_delivered, !is_known_in_time);
    EXPECT_TRUE(owner.accounts.empty());
    EXPECT_EQ(owner.num_tag_bytes, 0u);
  });
}

TEST(WriteAccounts, a_second_notification_of_a_transfer_is_refused) {
  Owner owner;
  owner.handle(kBegin0, true);
  owner.handle(kNotify, true);
  const auto second = owner.accounts.notify(kTransfer, {.request = 301, .tag = "again", .num_writes = 1});
  EXPECT_EQ(second.status().code(), ErrorCode::kTransport);
  EXPECT_EQ(owner.num_tag_bytes, 3u);
}

TEST(WriteAccounts, transfers_and_their_tags_are_limited) {
  size_t num_tag_bytes = 0;
  {
    WriteAccounts accounts(num_tag_bytes);
    const std::string tag(size_t{64} << 10, 't');
    const size_t num_tags = WriteAccounts::kMostTagBytes / tag.size();
    for (uint32_t transfer = 0; transfer < num_tags; ++transfer) {
      ASSERT_TRUE(accounts.notify(transfer, {.request = 1, .tag = tag, .num_writes = 1}).ok());
    }
    EXPECT_EQ(accounts.notify(5000, {.request = 1, .tag = "t", .num_writes = 1}).status().code(),
              ErrorCode::kResourceExhausted);
    for (size_t i = num_tags; i < WriteAccounts::kMost; ++i) {
      ASSERT_TRUE(accounts.begin_write(static_cast<uint32_t>(i)).ok());
    }
    EXPECT_EQ(accounts.begin_write(WriteAccounts::kMost).code(), ErrorCode::kResourceExhausted);
    EXPECT_EQ(num_tag_bytes, WriteAccounts::kMostTagBytes);
  }
  EXPECT_EQ(num_tag_bytes, 0u);
}

}  // namespace
}  // namespace axon::rpc
