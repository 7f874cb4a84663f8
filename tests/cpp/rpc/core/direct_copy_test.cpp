// Tests copies from and to memory that a peer exposes, and grants that name memory which this process cannot map.
#include "rpc/core/one_sided/direct_copy.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>

#include "memory/mappable_memory.hpp"
#include "rpc/core/one_sided/messages.hpp"
#include "rpc/core/one_sided/remote_memory.hpp"
#include "rpc/core/runtimes.hpp"
#include "transport/node.hpp"

namespace axon::rpc {
namespace {

constexpr uint64_t kExposed = 17;

uint64_t address_of(const void* memory) {
  return reinterpret_cast<uint64_t>(memory);
}

class MemoryCopyTest : public testing::Test {
 protected:
  MemoryCopy copy(MemoryCopy::Direction direction, uint64_t shift = 0) {
    return {direction, {.flag = &flag, .flag_value = kExposed, .shift = shift}};
  }

  std::atomic<uint64_t> flag{kExposed};
  std::array<std::byte, 8> remote{std::byte{1}};
  std::array<std::byte, 8> local{std::byte{2}};
};

TEST_F(MemoryCopyTest, goes_in_both_directions) {
  MemoryCopy from = copy(MemoryCopy::Direction::kFromPeer);
  from.add(address_of(remote.data()), local.data(), 8);
  EXPECT_EQ(from.run(), CopyOutcome::kCopied);
  EXPECT_EQ(local[0], std::byte{1});
  local[1] = std::byte{3};
  MemoryCopy to = copy(MemoryCopy::Direction::kToPeer, 1000);
  to.add(address_of(&remote[1]) - 1000, &local[1], 1);
  EXPECT_EQ(to.run(), CopyOutcome::kCopied);
  EXPECT_EQ(remote[1], std::byte{3});
}

TEST_F(MemoryCopyTest, moves_nothing_of_a_closed_region) {
  flag = 0;
  MemoryCopy to = copy(MemoryCopy::Direction::kToPeer);
  to.add(address_of(remote.data()), local.data(), 8);
  EXPECT_EQ(to.run(), CopyOutcome::kRevoked);
  EXPECT_EQ(remote[0], std::byte{1});
}

TEST_F(MemoryCopyTest, finds_a_region_that_is_closed_meanwhile) {
  MemoryCopy from = copy(MemoryCopy::Direction::kFromPeer);
  from.add(address_of(remote.data()), reinterpret_cast<std::byte*>(&flag), 8);  // the copy itself changes the flag
  EXPECT_EQ(from.run(), CopyOutcome::kRevoked);
}

class MappedGrant : public testing::Test {
 protected:
  GrantInfo grant() const {
    return {.prefix = {.num_bytes = 64,
                       .flag_value = kExposed,
                       .access = static_cast<uint32_t>(Access::kReadWrite),
                       .num_extents = 1,
                       .memory = GrantedMemory::kMappable},
            .mappable = memory->location(1),
            .extents = {{.address = address_of(memory->bytes().data()) + 36, .num_bytes = 64}},
            .name = ""};
  }
  Status map(GrantInfo info) {
    RemoteMemory remote(pair.to_server, 0, std::move(info));
    Status status = remote.map_from(getpid());
    EXPECT_EQ(remote.path(), status.ok() ? RemoteMemory::Path::kMapped : RemoteMemory::Path::kMessages);
    return status;
  }

  transport::LoopbackFabric fabric{{.mailbox_capacity = 1 << 20}};
  TwoRuntimes pair{engine::loopback_transports(fabric, 2)};
  std::shared_ptr<MappableMemory> memory = MappableMemory::make(100).value();
};

TEST_F(MappedGrant, is_mapped_if_it_is_right) {
  const Status status = map(grant());
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST_F(MappedGrant, is_not_mapped_with_addresses_beyond_the_memory) {
  GrantInfo info = grant();
  info.extents[0].address += 1;  // the last byte is beyond
  EXPECT_FALSE(map(info).ok());
  info.extents[0].address = address_of(memory->bytes().data()) - 1;  // a flag
  EXPECT_FALSE(map(info).ok());
  info.extents[0].address = 0;
  EXPECT_FALSE(map(info).ok());
}

TEST_F(MappedGrant, is_not_mapped_with_a_flag_that_is_none) {
  for (const uint32_t flag : {0U, uint32_t{MappableMemory::kNumWords}, UINT32_MAX}) {
    GrantInfo info = grant();
    info.mappable.flag = flag;
    EXPECT_FALSE(map(info).ok()) << flag;
  }
}

TEST_F(MappedGrant, is_encoded_whole_and_refused_otherwise) {
  std::vector<std::byte> bytes = encode_grant(grant());
  const std::optional<GrantInfo> decoded = decode_grant(bytes);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->mappable.proof, memory->location().proof);
  EXPECT_EQ(decoded->extents[0].num_bytes, 64u);
  EXPECT_FALSE(decode_grant(std::span(bytes).first(sizeof(GrantPrefix) + 31)));
  EXPECT_FALSE(decode_grant(std::span(bytes).first(bytes.size() - 1)));
  bytes[offsetof(GrantPrefix, memory)] = std::byte{3};
  EXPECT_FALSE(decode_grant(bytes));
}

}  // namespace
}  // namespace axon::rpc
