// Tests messages that arrive before their group is formed: those for keys of a series.
#include "messaging/early_messages.hpp"

#include <vector>

#include "messaging/silent_messenger.hpp"

namespace axon::messaging {
namespace {

// Keys of a series, under which messages may arrive before they are expected themselves.
class SeriesTest : public MessengerTest {
 protected:
  static constexpr uint32_t kSeries = 5;
  static constexpr uint32_t kMost = EarlyMessages::kMostOfSeries;
  static constexpr uint64_t key_of(uint32_t number) { return uint64_t{kSeries} << 32 | number; }

  SeriesTest() { messenger_.expect_series(kSeries); }

  transport::OperationHeader header_for(uint64_t key, uint32_t sequence) const {
    transport::OperationHeader made = header(kMessage, 1, sequence, 0);
    made.key = key;
    return made;
  }
  // A first message for each of the keys, with its number as its value.
  void arrive_for(uint32_t first, uint32_t count) {
    for (uint32_t i = first; i < first + count; ++i) arrive(header_for(key_of(i), 0), static_cast<int32_t>(i));
  }
  void arrive_waiting(uint64_t key, uint32_t sequence, int32_t& value) {
    messenger_.on_message(header_for(key, sequence), {.num_bytes = sizeof value, .rendezvous = &value});
  }
  void arrive_long(uint64_t key, uint32_t sequence, const std::vector<std::byte>& block) {
    messenger_.on_message(header_for(key, sequence), {.bytes = block.data(), .num_bytes = block.size()});
  }

  // Forms the group with this key, and returns the values that wait for it.
  std::vector<int32_t> take(uint64_t key) {
    messenger_.expect(key);
    const Team team{.rank = 0, .peers = {0, 1, 2}, .keys = {key, 78, 79}};
    Inbox inbox(transport_, messenger_.size_class_pool(), team, listener_);
    messenger_.attach(inbox);
    std::vector<int32_t> values;
    for (;;) {
      const Receive next(messenger_, inbox, 0, kMessage, {.peer = 1});
      if (!next.done()) break;
      values.push_back(next.value);
    }
    messenger_.detach(inbox);
    return values;
  }
};

TEST_F(SeriesTest, messages_for_a_key_wait_in_order_before_and_after_it_is_expected) {
  const uint64_t key = key_of(3);
  EXPECT_FALSE(messenger_.expects(key));
  int32_t waiting = 11;
  arrive(header_for(key, 0), 10);
  arrive(header_for(key_of(4), 0), 40);
  arrive_waiting(key, 1, waiting);
  messenger_.expect(key);
  arrive(header_for(key, 2), 12);
  EXPECT_EQ(take(key), (std::vector<int32_t>{10, 11, 12}));
  EXPECT_EQ(take(key_of(4)), (std::vector<int32_t>{40}));
  EXPECT_EQ(messenger_.num_dropped(), 0u);
  EXPECT_EQ(messenger_.num_refused(), 0u);
}

TEST_F(SeriesTest, failure_notice_for_a_key_waits_for_its_group) {
  transport::ControlHeader notice = control(transport::MessageKind::kFailureNotice, 1);
  notice.key = key_of(3);
  arrive(notice, 0);
  EXPECT_TRUE(listener_.control_kinds.empty());
  take(key_of(3));
  EXPECT_EQ(listener_.control_kinds, std::vector<transport::MessageKind>{transport::MessageKind::kFailureNotice});
}

TEST_F(SeriesTest, one_key_too_many_takes_the_place_of_the_oldest) {
  int32_t waiting = 0;
  arrive_waiting(key_of(0), 0, waiting);
  arrive_for(1, kMost - 1);
  arrive(header_for(key_of(1), 1), 100);  // for a key that has its place
  EXPECT_EQ(messenger_.num_dropped(), 0u);
  EXPECT_TRUE(messenger_.expects(key_of(0)));
  arrive_for(kMost, 1);
  EXPECT_EQ(messenger_.num_dropped(), 1u);
  EXPECT_EQ(transport_.num_refused, 1) << "its sender is to hear that it will not be fetched";
  EXPECT_FALSE(messenger_.expects(key_of(0)));
  EXPECT_EQ(take(key_of(1)), (std::vector<int32_t>{1, 100}));
  for (uint32_t i = 2; i <= kMost; ++i) EXPECT_EQ(take(key_of(i)), std::vector<int32_t>{static_cast<int32_t>(i)});
}

TEST_F(SeriesTest, key_that_is_expected_in_the_meantime_keeps_its_messages_and_takes_no_place) {
  arrive_for(0, 1);
  messenger_.expect(key_of(0));
  arrive_for(1, kMost);
  EXPECT_EQ(messenger_.num_dropped(), 0u);
  arrive_for(kMost + 1, kMost);
  EXPECT_EQ(messenger_.num_dropped(), kMost);
  EXPECT_EQ(take(key_of(0)), std::vector<int32_t>{0});
}

TEST_F(SeriesTest, retiring_it_drops_what_waits_except_for_expected_keys) {
  int32_t waiting = 0;
  arrive_for(0, 1);
  messenger_.expect(key_of(0));
  arrive_for(1, 1);
  arrive_waiting(key_of(1), 1, waiting);
  messenger_.retire_series(kSeries);
  EXPECT_EQ(messenger_.num_dropped(), 2u);
  EXPECT_EQ(transport_.num_refused, 1);
  EXPECT_FALSE(messenger_.expects(key_of(1)));
  arrive(header_for(key_of(1), 2), 12);
  EXPECT_EQ(messenger_.num_dropped(), 3u) << "it was a member's";
  EXPECT_EQ(messenger_.num_refused(), 0u);
  EXPECT_EQ(take(key_of(0)), std::vector<int32_t>{0});
  testing::internal::CaptureStderr();
  arrive_for(2, 1);
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(messenger_.num_refused(), 1u);
  EXPECT_FALSE(messenger_.expects(key_of(2)));
}

TEST_F(SeriesTest, keys_of_other_series_are_refused) {
  testing::internal::CaptureStderr();
  for (const uint64_t foreign : {key_of(1) ^ uint64_t{1} << 32, uint64_t{1}, uint64_t{kSeries}}) {
    const uint64_t before = messenger_.num_refused();
    arrive(header_for(foreign, 0), 0);
    EXPECT_EQ(messenger_.num_refused(), before + 1) << foreign;
    EXPECT_FALSE(messenger_.expects(foreign));
  }
  testing::internal::GetCapturedStderr();
}

TEST_F(SeriesTest, keys_that_lose_their_places_return_the_room_of_their_messages) {
  const std::vector<std::byte> block(1 << 20);
  testing::internal::CaptureStderr();
  for (uint32_t i = 0; i < 300; ++i) arrive_long(key_of(0), i, block);
  arrive_for(1, kMost - 1);  // dropped: there is no room
  arrive_for(kMost, 1);
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(messenger_.num_dropped(), 300u + kMost - 1);
  EXPECT_EQ(take(key_of(kMost)), std::vector<int32_t>{static_cast<int32_t>(kMost)});
  EXPECT_TRUE(listener_.overflows.empty());
  take(key_of(1));
  EXPECT_EQ(listener_.overflows.size(), 1u);
}

}  // namespace
}  // namespace axon::messaging
