// Tests one-sided transfers whose messages are delayed and reordered, and answers that no honest owner sends.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "comes_true.hpp"
#include "engine/progress.hpp"
#include "rpc/core/runtimes.hpp"
#include "transport/node.hpp"

namespace axon::rpc {
namespace {

using namespace std::chrono_literals;
using TransferPointer = Counted<Transfer>;

TransferPointer transfer_of(Transfer::Kind kind, const std::shared_ptr<Connection>& connection) {
  return TransferPointer::adopt(*new Transfer(kind, connection));
}

// Returns whether the transfer ends in time.
bool ends(const TransferPointer& transfer) {
  return transfer->connection()->one_sided().wait(*transfer, Clock::now() + 40s);
}

// The server exposes memory, and the client has opened it.
class ExposedMemory {
 public:
  explicit ExposedMemory(transport::FaultPlan plan, size_t num_bytes = 4096)
      : fabric(std::move(plan)), pair(engine::loopback_transports(fabric, 2)), memory(num_bytes), local(num_bytes) {
    region = pair.server_engine().exclusively([&] {
      Regions& regions = pair.server->exposed()->regions;
      regions.set_incarnation(2);
      const auto address = reinterpret_cast<uint64_t>(memory.data());
      return regions.expose({.name = "memory", .access = Access::kReadWrite, .extents = {{address, num_bytes}}}, {});
    });
  }
  ~ExposedMemory() { pair.server->revoke(*region); }

  TransferPointer opening() {
    auto opening = transfer_of(Transfer::Kind::kOpen, pair.to_server);
    opening->handle =
        pair.server->exposed()
            ->regions.handle(*region, {.offset = 0, .num_bytes = memory.size(), .access = Access::kReadWrite})
            .value();
    return opening;
  }

  std::shared_ptr<RemoteMemory> open() {
    const TransferPointer opening = this->opening();
    pair.to_server->one_sided().start(*opening);
    EXPECT_TRUE(ends(opening));
    EXPECT_TRUE(opening->status().ok()) << opening->status().message();
    return opening->opened();
  }

  TransferPointer start_write(const std::shared_ptr<RemoteMemory>& remote, size_t num_blocks, const char* tag) {
    auto write = transfer_of(Transfer::Kind::kWrite, pair.to_server);
    for (size_t i = 0; i < num_blocks; ++i) write->add(remote, 0, {local.data(), local.size()});
    if (tag != nullptr) write->notification = tag;
    pair.to_server->one_sided().start(*write);
    return write;
  }

  size_t num_notified() { return pair.server->exposed()->notifications.take(nullptr).size(); }

  transport::LoopbackFabric fabric;
  TwoRuntimes pair;
  transport::Bytes memory;
  transport::Bytes local;
  std::shared_ptr<Region> region;
};

class OneSidedTest : public testing::TestWithParam<transport::FaultPlan> {};
INSTANTIATE_TEST_SUITE_P(
    plans, OneSidedTest,
    testing::Values(transport::FaultPlan{.mailbox_capacity = 1 << 20},
                    transport::FaultPlan{
                        .seed = 3, .mailbox_capacity = 1 << 20, .pending = 0.3, .delay = 0.3, .reorder = 0.5}));

TEST_P(OneSidedTest, a_burst_of_writes_loses_no_notification) {
  ExposedMemory test(GetParam(), 64);
  const auto remote = test.open();
  constexpr size_t kNumWrites = 6000;
  std::vector<TransferPointer> writes;
  test.pair.client_engine().exclusively([&] {  // so that all of them begin at once
    for (size_t i = 0; i < kNumWrites; ++i) writes.push_back(test.start_write(remote, 1, "written"));
  });
  for (const TransferPointer& write : writes) {
    ASSERT_TRUE(ends(write));
    ASSERT_TRUE(write->status().ok()) << write->status().message();
  }
  EXPECT_EQ(test.num_notified(), kNumWrites);
}

TEST_P(OneSidedTest, cancelled_writes_occupy_no_slots) {
  ExposedMemory test(GetParam(), 64);
  const auto remote = test.open();
  size_t num_ended_well = 0;
  for (size_t round = 0; round < 1500; ++round) {
    std::vector<TransferPointer> writes;
    for (size_t i = 0; i < 8; ++i) writes.push_back(test.start_write(remote, 1 + i % 3, "written"));
    std::this_thread::sleep_for(round % 8 * 10us);
    for (const TransferPointer& write : writes) {
      test.pair.to_server->one_sided().cancel(*write);
      ASSERT_TRUE(ends(write)) << "round " << round;
      num_ended_well += write->status().ok();
    }
  }
  for (size_t i = 0; i < 300; ++i) {
    const TransferPointer write = test.start_write(remote, 1, "written");
    ASSERT_TRUE(ends(write)) << i;
    ASSERT_TRUE(write->status().ok()) << write->status().message();
    ++num_ended_well;
  }
  EXPECT_GE(test.num_notified(), num_ended_well);
}

TEST(OneSided, long_transfers_leave_slots_to_others) {
  ExposedMemory test({.mailbox_capacity = 1 << 20}, kLargestListed + 1);
  const auto remote = test.open();
  const TransferPointer large = test.start_write(remote, 4000, nullptr);
  std::vector<TransferPointer> small;
  for (size_t i = 0; i < 8; ++i) small.push_back(test.start_write(remote, 1, nullptr));
  ASSERT_TRUE(ends(large));
  ASSERT_TRUE(large->status().ok()) << large->status().message();
  for (const TransferPointer& each : small) {
    ASSERT_TRUE(ends(each));
    EXPECT_LT(each->time_moved(), large->time_moved() / 2);
  }
}

TEST(OneSided, a_notification_wakes_a_thread_that_only_follows) {
  ExposedMemory test({.mailbox_capacity = 1 << 20});
  const Clock::time_point began = Clock::now();
  sync::atomic<bool> arrived{false};
  ASSERT_TRUE(test.pair.server->exposed()->notifications.watch([&] { arrived.store(true); }));
  std::thread waiter(
      [&] { EXPECT_TRUE(test.pair.server_engine().wait(arrived, began + 30s, engine::Progress::kFollower)); });
  std::this_thread::sleep_for(1200ms);
  const auto notification = transfer_of(Transfer::Kind::kNotify, test.pair.to_server);
  notification->notification = "now";
  test.pair.to_server->one_sided().start(*notification);
  EXPECT_TRUE(ends(notification));
  waiter.join();
  EXPECT_LT(Clock::now() - began, 15s);
}

TEST(OneSided, answers_without_content_are_failures) {
  ExposedMemory test({.mailbox_capacity = 1 << 20});
  const auto remote = test.open();
  const TransferPointer opening = test.opening();
  const TransferPointer read = transfer_of(Transfer::Kind::kRead, test.pair.to_server);
  read->add(remote, 0, {test.local.data(), test.local.size()});
  test.pair.client_engine().exclusively([&] {
    Initiator& initiator = test.pair.to_server->one_sided().initiator();
    opening->retain();
    initiator.begin(*opening);
    read->retain();
    initiator.begin(*read);
    for (uint32_t number = 0; number < 4 * Initiator::kWindow; ++number) {  // all that are awaited
      initiator.on_done({.kind = transport::MessageKind::kDone, .number = number}, {});
    }
  });
  for (const TransferPointer& each : {opening, read}) {
    ASSERT_TRUE(ends(each));
    EXPECT_EQ(each->status().code(), ErrorCode::kTransport) << each->status().message();
  }
}

TEST(OneSided, a_revocation_may_overtake_its_grant) {
  ExposedMemory test({.mailbox_capacity = 1 << 20});
  const TransferPointer opening = test.opening();
  test.pair.client_engine().exclusively([&] {
    opening->retain();
    test.pair.to_server->one_sided().initiator().begin(*opening);
    test.pair.to_server->one_sided().initiator().on_revoke({.kind = transport::MessageKind::kRevoke, .grant = 1});
  });
  ASSERT_TRUE(ends(opening));
  ASSERT_TRUE(opening->status().ok()) << opening->status().message();
  ASSERT_EQ(opening->opened()->number(), 1u);
  EXPECT_TRUE(test.pair.client_engine().exclusively([&] { return opening->opened()->is_revoked; }));
}

// Notes whether its local memory was released before it was finished.
class Noting final : public Transfer {
 public:
  using Transfer::Transfer;
  std::atomic<bool> is_owned{true};
  std::atomic<bool> was_owned_at_end{true};

 private:
  void on_finished(const Status& /*status*/) noexcept override { was_owned_at_end.store(is_owned.load()); }
};

TEST(OneSided, local_memory_is_released_before_the_end_is_known) {
  ExposedMemory test({.mailbox_capacity = 1 << 20});
  const auto remote = test.open();
  const auto read = Counted<Noting>::adopt(*new Noting(Transfer::Kind::kRead, test.pair.to_server));
  read->add(remote, 0, {test.local.data(), test.local.size()});
  read->keep(Owner(&read->is_owned, [](void* flag) { static_cast<std::atomic<bool>*>(flag)->store(false); }));
  test.pair.to_server->one_sided().start(*read);
  ASSERT_TRUE(comes_true([&] { return read->finished(); }));
  EXPECT_FALSE(read->was_owned_at_end.load());
  EXPECT_TRUE(read->released());
}

// A read whose owner does not answer in time: the transfer fails first, and keeps its memory until it is safe.
TEST(OneSided, local_memory_of_a_late_transfer_is_kept_until_the_owner_has_taken_it) {
  ExposedMemory test({.largest_eager_num_bytes = 1000, .mailbox_capacity = 1 << 20});
  const auto remote = test.open();
  const auto write = Counted<Noting>::adopt(*new Noting(Transfer::Kind::kWrite, test.pair.to_server));
  write->timeout = 50ms;
  write->add(remote, 0, {test.local.data(), test.local.size()});
  write->keep(Owner(&write->is_owned, [](void* flag) { static_cast<std::atomic<bool>*>(flag)->store(false); }));
  test.pair.server_engine().exclusively([&] {  // so that the server does not fetch the data
    test.pair.to_server->one_sided().start(*write);
    ASSERT_TRUE(ends(Counted<Transfer>::share(*write)));
    EXPECT_EQ(write->status().code(), ErrorCode::kTimeout) << write->status().message();
    EXPECT_TRUE(write->was_owned_at_end.load());
    EXPECT_FALSE(write->released());
    EXPECT_TRUE(write->is_owned.load());
  });
  EXPECT_TRUE(comes_true([&] { return write->released(); }));
  EXPECT_FALSE(write->is_owned.load());
}

TEST(OneSided, holders_names_the_peer_that_does_not_take_its_bytes) {
  ExposedMemory test({.largest_eager_num_bytes = 1000, .mailbox_capacity = 1 << 20});
  const auto remote = test.open();
  const TransferPointer read = transfer_of(Transfer::Kind::kRead, test.pair.to_server);
  read->add(remote, 0, {test.local.data(), test.local.size()});
  test.pair.client_engine().exclusively([&] {  // so that the client does not fetch the data
    read->retain();
    test.pair.to_server->one_sided().initiator().begin(*read);
    const auto is_held = [&] { return test.pair.server->holders(*test.region) == std::vector<std::string>{"client"}; };
    EXPECT_TRUE(comes_true(is_held));
    test.pair.server->revoke(*test.region);
    EXPECT_FALSE(test.pair.server->is_at_rest(*test.region));
  });
  ASSERT_TRUE(ends(read));
  EXPECT_TRUE(read->status().ok()) << read->status().message();
  EXPECT_TRUE(comes_true([&] { return test.pair.server->is_at_rest(*test.region); }));
  EXPECT_TRUE(test.pair.server->holders(*test.region).empty());
}

TEST(OneSided, a_handle_is_shown_to_its_owner_only) {
  ExposedMemory test({.mailbox_capacity = 1 << 20});
  const TransferPointer opening = test.opening();
  opening->handle[32] ^= std::byte{1};         // the incarnation of the owner
  test.pair.server_engine().exclusively([&] {  // which cannot answer
    test.pair.to_server->one_sided().start(*opening);
    EXPECT_TRUE(ends(opening));
  });
  EXPECT_EQ(opening->status().code(), ErrorCode::kAccessDenied) << opening->status().message();
}

TEST(OneSided, a_wait_for_a_peers_notification_ignores_those_of_others) {
  ExposedMemory test({.mailbox_capacity = 1 << 20});
  Notifications& notifications = test.pair.server->exposed()->notifications;
  ASSERT_TRUE(notifications.push(test.pair.to_server, {}));  // a connection that is not the server's
  const auto until = [](std::chrono::milliseconds time) { return Clock::now() + time; };
  EXPECT_TRUE(notifications.wait(test.pair.server_engine(), nullptr, until(0ms)));
  EXPECT_FALSE(notifications.wait(test.pair.server_engine(), test.pair.to_client.get(), until(20ms)));
  const TransferPointer notification = transfer_of(Transfer::Kind::kNotify, test.pair.to_server);
  notification->notification = "mine";
  test.pair.to_server->one_sided().start(*notification);
  EXPECT_TRUE(notifications.wait(test.pair.server_engine(), test.pair.to_client.get(), until(30s)));
  const std::vector<Notification> taken = notifications.take(test.pair.to_client.get());
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0].tag, "mine");
  EXPECT_EQ(test.num_notified(), 1u);
}

TEST(OneSided, the_end_of_a_runtime_ends_the_wait_for_notifications) {
  ExposedMemory test({.mailbox_capacity = 1 << 20});
  Notifications& notifications = test.pair.server->exposed()->notifications;
  std::thread closing([&] {
    std::this_thread::sleep_for(20ms);
    test.pair.server->refuse_new();
  });
  EXPECT_TRUE(notifications.wait(test.pair.server_engine(), nullptr, Clock::now() + 60s));
  closing.join();
  EXPECT_TRUE(notifications.is_over(nullptr));
}

// A list or a tag that waits at its sender is answered, and not left to the timeout.
TEST(OneSided, a_tag_that_is_longer_than_a_message_fails) {
  ExposedMemory test({.largest_eager_num_bytes = 1000, .mailbox_capacity = 1 << 20});
  const TransferPointer notification = transfer_of(Transfer::Kind::kNotify, test.pair.to_server);
  notification->notification = std::string(2000, 't');
  test.pair.to_server->one_sided().start(*notification);
  ASSERT_TRUE(ends(notification));
  EXPECT_EQ(notification->status().code(), ErrorCode::kTransport) << notification->status().message();
}

TEST(OneSided, lists_are_no_longer_than_messages) {
  ExposedMemory test({.largest_eager_num_bytes = 1000, .mailbox_capacity = 1 << 20}, 64);
  const auto remote = test.open();
  for (const Transfer::Kind kind : {Transfer::Kind::kRead, Transfer::Kind::kWrite}) {
    const TransferPointer list = transfer_of(kind, test.pair.to_server);
    for (size_t i = 0; i < 200; ++i) list->add(remote, 0, {test.local.data(), test.local.size()});
    test.pair.to_server->one_sided().start(*list);
    ASSERT_TRUE(ends(list));
    EXPECT_TRUE(list->status().ok()) << list->status().message();
  }
}

// Says when it is destroyed.
class Watched final : public Transfer {
 public:
  Watched(std::shared_ptr<Connection> connection, std::atomic<bool>& is_gone)
      : Transfer(Kind::kRead, std::move(connection)), is_gone_(is_gone) {}
  ~Watched() override { is_gone_.store(true); }

 private:
  std::atomic<bool>& is_gone_;
};

TEST(OneSided, a_copy_in_steps_is_released_at_the_shut_down) {
  ExposedMemory test({.mailbox_capacity = 1 << 20}, 64 * Initiator::kStep);
  engine::Engine& engine = test.pair.server_engine();
  const auto [to_itself, from_itself] = test.pair.connect_server_to_itself();
  const TransferPointer opening = transfer_of(Transfer::Kind::kOpen, to_itself);
  opening->handle = test.opening()->handle;
  to_itself->one_sided().start(*opening);
  ASSERT_TRUE(ends(opening));
  ASSERT_TRUE(opening->status().ok()) << opening->status().message();
  ASSERT_EQ(opening->opened()->path(), RemoteMemory::Path::kMemcpy);
  std::atomic<bool> is_gone{false};
  {
    const auto read = Counted<Watched>::adopt(*new Watched(to_itself, is_gone));
    read->add(opening->opened(), 0, {test.local.data(), test.local.size()});
    read->retain();
    engine.exclusively([&] { to_itself->one_sided().initiator().begin(*read); });  // copies the first step
    engine.shut_down();
    EXPECT_TRUE(read->finished());
  }
  EXPECT_TRUE(is_gone.load());
}

TEST(OneSided, untaken_notifications_do_not_keep_their_connection) {
  std::weak_ptr<Connection> to_client;
  {
    ExposedMemory test({.mailbox_capacity = 1 << 20});
    const auto notification = transfer_of(Transfer::Kind::kNotify, test.pair.to_server);
    notification->notification = "not taken";
    test.pair.to_server->one_sided().start(*notification);
    ASSERT_TRUE(ends(notification));
    to_client = test.pair.to_client;
  }
  EXPECT_TRUE(to_client.expired());
}

TEST(OneSided, memory_may_be_given_back_after_the_engine_has_shut_down) {
  ExposedMemory test({.mailbox_capacity = 1 << 20}, 1 << 20);
  std::weak_ptr<RemoteMemory> remote;
  auto opened = test.open();
  remote = opened;
  test.pair.server_engine().exclusively([&] {  // so that the server does not fetch the data
    test.start_write(opened, 1, nullptr);
    opened.reset();
    test.pair.client_engine().shut_down();
  });
  EXPECT_TRUE(remote.expired());
}

// A peer that claims to be in this process, and sends the addresses of its choice.
TEST(OneSided, addresses_in_a_message_are_not_touched) {
  ExposedMemory test({.mailbox_capacity = 1 << 20});
  const engine::OwnAddress own = test.pair.client_engine().make_address();
  const engine::OwnAddress theirs = test.pair.client_engine().make_address();
  const auto claimed = test.pair.client
                           ->admit({.name = "claims",
                                    .incarnation = 3,
                                    .address = theirs.address(),
                                    .peer_key = theirs.address().key,
                                    .own_key = own.address().key})
                           .value();
  const GenerationFlag flag(nullptr);
  const GrantInfo info{.prefix = {.num_bytes = 64,
                                  .flag_value = flag.value(),
                                  .flag_address = flag.address(),
                                  .access = static_cast<uint32_t>(Access::kReadWrite),
                                  .num_extents = 1,
                                  .name_num_bytes = 4},
                       .extents = {{.address = reinterpret_cast<uint64_t>(test.memory.data()), .num_bytes = 64}},
                       .name = "fake"};
  const std::vector<std::byte> bytes = encode_grant(info);
  auto opening = transfer_of(Transfer::Kind::kOpen, claimed);
  opening->handle = RegionHandle{.access = Access::kReadWrite, .num_bytes = 64, .owner = 3}.encode(random_nonce());
  test.pair.client_engine().exclusively([&] {
    Initiator& initiator = claimed->one_sided().initiator();
    opening->retain();
    initiator.begin(*opening);
    const transport::Payload payload{.bytes = bytes.data(), .num_bytes = bytes.size()};
    initiator.on_grant({.kind = transport::MessageKind::kGrant, .number = Initiator::kWindow, .grant = 1}, payload);
  });
  ASSERT_TRUE(ends(opening));
  ASSERT_NE(opening->opened(), nullptr);
  EXPECT_EQ(opening->opened()->path(), RemoteMemory::Path::kMessages);
}

TEST(OneSided, a_peer_is_not_this_process_at_another_address) {
  ExposedMemory test({.mailbox_capacity = 1 << 20});
  engine::PeerAddress claim = test.pair.client_engine().make_address().address();
  claim.transport_address = test.pair.server_engine().make_address().address().transport_address;
  const auto admitted = test.pair.client->admit({.name = "claims", .incarnation = 3, .address = claim});
  EXPECT_EQ(admitted.status().code(), ErrorCode::kUnauthenticated);
}

TEST(OneSided, a_closed_runtime_exposes_nothing) {
  ExposedMemory test({.mailbox_capacity = 1 << 20});
  test.pair.server->refuse_new();
  const auto exposed = test.pair.server->expose({.name = "late", .extents = {{1, 1}}}, {});
  EXPECT_EQ(exposed.status().code(), ErrorCode::kAborted);
}

}  // namespace
}  // namespace axon::rpc
