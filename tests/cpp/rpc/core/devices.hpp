// An owner and an initiator of one-sided transfers, with a device each, for the tests of device memory.
//
//   Devices test({.mailbox_capacity = kRoom}, num_bytes);
//   expect_ok(test.start_staged(Transfer::Kind::kWrite, test.open(*test.region), num_bytes));
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <vector>

#include "rpc/core/fake_device.hpp"
#include "rpc/core/one_sided/staged_work.hpp"
#include "rpc/core/runtimes.hpp"
#include "transport/node.hpp"

namespace axon::rpc {

using TransferPointer = Counted<Transfer>;
using Bytes = std::vector<std::byte>;

inline Bytes random_bytes(size_t num_bytes, uint32_t seed) {
  std::mt19937 numbers(seed);
  Bytes bytes(num_bytes);
  for (std::byte& each : bytes) each = static_cast<std::byte>(numbers());
  return bytes;
}

inline TransferPointer transfer_of(Transfer::Kind kind, const std::shared_ptr<Connection>& connection) {
  return TransferPointer::adopt(*new Transfer(kind, connection));
}

inline bool ends(const TransferPointer& transfer) {
  return transfer->connection()->one_sided().wait(*transfer, Clock::now() + std::chrono::seconds(60));
}

// The server exposes memory of a device and of its host. The client has a device, too.
class Devices {
 public:
  explicit Devices(transport::FaultPlan plan, size_t num_bytes, size_t num_slots = 3)
      : server_device(num_slots),
        client_device(num_slots),
        fabric(std::move(plan)),
        pair(engine::loopback_transports(fabric, 2)),
        memory(num_bytes),
        host_memory(num_bytes),
        local(num_bytes) {
    memory.bytes = random_bytes(num_bytes, 1);
    host_memory = random_bytes(num_bytes, 2);
    local.bytes = random_bytes(num_bytes, 3);
    region = expose("device memory", {{.address = memory.address(), .num_bytes = num_bytes}}, &server_device);
    const auto address = reinterpret_cast<uint64_t>(host_memory.data());
    host_region = expose("host memory", {{.address = address, .num_bytes = num_bytes}}, nullptr);
  }
  ~Devices() {
    pair.server->revoke(*region);
    pair.server->revoke(*host_region);
  }

  std::shared_ptr<Region> expose(const char* name, std::vector<Extent> extents, Device* device) {
    return pair.server_engine().exclusively([&] {
      Regions& regions = pair.server->exposed()->regions;
      regions.set_incarnation(2);
      return regions.expose({.name = name,
                             .access = Access::kReadWrite,
                             .extents = std::move(extents),
                             .device = {.device = device, .location = {}, .mapped_addresses = {}}},
                            {});
    });
  }

  std::shared_ptr<RemoteMemory> open(const Region& of, const std::shared_ptr<Connection>& connection) {
    const TransferPointer opening = transfer_of(Transfer::Kind::kOpen, connection);
    const Regions::Range all{.offset = 0, .num_bytes = of.num_bytes(), .access = Access::kReadWrite};
    opening->handle = pair.server->exposed()->regions.handle(of, all).value();
    connection->one_sided().start(*opening);
    EXPECT_TRUE(ends(opening));
    EXPECT_TRUE(opening->status().ok()) << opening->status().message();
    return opening->opened();
  }
  std::shared_ptr<RemoteMemory> open(const Region& of) { return open(of, pair.to_server); }

  // Adds blocks of the client's device.
  void add(Transfer& transfer, std::vector<StagedWork::Block> blocks, const std::atomic<uint32_t>* start_flag = nullptr,
           Owner owner = {}) {
    uint64_t num_bytes = 0;
    for (const StagedWork::Block& block : blocks) {
      transfer.use(block.remote);
      num_bytes += block.num_bytes;
    }
    const size_t num_blocks = blocks.size();
    transfer.add(std::make_unique<StagedWork>(transfer, StagedWork::Parts{.device = &client_device,
                                                                          .slots = &client_device.slots_for_transfers(),
                                                                          .blocks = std::move(blocks),
                                                                          .owner = std::move(owner),
                                                                          .start_flag = start_flag,
                                                                          .flag_owner = {}}),
                 num_blocks, num_bytes);
  }

  TransferPointer start_staged(Transfer::Kind kind, const std::shared_ptr<RemoteMemory>& remote, uint64_t num_bytes,
                               const std::atomic<uint32_t>* start_flag = nullptr) {
    TransferPointer transfer = transfer_of(kind, pair.to_server);
    add(*transfer, {{.remote = remote, .offset = 0, .local = local.data(), .num_bytes = num_bytes}}, start_flag);
    pair.to_server->one_sided().start(*transfer);
    return transfer;
  }

  std::vector<Notification> notifications() { return pair.server->exposed()->notifications.take(nullptr); }

  // Declared first: the engines may use them until they end.
  FakeDevice server_device;
  FakeDevice client_device;
  transport::LoopbackFabric fabric;
  TwoRuntimes pair;
  FakeDevice::Memory memory;  // of the server's device
  Bytes host_memory;          // of the server
  FakeDevice::Memory local;   // of the client's device
  std::shared_ptr<Region> region;
  std::shared_ptr<Region> host_region;
};

inline void expect_ok(const TransferPointer& transfer) {
  ASSERT_TRUE(ends(transfer));
  EXPECT_TRUE(transfer->status().ok()) << transfer->status().message();
}

inline constexpr size_t kRoom = size_t{1} << 24;

}  // namespace axon::rpc
