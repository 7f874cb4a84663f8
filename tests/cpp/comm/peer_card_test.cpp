#include "comm/peer_card.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace axon {
namespace {

PeerCard sample() {
  PeerCard card;
  card.join_nonce = 0x0807060504030201;
  card.process = {11, 12};
  card.host = 13;
  card.pid = 14;
  card.address = {std::byte{0xAA}, std::byte{0xBB}};
  return card;
}

TEST(PeerCard, survives_the_store) {
  const std::vector<uint8_t> blob = sample().encode();
  ASSERT_EQ(blob.size(), 50u);
  EXPECT_EQ(std::string(blob.begin(), blob.begin() + 4), "axon");
  EXPECT_EQ(blob[8], 1);
  EXPECT_EQ(blob[15], 8);
  Result<PeerCard> decoded = PeerCard::decode(blob);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded.value().join_nonce, sample().join_nonce);
  EXPECT_EQ(decoded.value().process, sample().process);
  EXPECT_EQ(decoded.value().host, 13u);
  EXPECT_EQ(decoded.value().pid, 14);
  EXPECT_EQ(decoded.value().address, sample().address);
}

TEST(PeerCard, refuses_every_truncation) {
  const std::vector<uint8_t> blob = sample().encode();
  for (size_t length = 0; length < blob.size(); ++length) {
    EXPECT_FALSE(PeerCard::decode({blob.data(), length}).ok()) << length;
  }
}

TEST(PeerCard, refuses_foreign_and_other_version_naming_both) {
  std::vector<uint8_t> foreign = sample().encode();
  foreign[0] = 'x';
  EXPECT_NE(PeerCard::decode(foreign).status().message().find("not from torch_axon"), std::string::npos);
  std::vector<uint8_t> newer = sample().encode();
  newer[4] = 9;
  EXPECT_NE(PeerCard::decode(newer).status().message().find("wire version 9"), std::string::npos);
}

TEST(PeerCard, group_id_depends_on_every_nonce_and_the_order) {
  std::vector<PeerCard> cards{sample(), sample()};
  cards[1].join_nonce = 99;
  const uint64_t id = combine_nonces(cards);
  std::swap(cards[0], cards[1]);
  EXPECT_NE(combine_nonces(cards), id);
  std::swap(cards[0], cards[1]);
  EXPECT_EQ(combine_nonces(cards), id);
  cards[0].join_nonce ^= 1;
  EXPECT_NE(combine_nonces(cards), id);
}

TEST(PeerCard, this_host_is_stable_and_random_numbers_are_not) {
  EXPECT_EQ(this_host(), this_host());
  EXPECT_NE(this_host(), 0u);
  EXPECT_NE(random_number(), random_number());
}

}  // namespace
}  // namespace axon
