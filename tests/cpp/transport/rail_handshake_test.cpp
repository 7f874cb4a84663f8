// Both ends of a rail's handshake, fed by hand.
#include "transport/rails/rail_handshake.hpp"

#include <gtest/gtest.h>

#include "transport/rails/rail_address.hpp"
#include "transport/rails/stripe.hpp"

namespace axon::transport {
namespace {

using State = RailHandshake::State;
using Bytes = std::vector<std::byte>;

constexpr RailToken kToken{std::byte{1}, std::byte{2}};
constexpr uint64_t kName = 77;
constexpr uint32_t kRail = 3;

Nonce nonce(int seed) {
  Nonce made{};
  made[0] = static_cast<std::byte>(seed);
  return made;
}

struct RailHandshakes : testing::Test {
  RailHandshake connector = RailHandshake::connector(kToken, kName, kRail, nonce(1));
  RailHandshake listener = RailHandshake::listener(kToken, nonce(2));
};

TEST_F(RailHandshakes, establish_the_same_key_in_both_ends) {
  for (int i = 0; i < 2; ++i) {
    listener.feed(connector.take_output());
    connector.feed(listener.take_output());
  }
  ASSERT_EQ(connector.state(), State::kEstablished);
  ASSERT_EQ(listener.state(), State::kEstablished);
  EXPECT_EQ(listener.name(), kName);
  EXPECT_EQ(listener.rail(), kRail);
  EXPECT_EQ(connector.stripe_key(), listener.stripe_key());
  EXPECT_EQ(listener.num_wanted(), 0U);
}

TEST_F(RailHandshakes, take_bytes_one_at_a_time) {
  for (int i = 0; i < 2; ++i) {
    for (const std::byte byte : connector.take_output()) listener.feed({&byte, 1});
    for (const std::byte byte : listener.take_output()) connector.feed({&byte, 1});
  }
  EXPECT_EQ(connector.state(), State::kEstablished);
  EXPECT_EQ(listener.state(), State::kEstablished);
}

TEST_F(RailHandshakes, fail_without_the_token) {
  RailHandshake stranger = RailHandshake::connector({std::byte{1}}, kName, kRail, nonce(1));
  listener.feed(stranger.take_output());
  stranger.feed(listener.take_output());
  listener.feed(stranger.take_output());
  EXPECT_EQ(listener.state(), State::kFailed);
  EXPECT_TRUE(listener.take_output().empty()) << "a stranger gets no proof";
}

TEST_F(RailHandshakes, fail_with_a_listener_that_lacks_the_token) {
  RailHandshake stranger = RailHandshake::listener({std::byte{1}}, nonce(2));
  stranger.feed(connector.take_output());
  connector.feed(stranger.take_output());
  const Bytes proof = connector.take_output();
  connector.feed(proof);  // all that the other end knows to answer is what it has heard
  EXPECT_EQ(connector.state(), State::kFailed);
}

TEST_F(RailHandshakes, fail_for_replayed_bytes) {
  const Bytes hello = connector.take_output();
  listener.feed(hello);
  connector.feed(listener.take_output());
  const Bytes proof = connector.take_output();
  RailHandshake later = RailHandshake::listener(kToken, nonce(3));
  later.feed(hello);
  later.feed(proof);
  EXPECT_EQ(later.state(), State::kFailed);
}

TEST_F(RailHandshakes, fail_for_a_changed_byte_anywhere) {
  const Bytes hello = connector.take_output();
  for (size_t i = 0; i < hello.size(); ++i) {
    Bytes changed = hello;
    changed[i] ^= std::byte{1};
    RailHandshake other = RailHandshake::listener(kToken, nonce(2));
    other.feed(changed);
    RailHandshake same = RailHandshake::connector(kToken, kName, kRail, nonce(1));
    (void)same.take_output();
    if (other.state() == State::kRunning) {
      same.feed(other.take_output());
      other.feed(same.take_output());
    }
    EXPECT_EQ(other.state(), State::kFailed) << "byte " << i;
  }
}

TEST_F(RailHandshakes, fail_for_more_bytes_than_wanted) {
  listener.feed(Bytes(listener.num_wanted() + 1));
  EXPECT_EQ(listener.state(), State::kFailed);
}

TEST(StripeSealers, seal_each_position_and_field_differently) {
  const StripeHeader header{.ticket = 1, .offset = 2, .num_bytes = 3, .seal = 0};
  StripeSealer sender{Digest{}};
  StripeSealer receiver{Digest{}};
  const uint64_t first = sender.next(header);
  EXPECT_EQ(receiver.next(header), first);
  EXPECT_NE(receiver.next(header), first) << "a repeated header has another seal";
  for (const StripeHeader& other : {StripeHeader{.ticket = 2, .offset = 2, .num_bytes = 3, .seal = 0},
                                    StripeHeader{.ticket = 1, .offset = 3, .num_bytes = 3, .seal = 0},
                                    StripeHeader{.ticket = 1, .offset = 2, .num_bytes = 4, .seal = 0},
                                    StripeHeader{.ticket = 1, .offset = 2, .num_bytes = 3, .num_carried = 1, .seal = 0},
                                    StripeHeader{.ticket = 1, .offset = 2, .num_bytes = 3, .format = 1, .seal = 0}}) {
    EXPECT_NE(StripeSealer{Digest{}}.next(other), first);
  }
  EXPECT_NE(StripeSealer{Digest{std::byte{1}}}.next(header), first);
}

TEST(Stripes, give_every_rail_a_part_where_the_message_is_long_enough) {
  for (size_t num_rails = 1; num_rails <= 16; ++num_rails) {
    for (const size_t num_bytes :
         {size_t{65'537}, size_t{262'145}, size_t{1} << 20, size_t{5'000'001}, size_t{1} << 30}) {
      const size_t length = stripe_bytes_of(num_bytes, num_rails);
      EXPECT_TRUE(is_stripe_length(length)) << length;
      EXPECT_TRUE(length == kLeastStripeBytes || length * num_rails < num_bytes + num_rails * kLeastStripeBytes);
    }
  }
}

TEST(RailAddresses, that_are_truncated_or_too_long_are_refused) {
  RailAddress address{
      .name = 1, .token = {}, .port = 2, .takes_turns = false, .most_processes = 0, .addresses = {kAnyIpv4, kAnyIpv6}};
  const Bytes packed = address.encode();
  for (size_t num_bytes = 0; num_bytes < packed.size(); ++num_bytes) {
    EXPECT_FALSE(RailAddress::decode(std::span(packed).first(num_bytes)).ok()) << num_bytes;
  }
  address.addresses.resize(RailAddress::kMostAddresses + 1);
  EXPECT_FALSE(RailAddress::decode(address.encode()).ok());
}

}  // namespace
}  // namespace axon::transport
