#include "ipc/device_address.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace axon::ipc {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

DeviceAddress example() {
  return {.incarnation = 0x1122334455667788,
          .host = 42,
          .pid = 4711,
          .descriptor = 99,
          .device_uuid = {1, 2, 3},
          .arena_num_bytes = 64 * kMiB,
          .edition = 3,
          .export_table = 0x7f0011223344,
          .slice = {.offset = 17 * kMiB, .num_bytes = 16 * kMiB}};
}

// Returns the reason for which an address is refused.
std::string refusal(const std::vector<std::byte>& bytes) {
  Result<DeviceAddress> address = DeviceAddress::decode(bytes);
  return address.ok() ? "accepted" : address.status().message();
}

std::vector<std::byte> encoded(const DeviceAddress& address) {
  const auto bytes = address.encode();
  return {bytes.begin(), bytes.end()};
}

TEST(DeviceAddress, survives_the_way) {
  const DeviceAddress sent = example();
  Result<DeviceAddress> received = DeviceAddress::decode(sent.encode());
  ASSERT_TRUE(received.ok()) << received.status().message();
  const DeviceAddress& address = received.value();
  EXPECT_EQ(address.incarnation, sent.incarnation);
  EXPECT_EQ(address.host, sent.host);
  EXPECT_EQ(address.pid, sent.pid);
  EXPECT_EQ(address.descriptor, sent.descriptor);
  EXPECT_EQ(address.device_uuid, sent.device_uuid);
  EXPECT_EQ(address.arena_num_bytes, sent.arena_num_bytes);
  EXPECT_EQ(address.edition, sent.edition);
  EXPECT_EQ(address.export_table, sent.export_table);
  EXPECT_EQ(address.slice.offset, sent.slice.offset);
  EXPECT_EQ(address.slice.num_bytes, sent.slice.num_bytes);
}

TEST(DeviceAddress, of_a_rank_without_an_arena_is_an_address) {
  EXPECT_EQ(refusal(encoded({})), "accepted");
}

TEST(DeviceAddress, truncated_ones_are_refused) {
  const std::vector<std::byte> whole = encoded(example());
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_NE(refusal({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length)}).find("88 expected"),
              std::string::npos)
        << length;
  }
}

TEST(DeviceAddress, foreign_bytes_and_other_versions_are_refused) {
  EXPECT_NE(refusal(std::vector<std::byte>(DeviceAddress::kNumBytes)).find("not from torch_axon"), std::string::npos);
  std::vector<std::byte> later = encoded(example());
  later[4] = std::byte{77};
  EXPECT_NE(refusal(later).find("version 77"), std::string::npos);
}

TEST(DeviceAddress, slices_outside_the_arena_are_refused) {
  DeviceAddress address = example();
  for (const ArenaSlice slice :
       {ArenaSlice{64 * kMiB, kMiB}, ArenaSlice{60 * kMiB, 16 * kMiB}, ArenaSlice{65 * kMiB, 0},
        ArenaSlice{~size_t{0} - kMiB + 1, 2 * kMiB}, ArenaSlice{17 * kMiB + 8, kMiB}}) {
    address.slice = slice;
    EXPECT_NE(refusal(encoded(address)).find("not within an arena"), std::string::npos) << slice.offset;
  }
}

}  // namespace
}  // namespace axon::ipc
