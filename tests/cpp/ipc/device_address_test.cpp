#include "ipc/device_address.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace axon {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

DeviceCard example() {
  return {.incarnation = 0x1122334455667788,
          .host = 42,
          .pid = 4711,
          .descriptor = 99,
          .device_uuid = {1, 2, 3},
          .arena_num_bytes = 64 * kMiB,
          .edition = 3,
          .registrations = 0x7f0011223344,
          .slice = {.offset = 17 * kMiB, .num_bytes = 16 * kMiB}};
}

// The reason for which a card is refused.
std::string refusal(const std::vector<std::byte>& bytes) {
  Result<DeviceCard> card = DeviceCard::decode(bytes);
  return card.ok() ? "accepted" : card.status().message();
}

std::vector<std::byte> encoded(const DeviceCard& card) {
  const auto bytes = card.encode();
  return {bytes.begin(), bytes.end()};
}

TEST(DeviceCard, survives_the_way) {
  const DeviceCard sent = example();
  Result<DeviceCard> received = DeviceCard::decode(sent.encode());
  ASSERT_TRUE(received.ok()) << received.status().message();
  const DeviceCard& card = received.value();
  EXPECT_EQ(card.incarnation, sent.incarnation);
  EXPECT_EQ(card.host, sent.host);
  EXPECT_EQ(card.pid, sent.pid);
  EXPECT_EQ(card.descriptor, sent.descriptor);
  EXPECT_EQ(card.device_uuid, sent.device_uuid);
  EXPECT_EQ(card.arena_num_bytes, sent.arena_num_bytes);
  EXPECT_EQ(card.edition, sent.edition);
  EXPECT_EQ(card.registrations, sent.registrations);
  EXPECT_EQ(card.slice.offset, sent.slice.offset);
  EXPECT_EQ(card.slice.num_bytes, sent.slice.num_bytes);
}

TEST(DeviceCard, of_a_rank_without_an_arena_is_a_card) {
  EXPECT_EQ(refusal(encoded({})), "accepted");
}

TEST(DeviceCard, truncated_ones_are_refused) {
  const std::vector<std::byte> whole = encoded(example());
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_NE(refusal({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length)}).find("88 expected"),
              std::string::npos)
        << length;
  }
}

TEST(DeviceCard, foreign_bytes_and_other_versions_are_refused) {
  EXPECT_NE(refusal(std::vector<std::byte>(DeviceCard::kNumBytes)).find("not from torch_axon"), std::string::npos);
  std::vector<std::byte> later = encoded(example());
  later[4] = std::byte{77};
  EXPECT_NE(refusal(later).find("version 77"), std::string::npos);
}

TEST(DeviceCard, slices_outside_the_arena_are_refused) {
  DeviceCard card = example();
  for (const ArenaSlice slice :
       {ArenaSlice{64 * kMiB, kMiB}, ArenaSlice{60 * kMiB, 16 * kMiB}, ArenaSlice{65 * kMiB, 0},
        ArenaSlice{~size_t{0} - kMiB + 1, 2 * kMiB}, ArenaSlice{17 * kMiB + 8, kMiB}}) {
    card.slice = slice;
    EXPECT_NE(refusal(encoded(card)).find("none of an arena"), std::string::npos) << slice.offset;
  }
}

}  // namespace
}  // namespace axon
