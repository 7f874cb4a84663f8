// Tests one-sided transfers of memory of a device, for which host memory stands in.
#include <gtest/gtest.h>

#include <random>
#include <thread>
#include <vector>

#include "comes_true.hpp"
#include "rpc/core/devices.hpp"

namespace axon::rpc {
namespace {

using namespace std::chrono_literals;

class DeviceRegionsTest : public testing::TestWithParam<transport::FaultPlan> {};
INSTANTIATE_TEST_SUITE_P(
    plans, DeviceRegionsTest,
    testing::Values(transport::FaultPlan{.mailbox_capacity = kRoom},
                    transport::FaultPlan{.largest_eager_num_bytes = 1000, .mailbox_capacity = kRoom},
                    transport::FaultPlan{
                        .seed = 5, .mailbox_capacity = kRoom, .pending = 0.3, .delay = 0.3, .reorder = 0.5}));

// Each of these moves all bytes in blocks of many lengths, shuffled, and compares both sides afterwards.
struct Cut {
  uint64_t offset = 0;
  uint64_t num_bytes = 0;
};

std::vector<Cut> cuts_of(size_t num_bytes, uint32_t seed) {
  std::mt19937 numbers(seed);
  constexpr uint64_t kLengths[] = {1, 7, 64, 1000, 4096, 32'768, 32'769, 65'536, 1'000'003, 5'000'001};
  std::vector<Cut> cuts;
  for (uint64_t offset = 0; offset < num_bytes;) {
    const uint64_t length = std::min(kLengths[numbers() % std::size(kLengths)], num_bytes - offset);
    cuts.push_back({.offset = offset, .num_bytes = length});
    offset += length;
  }
  std::ranges::shuffle(cuts, numbers);
  return cuts;
}

constexpr size_t kNumBytes = 3 * kSegmentNumBytes + 12'345;

TEST_P(DeviceRegionsTest, host_memory_here_and_device_memory_there) {
  Devices test(GetParam(), kNumBytes);
  const auto remote = test.open(*test.region);
  EXPECT_TRUE(remote->is_device());
  Bytes here = random_bytes(kNumBytes, 7);
  const TransferPointer write = transfer_of(Transfer::Kind::kWrite, test.pair.to_server);
  for (const Cut& cut : cuts_of(kNumBytes, 11)) {
    write->add(remote, cut.offset, {.data = here.data() + cut.offset, .num_bytes = cut.num_bytes});
  }
  write->notification = "written";
  test.pair.to_server->one_sided().start(*write);
  expect_ok(write);
  EXPECT_TRUE(test.memory.bytes == here);
  EXPECT_EQ(test.notifications().size(), 1u);
  Bytes came(kNumBytes);
  const TransferPointer read = transfer_of(Transfer::Kind::kRead, test.pair.to_server);
  for (const Cut& cut : cuts_of(kNumBytes, 12)) {
    read->add(remote, cut.offset, {.data = came.data() + cut.offset, .num_bytes = cut.num_bytes});
  }
  test.pair.to_server->one_sided().start(*read);
  expect_ok(read);
  EXPECT_TRUE(came == here);
}

TEST_P(DeviceRegionsTest, device_memory_here) {
  Devices test(GetParam(), kNumBytes);
  for (const bool is_of_device : {false, true}) {
    const auto remote = test.open(is_of_device ? *test.region : *test.host_region);
    const Bytes& there = is_of_device ? test.memory.bytes : test.host_memory;
    const auto move_all = [&](Transfer::Kind kind, uint32_t seed) {
      const TransferPointer transfer = transfer_of(kind, test.pair.to_server);
      std::vector<StagedWork::Block> blocks;
      for (const Cut& cut : cuts_of(kNumBytes, seed)) {
        blocks.push_back({.remote = remote,
                          .offset = cut.offset,
                          .local = test.local.data() + cut.offset,
                          .num_bytes = cut.num_bytes});
      }
      test.add(*transfer, std::move(blocks));
      test.pair.to_server->one_sided().start(*transfer);
      expect_ok(transfer);
      EXPECT_EQ(transfer->num_bytes(), kNumBytes);
      EXPECT_TRUE(comes_true([&] { return transfer->released(); }));
    };
    test.local.bytes = random_bytes(kNumBytes, 21);
    move_all(Transfer::Kind::kWrite, 22);
    EXPECT_TRUE(there == test.local.bytes);
    test.local.bytes = random_bytes(kNumBytes, 23);
    move_all(Transfer::Kind::kRead, 24);
    EXPECT_TRUE(there == test.local.bytes);
  }
}

TEST_P(DeviceRegionsTest, transfers_of_both_kinds_of_memory_are_one) {
  Devices test(GetParam(), kNumBytes);
  const auto on_device = test.open(*test.region);
  const auto on_host = test.open(*test.host_region);
  const Bytes here = random_bytes(1000, 31);
  const TransferPointer write = transfer_of(Transfer::Kind::kWrite, test.pair.to_server);
  Bytes local_host = here;
  for (uint64_t i = 0; i < 10; ++i) {  // lists may not mix them
    write->add(i % 2 == 0 ? on_device : on_host, 100 * i, {.data = local_host.data() + 100 * i, .num_bytes = 100});
  }
  test.add(*write, {{.remote = on_device, .offset = 5000, .local = test.local.data(), .num_bytes = 6'000'000},
                    {.remote = on_host, .offset = 5000, .local = test.local.data(), .num_bytes = 6'000'000}});
  write->notification = "all";
  test.pair.to_server->one_sided().start(*write);
  expect_ok(write);
  EXPECT_EQ(test.notifications().size(), 1u);
  for (uint64_t i = 0; i < 10; ++i) {
    const Bytes& there = i % 2 == 0 ? test.memory.bytes : test.host_memory;
    EXPECT_TRUE(std::equal(here.begin() + 100 * i, here.begin() + 100 * (i + 1), there.begin() + 100 * i)) << i;
  }
  for (const Bytes* there : {&test.memory.bytes, &test.host_memory}) {
    EXPECT_TRUE(std::equal(there->begin() + 5000, there->begin() + 6'005'000, test.local.bytes.begin()));
  }
}

TEST(DeviceRegions, one_slot_serves_many_transfers) {
  Devices test({.mailbox_capacity = kRoom}, 2 * kSegmentNumBytes, 1);
  const auto on_device = test.open(*test.region);
  const auto on_host = test.open(*test.host_region);
  std::vector<TransferPointer> transfers;
  for (size_t i = 0; i < 24; ++i) {
    transfers.push_back(
        test.start_staged(Transfer::Kind::kWrite, i % 2 == 0 ? on_device : on_host, test.local.bytes.size()));
  }
  for (const TransferPointer& each : transfers) expect_ok(each);
  EXPECT_TRUE(test.memory.bytes == test.local.bytes);
  EXPECT_TRUE(test.host_memory == test.local.bytes);
}

TEST(DeviceRegions, a_transfer_starts_after_its_flag) {
  Devices test({.mailbox_capacity = kRoom}, 1000);
  const auto remote = test.open(*test.region);
  const Bytes before = test.memory.bytes;
  std::atomic<uint32_t> flag{0};
  const TransferPointer write = test.start_staged(Transfer::Kind::kWrite, remote, 1000, &flag);
  const TransferPointer other = test.start_staged(Transfer::Kind::kWrite, test.open(*test.host_region), 1000);
  expect_ok(other);
  EXPECT_FALSE(write->finished());
  EXPECT_TRUE(test.memory.bytes == before);
  flag.store(1);
  expect_ok(write);
  EXPECT_TRUE(test.memory.bytes == test.local.bytes);
}

TEST(DeviceRegions, a_transfer_that_waits_for_its_flag_can_be_cancelled) {
  Devices test({.mailbox_capacity = kRoom}, 1000);
  const auto remote = test.open(*test.region);
  const Bytes before = test.memory.bytes;
  std::atomic<uint32_t> flag{0};
  const TransferPointer write = test.start_staged(Transfer::Kind::kWrite, remote, 1000, &flag);
  test.pair.to_server->one_sided().cancel(*write);
  ASSERT_TRUE(ends(write));
  EXPECT_EQ(write->status().code(), ErrorCode::kCancelled);
  EXPECT_TRUE(comes_true([&] { return write->released(); }));
  EXPECT_TRUE(test.memory.bytes == before);
}

TEST(DeviceRegions, local_memory_of_a_late_transfer_is_kept_until_its_device_has_copied) {
  Devices test({.mailbox_capacity = kRoom}, 1000);
  const auto remote = test.open(*test.region);
  std::atomic<bool> is_owned{true};
  const TransferPointer write = transfer_of(Transfer::Kind::kWrite, test.pair.to_server);
  write->timeout = 50ms;
  test.add(*write, {{.remote = remote, .offset = 0, .local = test.local.data(), .num_bytes = 1000}}, nullptr,
           Owner(&is_owned, [](void* flag) { static_cast<std::atomic<bool>*>(flag)->store(false); }));
  test.client_device.hold();
  test.pair.to_server->one_sided().start(*write);
  ASSERT_TRUE(ends(write));
  EXPECT_EQ(write->status().code(), ErrorCode::kTimeout) << write->status().message();
  EXPECT_NE(write->status().message().find("region 'device memory'"), std::string::npos) << write->status().message();
  EXPECT_FALSE(write->released());
  EXPECT_TRUE(is_owned.load());
  test.client_device.let_go();
  EXPECT_TRUE(comes_true([&] { return write->released(); }));
  EXPECT_FALSE(is_owned.load());
  expect_ok(test.start_staged(Transfer::Kind::kRead, remote, 1000));  // its slot is free again
}

TEST(DeviceRegions, a_region_is_at_rest_once_its_device_has_copied) {
  Devices test({.mailbox_capacity = kRoom}, 1000);
  const auto remote = test.open(*test.region);
  test.server_device.hold();
  const TransferPointer write = test.start_staged(Transfer::Kind::kWrite, remote, 1000);
  EXPECT_TRUE(comes_true([&] { return !test.pair.server->holders(*test.region).empty(); }));
  test.pair.server->revoke(*test.region);
  EXPECT_FALSE(test.pair.server->is_at_rest(*test.region));
  EXPECT_EQ(test.pair.server->holders(*test.region), std::vector<std::string>{"client"});
  test.server_device.let_go();
  expect_ok(write);
  EXPECT_TRUE(comes_true([&] { return test.pair.server->is_at_rest(*test.region); }));
}

TEST(DeviceRegions, a_closed_region_fails_a_long_transfer_and_frees_the_slots) {
  Devices test({.mailbox_capacity = kRoom}, 8 * kSegmentNumBytes, 2);
  const auto remote = test.open(*test.region);
  const auto on_host = test.open(*test.host_region);
  const TransferPointer write = test.start_staged(Transfer::Kind::kWrite, remote, test.local.bytes.size());
  EXPECT_TRUE(comes_true([&] { return test.server_device.num_copies() > 0; }));
  test.pair.server->revoke(*test.region);
  ASSERT_TRUE(ends(write));
  if (!write->status().ok()) {
    EXPECT_EQ(write->status().code(), ErrorCode::kAccessDenied) << write->status().message();
    EXPECT_NE(write->status().message().find("'server'"), std::string::npos) << write->status().message();
    EXPECT_NE(write->status().message().find("region 'device memory'"), std::string::npos) << write->status().message();
  }
  EXPECT_TRUE(comes_true([&] { return test.pair.server->is_at_rest(*test.region); }));
  expect_ok(test.start_staged(Transfer::Kind::kWrite, on_host, test.local.bytes.size()));
  EXPECT_TRUE(test.host_memory == test.local.bytes);
}

TEST(DeviceRegions, a_device_that_fails_is_named) {
  Devices test({.mailbox_capacity = kRoom}, 1000);
  const auto remote = test.open(*test.region);
  test.server_device.break_down();
  Bytes here(1000);
  for (const Transfer::Kind kind : {Transfer::Kind::kRead, Transfer::Kind::kWrite}) {
    const TransferPointer transfer = transfer_of(kind, test.pair.to_server);
    transfer->add(remote, 0, {.data = here.data(), .num_bytes = here.size()});
    test.pair.to_server->one_sided().start(*transfer);
    ASSERT_TRUE(ends(transfer));
    EXPECT_NE(transfer->status().message().find("region 'device memory' failed: the device is broken"),
              std::string::npos)
        << transfer->status().message();
  }
  test.client_device.break_down();
  const TransferPointer write = test.start_staged(Transfer::Kind::kWrite, test.open(*test.host_region), 1000);
  ASSERT_TRUE(ends(write));
  EXPECT_EQ(write->status().code(), ErrorCode::kInternal);
  EXPECT_EQ(write->status().message(),
            "'server': the write of 1000 bytes of region 'host memory' failed: the device is broken");
}

// Notes which thread runs the callback of its user.
class Called final : public Transfer {
 public:
  using Transfer::Transfer;
  std::atomic<std::thread::id> thread;

 private:
  void on_finished(const Status& /*status*/) noexcept override { thread.store(std::this_thread::get_id()); }
};

// Callbacks may wait for Python's lock, and other copies wait for the device's thread.
TEST(DeviceRegions, the_thread_of_a_device_calls_no_callback) {
  Devices test({.mailbox_capacity = kRoom}, 1000);
  const auto remote = test.open(*test.region);
  test.client_device.break_down();  // a copy that fails at once could end the transfer on the device's thread
  for (int round = 0; round < 100; ++round) {
    const auto write = Counted<Called>::adopt(*new Called(Transfer::Kind::kWrite, test.pair.to_server));
    test.add(*write, {{.remote = remote, .offset = 0, .local = test.local.data(), .num_bytes = 1000}});
    test.pair.to_server->one_sided().start(*write);
    ASSERT_TRUE(comes_true([&] { return write->finished(); }));
    ASSERT_NE(write->thread.load(), test.client_device.thread_id()) << "round " << round;
  }
}

TEST(DeviceRegions, the_end_of_the_peer_ends_a_transfer_and_frees_the_slots) {
  Devices test({.mailbox_capacity = kRoom}, 8 * kSegmentNumBytes, 2);
  const auto remote = test.open(*test.region);
  const TransferPointer write = test.start_staged(Transfer::Kind::kWrite, remote, test.local.bytes.size());
  EXPECT_TRUE(comes_true([&] { return test.server_device.num_copies() > 0; }));
  test.pair.to_client->close(Clock::now());
  ASSERT_TRUE(ends(write));
  EXPECT_TRUE(write->status().ok() || write->status().code() == ErrorCode::kPeerLost) << write->status().message();
  EXPECT_TRUE(comes_true([&] { return write->released(); }));
  test.pair.meet();
  expect_ok(test.start_staged(Transfer::Kind::kWrite, test.open(*test.region), 9'000'000));
}

// A request occupies memory, and its copy a device: neither is of use to a peer that has left.
TEST(DeviceRegions, requests_that_wait_for_a_slot_end_with_their_connection) {
  Devices test({.largest_eager_num_bytes = 1000, .mailbox_capacity = kRoom}, 100'000, 1);
  const auto remote = test.open(*test.region);
  test.server_device.hold();
  std::vector<TransferPointer> transfers;
  for (size_t i = 0; i < 20; ++i) {  // their data wait at the client
    for (const Transfer::Kind kind : {Transfer::Kind::kWrite, Transfer::Kind::kRead}) {
      transfers.push_back(transfer_of(kind, test.pair.to_server));
      transfers.back()->add(remote, 0, {.data = test.host_memory.data(), .num_bytes = test.host_memory.size()});
      test.pair.to_server->one_sided().start(*transfers.back());
    }
  }
  const auto num_requests = [&] {
    return test.pair.server_engine().exclusively(
        [&] { return test.pair.to_client->one_sided().target().num_in_flight(); });
  };
  EXPECT_TRUE(comes_true([&] { return num_requests() == transfers.size(); }));
  test.pair.to_client->close(Clock::now());
  EXPECT_TRUE(comes_true([&] { return num_requests() == 1; }));  // the one that has the slot
  test.server_device.let_go();
  for (const TransferPointer& each : transfers) {
    ASSERT_TRUE(ends(each));
    EXPECT_TRUE(comes_true([&] { return each->released(); }));
  }
  EXPECT_TRUE(comes_true([&] { return num_requests() == 0; }));
  EXPECT_EQ(test.server_device.num_copies(), 1u);
}

// What no honest initiator sends. The requests are refused, and the next ones are served.
TEST(DeviceRegions, requests_that_no_slot_can_take_are_refused) {
  Devices test({.mailbox_capacity = kRoom}, 2 * kSegmentNumBytes);
  const auto on_device = test.open(*test.region);
  const auto on_host = test.open(*test.host_region);
  const Bytes before = test.memory.bytes;
  const Bytes host_before = test.host_memory;
  const auto receive = [&](transport::MessageKind kind, uint64_t num_bytes, const Bytes& payload) {
    test.pair.server_engine().exclusively([&] {
      const transport::OneSidedHeader header{
          .kind = kind, .number = 1, .grant = on_device->number(), .num_bytes = num_bytes};
      test.pair.to_client->one_sided().on_message(header, {.bytes = payload.data(), .num_bytes = payload.size()});
      EXPECT_TRUE(test.pair.to_client->one_sided().is_idle());
    });
  };
  const auto table_of = [&](std::vector<ListEntry> entries, size_t num_bytes) {
    Bytes bytes;
    append_table(bytes, entries);
    bytes.resize(bytes.size() + num_bytes);
    return bytes;
  };
  const std::vector<ListEntry> mixed{{.grant = on_device->number(), .num_bytes = 10, .offset = 0},
                                     {.grant = on_host->number(), .num_bytes = 10, .offset = 0}};
  using enum transport::MessageKind;
  receive(kWrite, kSegmentNumBytes + 1, Bytes(kSegmentNumBytes + 1));
  receive(kWrite, 10, Bytes(9));
  receive(kRead, kSegmentNumBytes + 1, {});
  receive(kScatter, 0, table_of(mixed, 20));
  receive(kScatter, 0, table_of({{.grant = on_device->number(), .num_bytes = 10, .offset = UINT64_MAX}}, 10));
  receive(kGather, 0, table_of({mixed[1], mixed[0]}, 0));
  EXPECT_TRUE(test.memory.bytes == before);
  EXPECT_TRUE(test.host_memory == host_before);
  EXPECT_EQ(test.server_device.num_copies(), 0u);
  expect_ok(test.start_staged(Transfer::Kind::kWrite, on_device, test.local.bytes.size()));
  EXPECT_TRUE(test.memory.bytes == test.local.bytes);
}

TEST(DeviceRegions, engines_may_end_while_devices_copy) {
  Devices test({.mailbox_capacity = kRoom}, 3 * kSegmentNumBytes);
  const auto remote = test.open(*test.region);
  test.server_device.hold();
  const TransferPointer write = test.start_staged(Transfer::Kind::kWrite, remote, test.local.bytes.size());
  EXPECT_TRUE(comes_true([&] { return !test.pair.server->holders(*test.region).empty(); }));
  test.client_device.hold();
  const TransferPointer read = test.start_staged(Transfer::Kind::kWrite, remote, test.local.bytes.size());
  test.pair.client_engine().shut_down();
  test.pair.server_engine().shut_down();
  EXPECT_TRUE(write->finished());
  EXPECT_TRUE(read->finished());
  test.client_device.let_go();
  test.server_device.let_go();
  EXPECT_TRUE(comes_true([&] { return test.client_device.is_idle() && test.server_device.is_idle(); }));
}

}  // namespace
}  // namespace axon::rpc
