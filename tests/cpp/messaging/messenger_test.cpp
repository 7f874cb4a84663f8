// Tests matching message by message: arrivals against posted receives, in every order.
#include "messaging/messenger.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "messaging/silent_messenger.hpp"

namespace axon::messaging {
namespace {

class AttachedTest : public MessengerTest {
 protected:
  AttachedTest() { messenger_.attach(inbox_); }
  ~AttachedTest() override { messenger_.detach(inbox_); }
};

TEST_F(AttachedTest, collective_matches_by_sequence_source_and_slot_in_any_order) {
  inbox_.enter(1, kReduce);
  arrive(header(kReduce, 2, 1, 5), 25);
  Receive first = receive(kReduce, 1, {.peer = 1, .slot = 5});
  Receive second = receive(kReduce, 1, {.peer = 2, .slot = 5});
  EXPECT_FALSE(first.done());
  EXPECT_TRUE(second.done());
  EXPECT_EQ(second.value, 25);
  arrive(header(kReduce, 1, 1, 6), 16);
  EXPECT_FALSE(first.done());
  arrive(header(kReduce, 1, 1, 5), 15);
  EXPECT_TRUE(first.done());
  EXPECT_EQ(first.value, 15);
  EXPECT_TRUE(listener_.mismatches.empty());
}

TEST_F(AttachedTest, differing_fingerprint_is_told_whichever_side_is_first) {
  transport::Fingerprint other = kReduce;
  other.num_elements = 2;
  inbox_.enter(1, kReduce);
  arrive(header(other, 1, 1, 0), 1);
  ASSERT_EQ(listener_.mismatches.size(), 1u);
  EXPECT_EQ(listener_.mismatches[0].second, kReduce);
  arrive(header(other, 1, 2, 0), 1);
  EXPECT_EQ(listener_.mismatches.size(), 1u);
  inbox_.enter(2, kReduce);
  ASSERT_EQ(listener_.mismatches.size(), 2u);
  EXPECT_EQ(listener_.mismatches[1].first, 2u);
}

TEST_F(AttachedTest, message_for_a_collective_that_was_never_entered_is_no_mismatch) {
  inbox_.enter(1, kReduce);
  listener_.ended = {0, UINT32_MAX};
  for (const uint32_t sequence : listener_.ended) arrive(header(kReduce, 1, sequence, 0), 1);
  EXPECT_TRUE(listener_.mismatches.empty());
  EXPECT_EQ(messenger_.num_refused(), 2u);
}

TEST_F(AttachedTest, collective_that_hundreds_have_followed_still_gets_its_message_and_is_compared) {
  inbox_.enter(1, kReduce);
  inbox_.enter(2, kReduce);
  Receive first = receive(kReduce, 1, {.peer = 1});
  Receive second = receive(kReduce, 2, {.peer = 1});
  for (uint32_t sequence = 3; sequence <= 1000; ++sequence) inbox_.enter(sequence, kReduce);
  arrive(header(kReduce, 1, 1, 0), 5);
  EXPECT_EQ(first.value, 5);
  transport::Fingerprint other = kReduce;
  other.dtype = DataType::kFloat32;
  arrive(header(other, 1, 2, 0), 6);
  ASSERT_TRUE(second.done());
  EXPECT_EQ(second.status().code(), ErrorCode::kMismatch);
  EXPECT_TRUE(listener_.mismatches.empty());
}

TEST_F(AttachedTest, sequence_numbers_wrap) {
  for (const uint32_t sequence : {0x40000000u, 0x7FFFFFFFu, 0xB0000000u, 0xFFFFFFFEu}) inbox_.enter(sequence, kReduce);
  for (const uint32_t sequence : {0xFFFFFFFFu, 0u, 1u}) {
    arrive(header(kReduce, 1, sequence, 0), 7);
    inbox_.enter(sequence, kReduce);
  }
  Receive last = receive(kReduce, 1, {.peer = 1});
  EXPECT_TRUE(last.done());
  EXPECT_TRUE(listener_.mismatches.empty());
}

TEST_F(AttachedTest, point_to_point_keeps_sending_order_though_messages_overtake) {
  arrive(header(kMessage, 1, 2, 9), 30);
  arrive(header(kMessage, 1, 1, 9), 20);
  Receive first = receive(kMessage, 0, {.peer = 1, .slot = 9});
  EXPECT_FALSE(first.done());
  arrive(header(kMessage, 1, 0, 9), 10);
  EXPECT_EQ(first.value, 10);
  Receive second = receive(kMessage, 0, {.peer = 1, .slot = 9});
  Receive third = receive(kMessage, 0, {.peer = kAnyRank, .slot = 9});
  EXPECT_EQ(second.value, 20);
  EXPECT_EQ(third.value, 30);
  EXPECT_EQ(third.exchange().matched_source(), 1);
}

TEST_F(AttachedTest, point_to_point_matches_tags_and_any_source_first_posted_first_served) {
  Receive tag_eight = receive(kMessage, 0, {.peer = 1, .slot = 8});
  Receive anyone = receive(kMessage, 0, {.peer = kAnyRank, .slot = 7});
  Receive from_one = receive(kMessage, 0, {.peer = 1, .slot = 7});
  arrive(header(kMessage, 1, 0, 7), 1);
  EXPECT_EQ(anyone.value, 1);
  EXPECT_FALSE(from_one.done());
  arrive(header(kMessage, 2, 0, 7), 2);
  EXPECT_FALSE(from_one.done());
  arrive(header(kMessage, 1, 1, 7), 3);
  EXPECT_EQ(from_one.value, 3);
  arrive(header(kMessage, 1, 2, 8), 4);
  EXPECT_EQ(tag_eight.value, 4);
}

TEST_F(AttachedTest, point_to_point_of_another_type_fails_the_receive_and_refuses_a_rendezvous) {
  transport::Fingerprint floats = kMessage;
  floats.dtype = DataType::kFloat32;
  Receive receiving = receive(kMessage, 0, {.peer = 1, .slot = 7});
  int32_t waiting = 5;
  messenger_.on_message(header(floats, 1, 0, 7), {.num_bytes = sizeof waiting, .rendezvous = &waiting});
  messenger_.run_ready();
  ASSERT_TRUE(receiving.done());
  const Status status = receiving.status();
  EXPECT_EQ(status.code(), ErrorCode::kMismatch);
  EXPECT_NE(status.message().find("float32"), std::string::npos) << status.message();
  EXPECT_EQ(receiving.value, -1);
  EXPECT_EQ(transport_.num_refused, 1);
  EXPECT_EQ(transport_.reason.code(), ErrorCode::kMismatch) << "its sender is to hear why";
}

TEST_F(AttachedTest, rendezvous_is_fetched_when_its_receive_is_posted) {
  int32_t waiting = 42;
  messenger_.on_message(header(kMessage, 2, 0, 1), {.num_bytes = sizeof waiting, .rendezvous = &waiting});
  Receive receiving = receive(kMessage, 0, {.peer = 2, .slot = 1});
  EXPECT_TRUE(receiving.done());
  EXPECT_EQ(receiving.value, 42);
}

TEST_F(AttachedTest, message_that_cannot_be_fetched_names_its_sender) {
  transport_.fails = true;
  int32_t value = 5;
  messenger_.on_message(header(kMessage, 2, 0, 7), {.num_bytes = sizeof value, .rendezvous = &value});
  Receive receiving(messenger_, inbox_, 0, kMessage, {.peer = kAnyRank, .slot = 7});
  ASSERT_TRUE(receiving.done());
  EXPECT_EQ(receiving.status().message(), "rank 2 cannot be reached: broken");
}

TEST_F(AttachedTest, failing_an_exchange_ends_its_receives_and_later_ones) {
  Receive receiving = receive(kMessage, 0, {.peer = 1});
  EXPECT_EQ(receiving.exchange().ranks_awaited(), std::vector<int>{1});
  receiving.exchange().fail(Status(ErrorCode::kAborted, "first"));
  receiving.exchange().fail(Status(ErrorCode::kAborted, "second"));
  messenger_.run_ready();
  ASSERT_TRUE(receiving.done());
  EXPECT_EQ(receiving.status().message(), "first");
  EXPECT_TRUE(receiving.exchange().at_rest());
  arrive(header(kMessage, 1, 0, 0), 9);
  EXPECT_EQ(receiving.value, -1);
}

TEST_F(AttachedTest, batch_destroyed_while_its_coroutine_is_suspended_wakes_no_waiter) {
  int32_t value = -1;
  Exchange exchange(messenger_, inbox_, 0, kMessage);
  std::optional<Batch> batch(exchange);
  Task<Status> suspended = await(exchange, *batch);
  batch->receive({.peer = 1}, {reinterpret_cast<std::byte*>(&value), sizeof value});
  suspended.resume();
  batch.reset();
  messenger_.run_ready();
  EXPECT_FALSE(suspended.done());
  arrive(header(kMessage, 1, 0, 0), 9);
  EXPECT_FALSE(suspended.done());
  EXPECT_EQ(value, -1);
}

TEST_F(AttachedTest, lost_peer_fails_receives_but_not_what_has_already_arrived) {
  arrive(header(kMessage, 1, 0, 3), 8);
  messenger_.mark_lost(1, "its process has ended");
  Receive served = receive(kMessage, 0, {.peer = 1, .slot = 3});
  EXPECT_EQ(served.value, 8);
  Receive hopeless = receive(kMessage, 0, {.peer = 1, .slot = 3});
  ASSERT_TRUE(hopeless.done());
  const Status why = hopeless.status();
  EXPECT_EQ(why.code(), ErrorCode::kPeerLost);
  EXPECT_EQ(why.message(), "rank 1 is gone: its process has ended");
}

TEST_F(AttachedTest, foreign_keys_and_ranks_are_refused_and_counted_and_change_nothing) {
  Receive receiving = receive(kMessage, 0, {.peer = 1});
  testing::internal::CaptureStderr();
  const auto arrive_from_elsewhere = [&](auto header) {
    const auto genuine = header;
    header.key = 1;
    arrive(header, 1);
    header = genuine;
    header.source = 3;
    arrive(header, 1);
    header = genuine;
    header.destination = 2;
    arrive(header, 1);
  };
  arrive_from_elsewhere(header(kMessage, 1, 0, 0));
  arrive_from_elsewhere(control(transport::MessageKind::kFailureNotice, 1));
  arrive_from_elsewhere(transport::CreditHeader{.key = kKey, .kind = transport::MessageKind::kLeave, .source = 1});
  int32_t waiting = 5;
  messenger_.on_message(header(kMessage, 99, 0, 0), {.num_bytes = sizeof waiting, .rendezvous = &waiting});
  const std::string logged = testing::internal::GetCapturedStderr();
  EXPECT_EQ(messenger_.num_refused(), 10u);
  EXPECT_EQ(transport_.num_refused, 1);
  EXPECT_EQ(std::ranges::count(logged, '\n'), 1) << logged;
  EXPECT_FALSE(receiving.done());
  EXPECT_TRUE(listener_.control_kinds.empty());
  EXPECT_EQ(inbox_.latest_from(1), nullptr);
}

TEST_F(AttachedTest, control_of_a_member_is_handed_over) {
  arrive(control(transport::MessageKind::kProgressQuery, 1), 1);
  EXPECT_EQ(listener_.control_kinds, std::vector<transport::MessageKind>{transport::MessageKind::kProgressQuery});
}

TEST_F(AttachedTest, unknown_kinds_and_those_of_transports_are_refused) {
  testing::internal::CaptureStderr();
  for (const int kind : {0, 11, 15, 25, 31, 32, 33, 34, 35, 36, 63, 74, 200, 255}) {
    transport::MessageHeader foreign = header(kMessage, 1, 0, 0);
    foreign.kind = static_cast<transport::MessageKind>(kind);
    const uint64_t before = messenger_.num_refused();
    arrive(foreign, 1);
    EXPECT_EQ(messenger_.num_refused(), before + 1) << kind;
  }
  testing::internal::GetCapturedStderr();
  EXPECT_TRUE(listener_.control_kinds.empty());
  EXPECT_TRUE(listener_.mismatches.empty());
  EXPECT_EQ(inbox_.latest_from(1), nullptr);
}

TEST_F(AttachedTest, repeated_messages_between_two_ranks_are_refused) {
  Receive first = receive(kMessage, 0, {.peer = 1});
  arrive(header(kMessage, 1, 0, 0), 10);
  arrive(header(kMessage, 1, 0, 0), 11);
  arrive(header(kMessage, 1, 2, 0), 30);
  arrive(header(kMessage, 1, 2, 0), 31);
  Receive second = receive(kMessage, 0, {.peer = 1});
  Receive third = receive(kMessage, 0, {.peer = 1});
  EXPECT_FALSE(second.done());
  arrive(header(kMessage, 1, 1, 0), 20);
  EXPECT_EQ((std::array{first.value, second.value, third.value}), (std::array{10, 20, 30}));
  EXPECT_EQ(messenger_.num_refused(), 2u);
}

TEST_F(AttachedTest, message_for_a_collective_that_has_ended_is_refused) {
  inbox_.enter(1, kReduce);
  arrive(header(kReduce, 1, 1, 0), 10);
  Receive served = receive(kReduce, 1, {.peer = 1});
  arrive(header(kReduce, 1, 1, 0), 11);
  EXPECT_EQ(messenger_.num_refused(), 0u);  // the message may match a later receive
  inbox_.leave(1);
  listener_.ended = {1};
  EXPECT_EQ(messenger_.num_refused(), 1u);
  int32_t waiting = 12;
  messenger_.on_message(header(kReduce, 1, 1, 0), {.num_bytes = sizeof waiting, .rendezvous = &waiting});
  EXPECT_EQ(messenger_.num_refused(), 2u);
  EXPECT_EQ(transport_.num_refused, 1);
  EXPECT_EQ(served.value, 10);
  EXPECT_TRUE(listener_.mismatches.empty());
}

TEST_F(AttachedTest, more_than_an_inbox_may_hold_is_told) {
  std::vector<std::byte> block(1 << 20);
  for (uint32_t i = 0; i <= Inbox::kMostUnexpectedBytes >> 20; ++i) {
    messenger_.on_message(header(kMessage, 1, i, 0), {.bytes = block.data(), .num_bytes = block.size()});
  }
  ASSERT_FALSE(listener_.overflows.empty());
  EXPECT_NE(listener_.overflows[0].find("256 MiB"), std::string::npos) << listener_.overflows[0];
}

TEST_F(MessengerTest, messages_for_a_group_not_formed_yet_wait_for_it) {
  arrive(header(kMessage, 1, 0, 0), 11);
  int32_t waiting = 12;
  messenger_.on_message(header(kMessage, 1, 1, 0), {.num_bytes = sizeof waiting, .rendezvous = &waiting});
  messenger_.attach(inbox_);
  Receive first = receive(kMessage, 0, {.peer = 1});
  Receive second = receive(kMessage, 0, {.peer = 1});
  EXPECT_EQ(first.value, 11);
  EXPECT_EQ(second.value, 12);
  messenger_.detach(inbox_);
}

TEST_F(MessengerTest, stragglers_of_a_group_that_is_gone_are_dropped) {
  messenger_.attach(inbox_);
  messenger_.detach(inbox_);
  int32_t waiting = 0;
  messenger_.on_message(header(kMessage, 1, 0, 0), {.num_bytes = sizeof waiting, .rendezvous = &waiting});
  EXPECT_EQ(messenger_.num_dropped(), 1u);
  EXPECT_EQ(transport_.num_refused, 1);
}

TEST_F(MessengerTest, failure_notice_for_a_group_not_formed_yet_waits_for_it_but_no_question_does) {
  arrive(header(kMessage, 1, 0, 0), 11);
  arrive(control(transport::MessageKind::kFailureNotice, 2), 0);
  arrive(control(transport::MessageKind::kProgressQuery, 2), 0);
  arrive(control(transport::MessageKind::kProgressReply, 2), 0);
  EXPECT_TRUE(listener_.control_kinds.empty());
  messenger_.attach(inbox_);
  EXPECT_EQ(listener_.control_kinds, std::vector<transport::MessageKind>{transport::MessageKind::kFailureNotice});
  EXPECT_EQ(receive(kMessage, 0, {.peer = 1}).value, 11);
  messenger_.detach(inbox_);
  arrive(control(transport::MessageKind::kFailureNotice, 1), 0);
  EXPECT_EQ(listener_.control_kinds.size(), 1u);
}

TEST_F(MessengerTest, message_with_a_key_never_given_out_is_not_kept) {
  transport::MessageHeader foreign = header(kMessage, 1, 0, 0);
  foreign.key = 1;
  testing::internal::CaptureStderr();
  for (int i = 0; i < 5000; ++i) arrive(foreign, 0);
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(messenger_.num_refused(), 5000u);
  EXPECT_EQ(messenger_.num_dropped(), 0u);
  arrive(header(kMessage, 1, 0, 0), 11);
  messenger_.attach(inbox_);
  EXPECT_EQ(receive(kMessage, 0, {.peer = 1}).value, 11);
  messenger_.detach(inbox_);
}

TEST_F(MessengerTest, strangers_are_bounded_and_the_group_that_lost_some_is_told) {
  testing::internal::CaptureStderr();
  const std::vector<std::byte> block(1 << 20);
  for (uint32_t i = 0; i < 300; ++i) {
    messenger_.on_message(header(kMessage, 1, i, 0), {.bytes = block.data(), .num_bytes = block.size()});
  }
  const std::string logged = testing::internal::GetCapturedStderr();
  EXPECT_EQ(messenger_.num_dropped(), 300u - 256u);
  EXPECT_NE(logged.find("more than 256 MiB of messages"), std::string::npos) << logged;
  EXPECT_EQ(std::ranges::count(logged, '\n'), 1) << logged;
  EXPECT_TRUE(listener_.overflows.empty());
  messenger_.attach(inbox_);
  ASSERT_EQ(listener_.overflows.size(), 1u);
  EXPECT_NE(listener_.overflows[0].find("256 MiB"), std::string::npos) << listener_.overflows[0];
  messenger_.detach(inbox_);
}

TEST_F(MessengerTest, group_whose_strangers_were_all_kept_is_whole) {
  arrive(header(kMessage, 1, 0, 0), 11);
  transport::MessageHeader elsewhere = header(kMessage, 1, 0, 0);
  elsewhere.key = 1;
  messenger_.expect(elsewhere.key);
  testing::internal::CaptureStderr();
  for (int i = 0; i < 5000; ++i) arrive(elsewhere, 0);
  testing::internal::GetCapturedStderr();
  messenger_.attach(inbox_);
  EXPECT_TRUE(listener_.overflows.empty());
  EXPECT_EQ(receive(kMessage, 0, {.peer = 1}).value, 11);
  messenger_.detach(inbox_);
}

class LeftGroupsTest : public MessengerTest {
 protected:
  static constexpr size_t kManyRanks = 5000;

  // Forms and leaves a group of 5,000 ranks whose rank 0 is this one, after `num_sent` messages to rank 3,001.
  void leave_large_group(uint64_t key, uint32_t num_sent) {
    Team team{
        .rank = 0, .peers = std::vector<transport::PeerId>(kManyRanks), .keys = std::vector<uint64_t>(kManyRanks)};
    team.keys[0] = key;
    Inbox inbox(transport_, messenger_.size_class_pool(), team, listener_);
    messenger_.expect(key);
    messenger_.attach(inbox);
    for (uint32_t i = 0; i < num_sent; ++i) inbox.next_point_to_point(3001);
    messenger_.detach(inbox);
  }
  // Returns the answer to a message that rank 3,001 or 3,002 sends to that group: how many messages were sent to it.
  std::optional<uint64_t> answer(uint64_t key, uint32_t source) {
    transport_.sent.clear();
    transport::OperationHeader late = header(kMessage, source, 0, 0);
    late.key = key;
    arrive(late, 1);
    if (transport_.sent.empty()) return std::nullopt;
    const auto told = transport_.sent[0].as<transport::CreditHeader>();
    EXPECT_EQ(told.kind, transport::MessageKind::kLeave);
    return told.num_sent;
  }
};

TEST_F(LeftGroupsTest, late_senders_learn_once_how_many_messages_they_get) {
  leave_large_group(1000, 5);
  EXPECT_EQ(answer(1000, 3001), 5u);
  EXPECT_EQ(answer(1000, 3001), std::nullopt);
  EXPECT_EQ(answer(1000, 3002), 0u);
}

TEST_F(LeftGroupsTest, only_the_latest_large_groups_answer_late_senders) {
  for (uint64_t key = 1000; key < 1006; ++key) leave_large_group(key, 1);
  EXPECT_EQ(answer(1000, 3001), std::nullopt);
  EXPECT_EQ(answer(1001, 3001), std::nullopt);
  for (uint64_t key = 1002; key < 1006; ++key) EXPECT_EQ(answer(key, 3001), 1u) << key;
}

}  // namespace
}  // namespace axon::messaging
