// Tests staged transfers while other peers hold the slots of the process.
#include <gtest/gtest.h>

#include <vector>

#include "comes_true.hpp"
#include "rpc/core/devices.hpp"

namespace axon::rpc {
namespace {

using namespace std::chrono_literals;

constexpr size_t kNumSlots = 3;
constexpr size_t kNumBytes = 100'000;

// The client asks for data, and takes none of them.
TEST(StoppedPeers, leave_slots_of_the_owner_to_others) {
  Devices test({.largest_eager_num_bytes = 1000, .mailbox_capacity = kRoom}, kNumBytes, kNumSlots);
  const auto remote = test.open(*test.region);
  const auto [to_itself, from_itself] = test.pair.connect_server_to_itself();
  const auto own = test.open(*test.region, to_itself);
  Bytes here(kNumBytes);
  const auto read_of = [&](const std::shared_ptr<RemoteMemory>& from, const std::shared_ptr<Connection>& connection) {
    TransferPointer read = transfer_of(Transfer::Kind::kRead, connection);
    read->add(from, 0, {.data = here.data(), .num_bytes = here.size()});
    return read;
  };
  std::vector<TransferPointer> reads;
  test.pair.client_engine().exclusively([&] {  // so that the client does not fetch the data
    for (size_t i = 0; i < 2 * kNumSlots; ++i) {
      reads.push_back(read_of(remote, test.pair.to_server));
      reads.back()->retain();
      test.pair.to_server->one_sided().initiator().begin(*reads.back());
    }
    EXPECT_TRUE(comes_true([&] { return test.server_device.num_copies() == kNumSlots; }));
    const TransferPointer read = read_of(own, to_itself);
    read->timeout = 5s;
    to_itself->one_sided().start(*read);
    expect_ok(read);
    EXPECT_TRUE(here == test.memory.bytes);
  });
  for (const TransferPointer& each : reads) expect_ok(each);
}

// Holds slots on behalf of a peer that does not go on.
class Hoarder final : public StagingSlots::Waiter {
 public:
  Hoarder(engine::Engine& engine, FakeDevice& device, StagingSlots& slots) : Waiter(engine, 1000, device) {
    engine.exclusively([&] {
      for (size_t i = 0; i < kNumSlots; ++i) EXPECT_TRUE(slots.take(*this).has_value());
    });
  }

 private:
  void on_slot() noexcept override {}
  void on_no_slot(const Status& /*why*/) noexcept override {}
};

TEST(StoppedPeers, leave_slots_of_the_initiator_to_others) {
  Devices test({.mailbox_capacity = kRoom}, 3 * kSegmentNumBytes, kNumSlots);
  const auto remote = test.open(*test.region);
  const Hoarder hoarder(test.pair.client_engine(), test.client_device, test.client_device.slots_for_transfers());
  expect_ok(test.start_staged(Transfer::Kind::kWrite, remote, test.local.bytes.size()));
  EXPECT_TRUE(test.memory.bytes == test.local.bytes);
}

TEST(StoppedPeers, without_memory_a_transfer_fails_here) {
  Devices test({.mailbox_capacity = kRoom}, kNumBytes, kNumSlots);
  const auto remote = test.open(*test.region);
  const Hoarder hoarder(test.pair.client_engine(), test.client_device, test.client_device.slots_for_transfers());
  test.client_device.run_out_of_memory();
  const TransferPointer write = test.start_staged(Transfer::Kind::kWrite, remote, kNumBytes);
  ASSERT_TRUE(ends(write));
  EXPECT_EQ(write->status().code(), ErrorCode::kResourceExhausted);
  EXPECT_EQ(write->status().message(),
            "'server': the write of 100000 bytes of region 'device memory' failed: this process cannot pin 4 MiB of "
            "host memory for a segment: the host is out of memory");
  EXPECT_TRUE(comes_true([&] { return write->released(); }));
}

TEST(StoppedPeers, without_memory_a_request_fails_at_the_owner) {
  Devices test({.largest_eager_num_bytes = 1000, .mailbox_capacity = kRoom}, kNumBytes, kNumSlots);
  const auto remote = test.open(*test.region);
  const Hoarder hoarder(test.pair.server_engine(), test.server_device, test.server_device.slots_for_peers());
  test.server_device.run_out_of_memory();
  Bytes here(kNumBytes);
  for (const Transfer::Kind kind : {Transfer::Kind::kRead, Transfer::Kind::kWrite}) {
    const TransferPointer transfer = transfer_of(kind, test.pair.to_server);
    transfer->add(remote, 0, {.data = here.data(), .num_bytes = here.size()});
    test.pair.to_server->one_sided().start(*transfer);
    ASSERT_TRUE(ends(transfer));
    EXPECT_EQ(transfer->status().code(), ErrorCode::kResourceExhausted);
    EXPECT_NE(transfer->status().message().find(
                  "the process of the region cannot pin 4 MiB of host memory for a segment: the host is out of memory"),
              std::string::npos)
        << transfer->status().message();
    EXPECT_TRUE(comes_true([&] { return transfer->released(); }));
  }
}

}  // namespace
}  // namespace axon::rpc
