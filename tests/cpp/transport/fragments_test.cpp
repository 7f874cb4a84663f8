// Tests long messages in fragments, and invalid messages about them from foreign senders.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "transport/loopback/loopback.hpp"
#include "transport/node.hpp"
#include "transport/rings/rings.hpp"
#include "transport/tcp_fragments/fragment_transport.hpp"

namespace axon::transport {
namespace {

constexpr size_t kTcpFragmentBytes = FragmentTransport::kTcpFragmentBytes;
constexpr size_t kNumFragments = 20;
constexpr size_t kLong = kNumFragments * kTcpFragmentBytes - 100;

// A transport with fragments, and a raw one that sends whatever the test says.
class Fragments : public testing::Test {
 protected:
  static constexpr uint64_t kRawName = 0x7261777261770001;
  static constexpr uint64_t kNumber = 5;
  static constexpr uint32_t kOneProcess = 0;
  static constexpr uint32_t kRawProcess = 1;

  static Bytes bytes_of(const auto& value) {
    const auto bytes = std::as_bytes(std::span(&value, 1));
    return {bytes.begin(), bytes.end()};
  }
  uint64_t name_of_one() {
    uint64_t name = 0;
    std::memcpy(&name, one.transport().address().last(sizeof name).data(), sizeof name);
    return name;
  }
  PeerId meet_one() {
    const auto address = one.transport().address();
    return raw.transport().add_peer(address.first(address.size() - sizeof(uint64_t)), false).value();
  }
  PeerId meet_raw() {
    const auto below = raw.transport().address();
    Bytes address(below.begin(), below.end());
    const Bytes name = bytes_of(kRawName);
    address.insert(address.end(), name.begin(), name.end());
    return one.transport().add_peer(address, false).value();
  }

  RendezvousHeader rts() { return {.key = name_of_one(), .kind = MessageKind::kRts, .number = kNumber}; }
  RendezvousHeader cts(uint64_t number, uint64_t ticket) {
    return {.key = name_of_one(), .kind = MessageKind::kCts, .number = number, .ticket = ticket};
  }
  RendezvousHeader nack(uint64_t number) {
    return {.key = name_of_one(), .kind = MessageKind::kNack, .number = number};
  }
  RendezvousHeader data(uint64_t ticket, uint64_t offset) {
    return {.key = name_of_one(), .kind = MessageKind::kData, .ticket = ticket, .offset = offset};
  }
  void say(const MessageHeader& header, Bytes bytes = {}) {
    Transfer& transfer = said.emplace_back();
    transfer.bytes = std::move(bytes);
    const ConstBuffer payload{transfer.bytes.data(), transfer.bytes.size()};
    if (auto sent = raw.transport().send(to_one, header, payload, transfer)) transfer.tell(std::move(*sent));
    settle();
  }
  void send_rts(uint64_t num_bytes = kLong) {
    const OperationHeader inner{.key = 7, .fingerprint = {.operation = OperationKind::kPointToPoint}, .sequence = 3};
    say(rts(), bytes_of(LongMessage{.header = inner, .sender = kRawName, .num_bytes = num_bytes}));
  }
  void say_fragment(uint64_t ticket, size_t index) {
    const size_t length = std::min(kTcpFragmentBytes, kLong - index * kTcpFragmentBytes);
    const auto begin = content.begin() + static_cast<ptrdiff_t>(index * kTcpFragmentBytes);
    say(data(ticket, index * kTcpFragmentBytes), {begin, begin + static_cast<ptrdiff_t>(length)});
  }
  // The latest message of a rendezvous that the raw transport has received.
  RendezvousHeader heard() const { return raw.arrivals.back().header.as<RendezvousHeader>(); }
  uint64_t number_of_rts(size_t index = 0) const { return raw.arrivals.at(index).header.as<RendezvousHeader>().number; }
  LongMessage latest_rts(size_t index = 0) const {
    LongMessage message;
    EXPECT_EQ(raw.arrivals.at(index).bytes().size(), sizeof message);
    std::memcpy(&message, raw.arrivals.at(index).bytes().data(), sizeof message);
    return message;
  }
  size_t num_heard(MessageKind kind) const {
    return static_cast<size_t>(
        std::ranges::count_if(raw.arrivals, [&](const Arrival& arrival) { return arrival.header.kind == kind; }));
  }

  bool run(const std::function<bool()>& condition) { return drive({&one, &raw}, condition); }
  void settle() {
    while (one.transport().progress() + raw.transport().progress() != 0) {
    }
  }

  LoopbackFabric fabric{FaultPlan{.largest_eager_num_bytes = size_t{64} << 10, .holds = {}, .kills = {}}};
  Node one{with_fragments(fabric.make_transport(), FragmentUse::kToAll)};
  Node raw{fabric.make_transport()};
  const PeerId to_one = meet_one();
  const PeerId to_raw = meet_raw();
  const Bytes content = pattern(kLong, 1);
  std::deque<Transfer> said;
};

TEST_F(Fragments, come_in_any_order) {
  send_rts();
  ASSERT_EQ(one.arrivals.size(), 1U);
  EXPECT_EQ(one.arrivals.front().sequence(), 3U);
  EXPECT_EQ(one.arrivals.front().num_bytes, kLong);
  ASSERT_EQ(heard().kind, MessageKind::kCts);
  EXPECT_EQ(heard().key, kRawName);
  EXPECT_EQ(heard().number, kNumber);
  const uint64_t ticket = heard().ticket;
  for (size_t i = 0; i < kNumFragments; ++i) {
    EXPECT_EQ(one.num_complete(), 0U);
    say_fragment(ticket, (i * 7 + 3) % kNumFragments);
  }
  ASSERT_EQ(one.num_complete(), 1U);
  EXPECT_TRUE(one.arrivals.front().fetch.status.ok());
  EXPECT_EQ(one.arrivals.front().bytes(), content);
  EXPECT_EQ(one.num_refused, 0U);
}

TEST_F(Fragments, that_make_no_sense_are_refused_and_change_nothing) {
  send_rts();
  const uint64_t ticket = heard().ticket;
  say_fragment(ticket, 2);
  size_t num_refused = 0;
  const auto expect_refused = [&](const MessageHeader& header, size_t num_bytes) {
    say(header, pattern(num_bytes, 9));
    EXPECT_EQ(one.num_refused, ++num_refused) << num_refused;
  };
  expect_refused(data(ticket, 2 * kTcpFragmentBytes), kTcpFragmentBytes);  // the same fragment again
  expect_refused(data(ticket, 1), kTcpFragmentBytes);
  expect_refused(data(ticket, kNumFragments * kTcpFragmentBytes), kTcpFragmentBytes);
  expect_refused(data(ticket, UINT64_MAX - kTcpFragmentBytes + 1), kTcpFragmentBytes);
  expect_refused(data(ticket, 3 * kTcpFragmentBytes), kTcpFragmentBytes - 1);
  expect_refused(data(ticket, 3 * kTcpFragmentBytes), kTcpFragmentBytes + 1);
  expect_refused(data(ticket, 3 * kTcpFragmentBytes), 0);
  expect_refused(data(ticket, (kNumFragments - 1) * kTcpFragmentBytes),
                 kTcpFragmentBytes);  // longer than the rest of the message
  // So long that it waits at its sender.
  expect_refused(data(ticket, 3 * kTcpFragmentBytes), (size_t{64} << 10) + 1);
  expect_refused(data(ticket + 1, 3 * kTcpFragmentBytes), kTcpFragmentBytes);
  expect_refused(data(ticket + (uint64_t{1} << 32), 3 * kTcpFragmentBytes), kTcpFragmentBytes);
  expect_refused(data(0, 3 * kTcpFragmentBytes), kTcpFragmentBytes);
  RendezvousHeader foreign = data(ticket, 3 * kTcpFragmentBytes);
  ++foreign.key;
  expect_refused(foreign, kTcpFragmentBytes);
  for (size_t i = 0; i < kNumFragments; ++i) {
    if (i != 2) say_fragment(ticket, i);
  }
  ASSERT_EQ(one.num_complete(), 1U);
  EXPECT_EQ(one.arrivals.front().bytes(), content);
  say_fragment(ticket, 3);
  EXPECT_EQ(one.num_refused, num_refused) << "a late message is not a protocol violation";
}

TEST_F(Fragments, rts_that_make_no_sense_are_refused) {
  say(rts(), bytes_of(LongMessage{.header = data(1, 0), .sender = kRawName, .num_bytes = kLong}));
  EXPECT_EQ(one.num_refused, 1U);
  one.num_refused = 0;
  send_rts(0);
  EXPECT_EQ(one.num_refused, 1U);
  const LongMessage message{.header = {}, .sender = kRawName, .num_bytes = kLong};
  Bytes longer = bytes_of(message);
  longer.push_back({});
  say(rts(), longer);
  EXPECT_EQ(one.num_refused, 2U);
  say(rts(), pattern(size_t{65} << 10, 1));
  EXPECT_EQ(one.num_refused, 3U);
  RendezvousHeader foreign = rts();
  ++foreign.key;
  say(foreign, bytes_of(message));
  EXPECT_EQ(one.num_refused, 4U);
  EXPECT_TRUE(one.arrivals.empty());
}

TEST_F(Fragments, answers_that_make_no_sense_are_refused_and_change_nothing) {
  const Transfer& send = one.send(to_raw, content);
  settle();
  ASSERT_EQ(heard().kind, MessageKind::kRts);
  EXPECT_EQ(heard().key, kRawName);
  const LongMessage message = latest_rts();
  EXPECT_EQ(message.sender, name_of_one());
  EXPECT_EQ(message.num_bytes, kLong);
  say(cts(number_of_rts() + 1, 1));
  say(cts(number_of_rts() + (uint64_t{1} << 32), 1));
  say(cts(number_of_rts(), 1), pattern(8, 1));
  say(nack(number_of_rts() + 1));
  say(nack(number_of_rts()), pattern(513, 1));  // longer than the limit for a reason
  EXPECT_EQ(one.num_refused, 5U);
  EXPECT_EQ(raw.arrivals.size(), 1U);
  say(cts(number_of_rts(), 77));
  ASSERT_TRUE(run([&] { return send.finished() && raw.arrivals.size() == 1 + kNumFragments; }));
  EXPECT_TRUE(send.status.ok()) << send.status.message();
  for (size_t i = 0; i < kNumFragments; ++i) {
    const Arrival& arrival = raw.arrivals[i + 1];
    const auto header = arrival.header.as<RendezvousHeader>();
    EXPECT_EQ(header.ticket, 77U);
    const size_t offset = header.offset;
    ASSERT_LE(offset + arrival.num_bytes, kLong);
    EXPECT_EQ(std::memcmp(arrival.bytes().data(), content.data() + offset, arrival.num_bytes), 0) << i;
  }
  say(cts(number_of_rts(), 78));
  EXPECT_EQ(one.num_refused, 5U) << "a late message is not a protocol violation";
}

TEST_F(Fragments, are_cleared_once) {
  one.send(to_raw, content);
  settle();
  const uint64_t number = number_of_rts();
  // Both requests arrive before the first fragment is sent, since progress() sends fragments.
  for (const uint64_t ticket : {1, 2}) {
    Transfer& transfer = said.emplace_back();
    raw.transport().send(to_one, cts(number, ticket), {}, transfer);
  }
  raw.transport().send(to_one, nack(number), {}, said.emplace_back());
  settle();
  EXPECT_EQ(one.num_refused, 2U);
  EXPECT_EQ(num_heard(MessageKind::kData), kNumFragments);
  EXPECT_EQ(heard().ticket, 1U);
}

TEST_F(Fragments, of_two_messages_take_turns) {
  one.send(to_raw, content);
  one.send(to_raw, content);
  settle();
  for (const size_t index : {0, 1}) {
    Transfer& transfer = said.emplace_back();
    raw.transport().send(to_one, cts(number_of_rts(index), index + 1), {}, transfer);
  }
  ASSERT_TRUE(run([&] { return num_heard(MessageKind::kData) == 2 * kNumFragments; }));
  for (size_t i = 0; i < 2 * kNumFragments; ++i)
    EXPECT_EQ(raw.arrivals[2 + i].header.as<RendezvousHeader>().ticket, 1 + i % 2) << i;
}

TEST_F(Fragments, keep_their_sender_awake) {
  one.send(to_raw, content);
  settle();
  while (!one.transport().arm()) one.transport().progress();
  EXPECT_FALSE(one.transport().holds_back());
  raw.transport().send(to_one, cts(number_of_rts(), 1), {}, said.emplace_back());
  while (num_heard(MessageKind::kData) == 0) {
    one.transport().progress();
    if (num_heard(MessageKind::kData) == 0 && one.transport().holds_back()) {
      EXPECT_FALSE(one.transport().arm());
    }
    raw.transport().progress();
  }
  settle();
  EXPECT_FALSE(one.transport().holds_back());
}

TEST_F(Fragments, end_with_their_receiver) {
  const Transfer& waiting = one.send(to_raw, content);
  const Transfer& cleared = one.send(to_raw, content);
  settle();
  raw.transport().send(to_one, cts(number_of_rts(1), 1), {}, said.emplace_back());
  fabric.kill(kRawProcess);
  ASSERT_TRUE(drive({&one}, [&] { return waiting.finished() && !one.lost.empty(); }));
  EXPECT_EQ(waiting.status.code(), ErrorCode::kPeerLost);
  EXPECT_TRUE(drive({&one}, [&] { return cleared.finished(); }));
  EXPECT_EQ(one.lost.size(), 1U);
  const Transfer& later = one.send(to_raw, content);
  EXPECT_TRUE(later.finished());
  EXPECT_EQ(later.status.code(), ErrorCode::kPeerLost);
}

TEST_F(Fragments, end_with_their_sender) {
  send_rts();
  say_fragment(heard().ticket, 0);
  one.policy = Node::Policy::kHold;
  send_rts();
  fabric.kill(kRawProcess);
  ASSERT_TRUE(drive({&one}, [&] { return one.num_complete() == 1; }));
  EXPECT_EQ(one.arrivals.front().fetch.status.code(), ErrorCode::kPeerLost);
  one.fetch(one.arrivals.back());
  EXPECT_EQ(one.arrivals.back().fetch.status.code(), ErrorCode::kPeerLost);
}

TEST_F(Fragments, end_with_a_peer_that_is_dropped) {
  const Transfer& sent = one.send(to_raw, content);
  settle();
  send_rts();
  const uint64_t ticket = heard().ticket;
  one.policy = Node::Policy::kHold;
  send_rts();
  one.transport().drop_peer(to_raw);
  EXPECT_FALSE(sent.finished()) << "a send must not end within drop_peer()";
  EXPECT_FALSE(one.transport().arm());
  one.transport().progress();
  EXPECT_EQ(sent.status.code(), ErrorCode::kPeerLost);
  ASSERT_EQ(one.num_complete(), 1U);
  EXPECT_EQ(one.arrivals.front().fetch.status.code(), ErrorCode::kPeerLost);
  one.transport().refuse(one.arrivals.back().rendezvous, Status());
  say_fragment(ticket, 0);
  EXPECT_EQ(one.arrivals.front().bytes(), Bytes(kLong)) << "the buffer was written after its transfer had ended";
  EXPECT_EQ(one.num_refused, 0U);
  EXPECT_TRUE(one.lost.empty());
}

TEST_F(Fragments, of_unknown_peers_are_not_fetched) {
  const LongMessage message{.header = {}, .sender = kRawName + 1, .num_bytes = kLong};
  say(rts(), bytes_of(message));
  ASSERT_EQ(one.num_complete(), 1U);
  EXPECT_EQ(one.arrivals.front().fetch.status.code(), ErrorCode::kPeerLost);
  one.policy = Node::Policy::kRefuse;
  say(rts(), bytes_of(message));
  EXPECT_EQ(one.arrivals.size(), 2U);
}

TEST_F(Fragments, fetched_into_memory_of_another_length_are_refused) {
  one.policy = Node::Policy::kHold;
  send_rts();
  Arrival& arrival = one.arrivals.front();
  arrival.num_bytes -= 1;
  one.fetch(arrival);
  EXPECT_EQ(arrival.fetch.status.code(), ErrorCode::kInternal);
  settle();
  EXPECT_EQ(heard().kind, MessageKind::kNack);
  EXPECT_EQ(heard().number, kNumber);
}

// Lets each send of an exchange fail, at once or in a later progress(): the RTS, the CTS, each fragment.
TEST(PartOfALongMessage, that_cannot_be_sent_ends_the_connection) {
  for (uint64_t failing = 1; failing <= 2 + kNumFragments; ++failing) {
    for (const bool fails_late : {false, true}) {
      LoopbackFabric fabric(FaultPlan{.largest_eager_num_bytes = size_t{64} << 10,
                                      .failing_send = failing,
                                      .fails_late = fails_late,
                                      .holds = {},
                                      .kills = {}});
      Node first{with_fragments(fabric.make_transport(), FragmentUse::kToAll)};
      Node second{with_fragments(fabric.make_transport(), FragmentUse::kToAll)};
      const PeerId forth = first.meet(second, false);
      second.meet(first, false);
      const Transfer& send = first.send(forth, pattern(kLong, 1));
      const auto is_lost = [&] { return first.lost.size() + second.lost.size() == 1; };
      ASSERT_TRUE(drive({&first, &second}, is_lost)) << failing << (fails_late ? " late" : " at once");
      fabric.kill(first.lost.empty() ? 1 : 0);  // a dropped peer finds its connection closed
      Node& other = first.lost.empty() ? first : second;
      ASSERT_TRUE(drive({&other}, [&] { return other.lost.size() == 1; }));
      EXPECT_TRUE(send.finished()) << failing;
      for (const Arrival& arrival : second.arrivals) EXPECT_TRUE(arrival.fetch.finished()) << failing;
    }
  }
}

// With rings above the fragments, as in a process's engine, holds_back() still reports the fragments' remaining work.
TEST(FragmentsBelowRings, hold_back) {
  LoopbackFabric fabric(FaultPlan{.largest_eager_num_bytes = size_t{64} << 10, .holds = {}, .kills = {}});
  const auto make = [&] {
    return with_rings(with_fragments(fabric.make_transport(), FragmentUse::kToAll), RingUse::kNever);
  };
  Node first{make()};
  Node second{make()};
  const PeerId forth = first.meet(second, false);
  second.meet(first, false);
  const Transfer& send = first.send(forth, pattern(100 * kTcpFragmentBytes, 1));
  size_t num_held_back = 0;
  while (!send.finished()) {
    first.transport().progress();
    if (first.transport().holds_back()) {
      ++num_held_back;
      EXPECT_FALSE(first.transport().arm());
    }
    second.transport().progress();
  }
  EXPECT_GE(num_held_back, 2U);
}

class UseOfFragments : public testing::TestWithParam<FragmentUse> {};

INSTANTIATE_TEST_SUITE_P(All, UseOfFragments,
                         testing::Values(FragmentUse::kNever, FragmentUse::kToOtherHosts, FragmentUse::kToAll));

// The loopback's lanes are not TCP, so it uses no fragments.
TEST_P(UseOfFragments, is_the_sender_s_choice) {
  LoopbackFabric fabric(FaultPlan{.largest_eager_num_bytes = size_t{64} << 10, .holds = {}, .kills = {}});
  Node first{with_fragments(fabric.make_transport(), GetParam())};
  Node second{with_fragments(fabric.make_transport(), FragmentUse::kToAll)};
  const PeerId forth = first.meet(second, false);
  const PeerId back = second.meet(first, false);
  first.send(forth, pattern(kLong, 1));
  second.send(back, pattern(kLong, 2));
  const auto is_over = [&] { return first.num_complete() == 1 && second.num_complete() == 1; };
  ASSERT_TRUE(drive({&first, &second}, is_over));
  EXPECT_EQ(second.arrivals.front().bytes(), pattern(kLong, 1));
  EXPECT_EQ(first.arrivals.front().bytes(), pattern(kLong, 2));
  const uint64_t num_sends_in_fragments = 2 + kNumFragments;
  EXPECT_EQ(fabric.num_sends(),
            num_sends_in_fragments + (GetParam() == FragmentUse::kToAll ? num_sends_in_fragments : 1));
}

TEST(FragmentAddress, without_a_name_is_none) {
  LoopbackFabric fabric;
  const auto transport = with_fragments(fabric.make_transport(), FragmentUse::kToAll);
  auto added = transport->add_peer(transport->address().first(7), false);
  ASSERT_FALSE(added.ok());
  EXPECT_EQ(added.status().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace axon::transport
