// Tests senders that are ahead of their receivers, on every transport. Beyond a bound their messages wait at the
// sender. They arrive complete and in order when the receiver posts its receives.
#include "messaging/flow_control.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "base/task.hpp"
#include "messaging/exchange.hpp"
#include "transport/networks.hpp"
#include "transport/node.hpp"

namespace axon::messaging {
namespace {

constexpr Allowance kSmall{.num_messages = 8, .num_bytes = 100'000};
constexpr transport::Fingerprint kMessage{.operation = transport::OperationKind::kPointToPoint,
                                          .dtype = DataType::kUint8};
constexpr transport::Fingerprint kGather{
    .operation = transport::OperationKind::kGather, .dtype = DataType::kUint8, .root = 0};

Task<Status> await(Exchange&, Batch& batch) {
  co_return co_await batch;
}

// A send or a receive with its own memory.
class Moving {
 public:
  Moving(Messenger& messenger, Inbox& inbox, uint32_t sequence, const transport::Fingerprint& fingerprint,
         transport::Bytes data)
      : bytes(std::move(data)),
        exchange(messenger, inbox, sequence, fingerprint),
        batch_(std::in_place, exchange),
        task_(await(exchange, *batch_)) {}

  void send(Message message) {
    batch_->send(message, {bytes.data(), bytes.size()});
    task_.resume();
  }
  void receive(Message message) {
    batch_->receive(message, {bytes.data(), bytes.size()});
    task_.resume();
  }
  bool done() const { return task_.done(); }
  Status status() { return task_.take(); }

  transport::Bytes bytes;
  Exchange exchange;

 private:
  std::optional<Batch> batch_;
  Task<Status> task_;
};

class Side final : LossListener, InboxListener {
 public:
  Side(std::unique_ptr<transport::Transport> transport, int rank) : transport_(std::move(transport)) {
    team_.rank = rank;
  }
  ~Side() {
    transfers_.clear();
    messenger_.detach(*inbox_);
    inbox_.reset();
  }

  std::span<const std::byte> address() const { return transport_->address(); }
  void meet(std::span<const std::byte> other, bool same_host) {
    team_.peers.push_back(transport_->add_peer(other, same_host).value());
    team_.keys.push_back(team_.peers.size());
  }
  void join(Allowance allowance) {
    inbox_.emplace(*transport_, messenger_.size_class_pool(), team_, static_cast<InboxListener&>(*this), allowance);
    messenger_.attach(*inbox_);
  }

  Moving& send(int to, uint32_t tag, transport::Bytes bytes) {
    Moving& made = make(0, kMessage, std::move(bytes));
    made.send({.peer = to, .slot = tag});
    messenger_.run_ready();
    return made;
  }
  Moving& receive(int from, uint32_t tag, size_t num_bytes) {
    Moving& made = make(0, kMessage, transport::Bytes(num_bytes));
    made.receive({.peer = from, .slot = tag});
    messenger_.run_ready();
    return made;
  }
  Moving& send_of_collective(uint32_t sequence, transport::Bytes bytes) {
    inbox_->enter(sequence, kGather);
    Moving& made = make(sequence, kGather, std::move(bytes));
    made.send({.peer = 1 - team_.rank});
    messenger_.run_ready();
    return made;
  }
  Moving& receive_of_collective(uint32_t sequence, size_t num_bytes) {
    inbox_->enter(sequence, kGather);
    Moving& made = make(sequence, kGather, transport::Bytes(num_bytes));
    made.receive({.peer = 1 - team_.rank});
    messenger_.run_ready();
    return made;
  }
  void fail(Moving& transfer) {
    transfer.exchange.fail({ErrorCode::kTimeout, "too late"});
    messenger_.run_ready();
  }

  unsigned progress() { return messenger_.progress(); }
  Inbox& inbox() { return *inbox_; }

 private:
  Moving& make(uint32_t sequence, const transport::Fingerprint& fingerprint, transport::Bytes bytes) {
    return transfers_.emplace_back(messenger_, *inbox_, sequence, fingerprint, std::move(bytes));
  }
  void on_control(const transport::ControlHeader&, const transport::Payload&) noexcept override {
    ADD_FAILURE() << "a control message";
  }
  void on_peer_lost(transport::PeerId, Status reason) noexcept override { ADD_FAILURE() << reason.message(); }
  Status on_mismatch(const transport::OperationHeader&, const transport::Fingerprint&) noexcept override {
    ADD_FAILURE() << "a mismatch";
    return Status();
  }
  void on_overflow(Status reason) noexcept override { ADD_FAILURE() << reason.message(); }
  bool has_ended(uint32_t) noexcept override { return false; }

  std::unique_ptr<transport::Transport> transport_;
  Messenger messenger_{*transport_, *this};
  Team team_;
  std::optional<Inbox> inbox_;
  std::list<Moving> transfers_;
};

class FlowControlTest : public testing::TestWithParam<transport::NetworkKind> {
 protected:
  FlowControlTest() {
    for (Side* side : {&first_, &second_}) {
      for (Side* other : {&first_, &second_}) side->meet(other->address(), side == other || network_->same_host());
      side->join(kSmall);
    }
  }
  ~FlowControlTest() override { settle(); }

  bool run(const std::function<bool()>& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      if (first_.progress() + second_.progress() == 0) sched_yield();
    }
    return true;
  }
  // Drives until nothing moves any more. A kernel network delivers within some rounds.
  void settle() {
    for (int num_quiet = 0; num_quiet < 2000;)
      num_quiet = first_.progress() + second_.progress() != 0 ? 0 : num_quiet + 1;
  }
  static size_t size_of(uint32_t number) {
    static constexpr size_t kSizes[]{60'000, 8, 7000, 0, 30'000, 300'000, 1, 65'536, 512};
    return kSizes[number % std::size(kSizes)];
  }
  std::vector<Moving*> send_ahead(uint32_t num_messages) {
    std::vector<Moving*> sends;
    for (uint32_t i = 0; i < num_messages; ++i) sends.push_back(&first_.send(1, 3, transport::pattern(size_of(i), i)));
    return sends;
  }
  void expect_received(Moving& receive, uint32_t number) {
    ASSERT_TRUE(run([&] { return receive.done(); })) << "message " << number;
    const Status status = receive.status();
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(receive.bytes, transport::pattern(size_of(number), number)) << "message " << number;
  }

  const std::unique_ptr<transport::Network> network_ = GetParam().make();
  Side first_{network_->make_transport(), 0};
  Side second_{network_->make_transport(), 1};
};

INSTANTIATE_TEST_SUITE_P(All, FlowControlTest,
                         testing::Values(transport::kLoopback, transport::kLoopbackWithFaults,
                                         transport::kUcxSharedMemory, transport::kUcxTcp, transport::kRails,
                                         transport::kRailsWithFaults, transport::kRailsTcp, transport::kRings,
                                         transport::kRingsCopies),
                         [](const auto& kind) { return std::string(kind.param.name); });

TEST_P(FlowControlTest, messages_beyond_the_allowance_wait_at_their_sender) {
  const std::vector<Moving*> sends = send_ahead(200);
  EXPECT_TRUE(run([&] { return std::ranges::any_of(sends, &Moving::done); }));  // the connection is established
  settle();
  size_t num_messages = 0, num_bytes = 0;
  for (const Moving* send : sends) {
    if (!send->done()) continue;
    ++num_messages;
    num_bytes += send->bytes.size();
  }
  EXPECT_LE(num_messages, kSmall.num_messages);
  EXPECT_LE(num_bytes, kSmall.num_bytes);
  EXPECT_EQ(sends.back()->exchange.ranks_short_of_credit(), std::vector<int>{1});
  EXPECT_EQ(first_.inbox().num_sent(1), kSmall.num_messages);
  for (uint32_t i = 0; i < sends.size(); ++i) expect_received(second_.receive(0, 3, size_of(i)), i);
  ASSERT_TRUE(run([&] { return std::ranges::all_of(sends, &Moving::done); }));
  for (Moving* send : sends) EXPECT_TRUE(send->status().ok());
}

TEST_P(FlowControlTest, receives_posted_before_let_everything_through) {
  std::vector<Moving*> receives;
  for (uint32_t i = 0; i < 200; ++i) {
    receives.push_back(&second_.receive(i % 2 == 0 ? 0 : kAnyRank, 3, size_of(i)));
  }
  const std::vector<Moving*> sends = send_ahead(200);
  for (uint32_t i = 0; i < receives.size(); ++i) expect_received(*receives[i], i);
  ASSERT_TRUE(run([&] { return std::ranges::all_of(sends, &Moving::done); }));
}

TEST_P(FlowControlTest, receives_in_another_order_than_the_sends_draw_them_out) {
  std::vector<Moving*> sends;
  for (uint32_t tag = 0; tag < 100; ++tag) sends.push_back(&first_.send(1, tag, transport::pattern(size_of(tag), tag)));
  settle();
  for (uint32_t tag = 100; tag-- > 0;) {
    expect_received(second_.receive(tag % 3 == 0 ? kAnyRank : 0, tag, size_of(tag)), tag);
  }
  ASSERT_TRUE(run([&] { return std::ranges::all_of(sends, &Moving::done); }));
}

TEST_P(FlowControlTest, a_collective_gets_past_sends_that_are_not_received) {
  Moving& early = second_.receive_of_collective(1, 4000);
  const std::vector<Moving*> sends = send_ahead(100);
  first_.send_of_collective(1, transport::pattern(4000, 1));
  ASSERT_TRUE(run([&] { return early.done(); }));
  EXPECT_EQ(early.bytes, transport::pattern(4000, 1));
  first_.send_of_collective(2, transport::pattern(4000, 2));
  settle();
  Moving& late = second_.receive_of_collective(2, 4000);
  ASSERT_TRUE(run([&] { return late.done(); }));
  EXPECT_EQ(late.bytes, transport::pattern(4000, 2));
  for (uint32_t i = 0; i < sends.size(); ++i) expect_received(second_.receive(0, 3, size_of(i)), i);
  ASSERT_TRUE(run([&] { return std::ranges::all_of(sends, &Moving::done); }));
}

TEST_P(FlowControlTest, a_rank_ahead_by_many_collectives_waits_for_the_others) {
  constexpr uint32_t kNumCollectives = 300;
  std::vector<Moving*> sends;
  for (uint32_t i = 1; i <= kNumCollectives; ++i) {
    sends.push_back(&first_.send_of_collective(i, transport::pattern(size_of(i), i)));
  }
  settle();
  EXPECT_LE(static_cast<size_t>(std::ranges::count_if(sends, &Moving::done)), kSmall.num_messages);
  for (uint32_t i = 1; i <= kNumCollectives; ++i) expect_received(second_.receive_of_collective(i, size_of(i)), i);
  ASSERT_TRUE(run([&] { return std::ranges::all_of(sends, &Moving::done); }));
}

TEST_P(FlowControlTest, sends_given_up_while_they_wait_leave_no_gap) {
  std::vector<Moving*> sends = send_ahead(60);
  settle();
  for (uint32_t i = kSmall.num_messages; i < 60; i += 2) {
    first_.fail(*sends[i]);
    EXPECT_TRUE(sends[i]->exchange.at_rest()) << "message " << i;
  }
  for (uint32_t i = 0; i < 60; ++i) {
    const bool is_given_up = i >= kSmall.num_messages && (i - kSmall.num_messages) % 2 == 0;
    if (!is_given_up) expect_received(second_.receive(0, 3, size_of(i)), i);
  }
  ASSERT_TRUE(run([&] { return std::ranges::all_of(sends, &Moving::done); }));
}

// The inbox is more than half full, so a receive draws no further messages. When there is room again, it does.
TEST_P(FlowControlTest, a_receive_that_found_no_room_draws_out_its_message_later) {
  static constexpr size_t kNumBytes = 60'000;
  const transport::Bytes bytes = transport::pattern(kNumBytes, 1);
  uint32_t num_held = 0;
  const auto hold_one = [&] {
    const transport::OperationHeader header{
        .key = 2, .fingerprint = kMessage, .source = 1, .destination = 1, .sequence = num_held, .slot = 9};
    second_.inbox().on_message(header, {.bytes = bytes.data(), .num_bytes = bytes.size()});
    ++num_held;
  };
  while (num_held * (kNumBytes + sizeof(Unexpected)) <= Inbox::kMostUnexpectedBytes / 2) hold_one();
  for (uint32_t i = 0; i < kSmall.num_messages; ++i) first_.send(1, 3, transport::pattern(8, i));
  first_.send(1, 4, transport::pattern(8, 100));
  settle();
  Moving& awaited = second_.receive(0, 4, 8);
  settle();
  EXPECT_FALSE(awaited.done());
  for (int i = 0; i < 2; ++i) second_.receive(1, 9, kNumBytes);
  ASSERT_TRUE(run([&] { return awaited.done(); }));
  EXPECT_EQ(awaited.bytes, transport::pattern(8, 100));
}

TEST_P(FlowControlTest, sends_to_the_own_rank_wait_as_others_do) {
  std::vector<Moving*> sends;
  for (uint32_t i = 0; i < 100; ++i) sends.push_back(&first_.send(0, 3, transport::pattern(size_of(i), i)));
  settle();
  EXPECT_LE(static_cast<size_t>(std::ranges::count_if(sends, &Moving::done)), kSmall.num_messages);
  for (uint32_t i = 0; i < sends.size(); ++i) expect_received(first_.receive(0, 3, size_of(i)), i);
  ASSERT_TRUE(run([&] { return std::ranges::all_of(sends, &Moving::done); }));
}

TEST(Allowance, bounds_what_a_rank_holds_for_all_others) {
  for (const int num_ranks : {1, 2, 3, 17, 64, 512}) {
    const Allowance each = Allowance::in_group_of(num_ranks);
    const auto num_others = static_cast<size_t>(std::max(num_ranks - 1, 1));
    EXPECT_GE(each.num_bytes, 2 * transport::Transport::kLargestEager) << num_ranks;
    EXPECT_LE(each.num_bytes * num_others, size_t{64} << 20) << num_ranks;
    EXPECT_LE(each.num_messages * num_others, size_t{1} << 18) << num_ranks;
    EXPECT_LE(num_others * (each.num_bytes + each.num_messages * sizeof(Unexpected)), Inbox::kMostUnexpectedBytes / 2)
        << num_ranks;
  }
  EXPECT_EQ(Allowance::in_group_of(2).num_bytes, size_t{4} << 20);
  EXPECT_EQ(Allowance::in_group_of(100'000).num_messages, 256u);
}

}  // namespace
}  // namespace axon::messaging
