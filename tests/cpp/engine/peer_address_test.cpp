#include "engine/peer_address.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "transport/message.hpp"

namespace axon::engine {
namespace {

PeerAddress sample() {
  PeerAddress peer_address;
  peer_address.key = 0x0807060504030201;
  peer_address.process = {11, 12};
  peer_address.host = 13;
  peer_address.pid = 14;
  peer_address.transport_address = {std::byte{0xAA}, std::byte{0xBB}};
  return peer_address;
}

TEST(PeerAddress, bytes) {
  const std::vector<uint8_t> golden{'a', 'x', 'o', 'n', 21, 0, 0,  0,  1, 2, 3, 4, 5, 6, 7,    8,   11,  //
                                    0,   0,   0,   0,   0,  0, 0,  12, 0, 0, 0, 0, 0, 0, 0,    13,  0,   //
                                    0,   0,   0,   0,   0,  0, 14, 0,  0, 0, 2, 0, 0, 0, 0xAA, 0xBB};
  EXPECT_EQ(sample().encode(), golden);
}

TEST(PeerAddress, survives_the_store) {
  const std::vector<uint8_t> blob = sample().encode();
  Result<PeerAddress> decoded = PeerAddress::decode(blob);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded.value().key, sample().key);
  EXPECT_EQ(decoded.value().process, sample().process);
  EXPECT_EQ(decoded.value().host, 13u);
  EXPECT_EQ(decoded.value().pid, 14);
  EXPECT_EQ(decoded.value().transport_address, sample().transport_address);
}

TEST(PeerAddress, refuses_every_truncation) {
  const std::vector<uint8_t> blob = sample().encode();
  for (size_t length = 0; length < blob.size(); ++length) {
    EXPECT_FALSE(PeerAddress::decode({blob.data(), length}).ok()) << length;
  }
}

TEST(PeerAddress, refuses_foreign_and_other_version_naming_both) {
  std::vector<uint8_t> foreign = sample().encode();
  foreign[0] = 'x';
  EXPECT_NE(PeerAddress::decode(foreign).status().message().find("not from torch_axon"), std::string::npos);
  std::vector<uint8_t> newer = sample().encode();
  newer[4] = transport::kWireVersion + 1;
  const std::string named = "wire version " + std::to_string(transport::kWireVersion + 1);
  EXPECT_NE(PeerAddress::decode(newer).status().message().find(named), std::string::npos);
}

TEST(PeerAddress, has_a_key_of_its_series_in_each_instance) {
  std::set<uint64_t> keys{sample().key};
  static constexpr uint64_t kLargest = UINT64_MAX;
  for (uint64_t number = 0; number < 1000; ++number) {
    for (const uint64_t each : {number, kLargest - number}) {
      const PeerAddress other = sample().in_instance(each);
      EXPECT_EQ(other.key >> 32, sample().key >> 32);
      EXPECT_EQ(other.process, sample().process);
      keys.insert(other.key);
    }
  }
  EXPECT_EQ(keys.size(), 2001u) << "instances must not meet";
  EXPECT_EQ(PeerAddress::decode(sample().encode()).value().in_instance(7).key, sample().in_instance(7).key);
}

}  // namespace
}  // namespace axon::engine
