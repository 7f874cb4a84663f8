// Both ends of a handshake without sockets: what they send, and how they react to anything else.
#include "rpc/core/handshake/handshake.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "rpc/core/handshake/listener_address.hpp"

namespace axon::rpc {
namespace {

using Bytes = std::vector<std::byte>;

Secret secret_of(const std::string& text) {
  return Secret::from(std::as_bytes(std::span(text))).value();
}

const Secret kSecret = secret_of("0123456789abcdef");
const EndpointInfo kConnector{.name = "worker", .incarnation = 1, .key = 2, .address = Bytes(100, std::byte{3})};
const EndpointInfo kListener{.name = "server", .incarnation = 4, .key = 5, .address = Bytes(200, std::byte{6})};

Nonce nonce_of(int number) {
  Nonce nonce;
  nonce.fill(static_cast<std::byte>(number));
  return nonce;
}

Handshake connector(const Secret& secret = kSecret, int nonce = 1) {
  return Handshake::connector(secret, kConnector, nonce_of(nonce)).value();
}

Handshake listener(const Secret& secret = kSecret, int nonce = 2) {
  return Handshake::listener({secret}, nonce_of(nonce), {.incarnation = 4, .place = "here:80"});
}

Bytes answer_to(Handshake& handshake, const Bytes& bytes) {
  handshake.feed(bytes);
  return handshake.take_output();
}

// Returns the listener's answer.
Bytes listeners_answer_to(Handshake& listener, const Bytes& bytes) {
  listener.feed(bytes);
  if (listener.peer() && !listener.outcome()) listener.answer(kListener);
  return listener.take_output();
}

// Returns all six frames, in order.
std::vector<Bytes> frames_of_a_handshake() {
  Handshake one = connector(), other = listener();
  std::vector<Bytes> frames{one.take_output()};
  while (!one.outcome()) {
    frames.push_back(listeners_answer_to(other, frames.back()));
    if (Bytes next = answer_to(one, frames.back()); !next.empty()) frames.push_back(std::move(next));
  }
  EXPECT_EQ(one.outcome(), HandshakeOutcome::kEstablished);
  EXPECT_EQ(other.outcome(), HandshakeOutcome::kEstablished);
  EXPECT_EQ(one.peer(), kListener);
  EXPECT_EQ(other.peer(), kConnector);
  return frames;
}

TEST(Handshake, both_ends_learn_each_others_endpoint_info_in_six_frames) {
  EXPECT_EQ(frames_of_a_handshake().size(), 6u);
}

TEST(Handshake, bytes) {
  const std::vector<Bytes> frames = frames_of_a_handshake();
  const auto prefix_of = [](const Bytes& frame) {
    std::vector<int> numbers;
    for (size_t i = 0; i < 12; ++i) numbers.push_back(std::to_integer<int>(frame[i]));
    return numbers;
  };
  const auto prefix = [](int kind, int num_bytes) {
    return std::vector<int>{'a', 'x', 'h', 's', 2, 0, kind, 0, num_bytes & 255, num_bytes >> 8, 0, 0};
  };
  EXPECT_EQ(prefix_of(frames[0]), prefix(1, 32));
  EXPECT_EQ(prefix_of(frames[1]), prefix(1, 32));
  EXPECT_EQ(prefix_of(frames[2]), prefix(2, 32));
  EXPECT_EQ(prefix_of(frames[3]), prefix(2, 8 + 7 + 32));
  EXPECT_EQ(prefix_of(frames[4]), prefix(3, 24 + 6 + 100 + 32));
  EXPECT_EQ(prefix_of(frames[5]), prefix(3, 24 + 6 + 200 + 32));
  for (size_t i = 0; i < frames.size(); ++i) {
    EXPECT_EQ(frames[i].size(),
              12 + std::to_integer<size_t>(frames[i][8]) + 256 * std::to_integer<size_t>(frames[i][9]));
  }
}

TEST(Handshake, proofs_are_hmacs_over_role_and_transcript) {
  const std::vector<Bytes> frames = frames_of_a_handshake();
  const auto seal_of = [&](char role, size_t frame) {
    HmacSha256 mac(kSecret.bytes());
    mac.add(std::as_bytes(std::span(&role, 1)));
    for (size_t i = 0; i < frame; ++i) mac.add(frames[i]);
    return mac.add(std::span(frames[frame]).first(frames[frame].size() - 32)).finish();
  };
  for (size_t frame = 2; frame < 6; ++frame) {
    EXPECT_TRUE(equal_in_secret(seal_of(frame % 2 == 0 ? 'c' : 'l', frame), std::span(frames[frame]).last(32)))
        << frame;
  }
}

TEST(Handshake, the_secret_is_in_no_frame) {
  for (const Bytes& frame : frames_of_a_handshake()) {
    const auto secret = kSecret.bytes();
    EXPECT_EQ(std::search(frame.begin(), frame.end(), secret.begin(), secret.end()), frame.end());
  }
}

TEST(Handshake, frames_may_come_in_pieces) {
  Handshake one = connector(), other = listener();
  const auto in_pieces = [](Handshake& handshake, const Bytes& bytes) {
    for (const std::byte& byte : bytes) {
      handshake.feed(std::span(&byte, 1));
      if (handshake.peer() && !handshake.outcome()) handshake.answer(kListener);
    }
    return handshake.take_output();
  };
  Bytes bytes = one.take_output();
  while (!one.outcome()) bytes = in_pieces(one, in_pieces(other, bytes));
  EXPECT_EQ(one.peer(), kListener);
  EXPECT_EQ(other.peer(), kConnector);
}

// A man in the middle may change the frames: the handshake fails then.
TEST(Handshake, a_changed_byte_of_any_frame_is_noticed) {
  const std::vector<Bytes> frames = frames_of_a_handshake();
  for (size_t changed = 0; changed < frames.size(); ++changed) {
    for (size_t at = 0; at < frames[changed].size(); ++at) {
      Handshake one = connector(), other = listener();
      Bytes bytes = one.take_output();
      for (size_t i = 0; i < frames.size(); ++i) {
        if (i == changed) bytes[at] ^= std::byte{0x10};
        bytes = i % 2 == 0 ? listeners_answer_to(other, bytes) : answer_to(one, bytes);
        if (bytes.empty()) break;
      }
      EXPECT_NE(one.outcome(), HandshakeOutcome::kEstablished) << "frame " << changed << ", byte " << at;
      EXPECT_EQ(other.outcome() == HandshakeOutcome::kEstablished, changed == 5)
          << "frame " << changed << ", byte " << at;
    }
  }
}

TEST(Handshake, another_secret_is_told_apart_before_any_endpoint_info_is_sent) {
  Handshake one = connector(), other = listener(secret_of("fedcba9876543210"));
  const Bytes refusal = listeners_answer_to(other, answer_to(one, listeners_answer_to(other, one.take_output())));
  EXPECT_EQ(other.outcome(), HandshakeOutcome::kWrongSecret);
  EXPECT_FALSE(other.peer());
  EXPECT_TRUE(answer_to(one, refusal).empty());
  EXPECT_EQ(one.outcome(), HandshakeOutcome::kRefused);
  EXPECT_EQ(one.reason().code(), ErrorCode::kUnauthenticated);
  EXPECT_EQ(one.reason().message(), "the secrets of the two ends differ");
}

TEST(Handshake, a_listener_with_two_secrets_goes_on_with_the_one_that_its_peer_knows) {
  const Secret other_secret = secret_of("fedcba9876543210");
  for (const Secret* known : {&kSecret, &other_secret}) {
    Handshake one = connector(*known);
    Handshake other = Handshake::listener({kSecret, other_secret}, nonce_of(2), {});
    for (Bytes next = one.take_output(); !one.outcome();) next = answer_to(one, listeners_answer_to(other, next));
    EXPECT_EQ(one.outcome(), HandshakeOutcome::kEstablished) << one.reason().message();
    EXPECT_EQ(other.outcome(), HandshakeOutcome::kEstablished) << other.reason().message();
  }
}

// Holds even for a listener that lets any connector in.
TEST(Handshake, a_listener_that_proves_nothing_gets_no_endpoint_info) {
  Handshake one = connector(), fake = listener(secret_of("fedcba9876543210"));
  const Bytes proof = answer_to(one, answer_to(fake, one.take_output()));
  ASSERT_FALSE(proof.empty());
  Bytes forged = proof;
  forged.back() ^= std::byte{1};
  EXPECT_TRUE(answer_to(one, forged).empty());
  EXPECT_EQ(one.outcome(), HandshakeOutcome::kWrongSecret);
}

TEST(Handshake, what_was_heard_before_proves_nothing) {
  const std::vector<Bytes> heard = frames_of_a_handshake();
  Handshake replayed_to = listener(kSecret, 3);  // a fresh nonce, as in every handshake
  listeners_answer_to(replayed_to, heard[0]);
  listeners_answer_to(replayed_to, heard[2]);
  EXPECT_EQ(replayed_to.outcome(), HandshakeOutcome::kWrongSecret);
  Handshake one = connector(kSecret, 4);
  one.take_output();
  answer_to(one, heard[1]);
  answer_to(one, heard[3]);
  EXPECT_EQ(one.outcome(), HandshakeOutcome::kWrongSecret);
}

TEST(Handshake, a_mirror_is_no_peer) {
  Handshake one = connector();
  const Bytes hello = one.take_output();
  const Bytes proof = answer_to(one, hello);
  ASSERT_FALSE(proof.empty());
  EXPECT_TRUE(answer_to(one, proof).empty());
  EXPECT_EQ(one.outcome(), HandshakeOutcome::kWrongSecret);
}

TEST(Handshake, a_connector_knows_the_listener_before_it_introduces_itself) {
  Handshake one = connector(), other = listener();
  const Bytes proof = answer_to(one, answer_to(other, one.take_output()));
  EXPECT_FALSE(one.listener());
  EXPECT_FALSE(one.is_proved());
  EXPECT_FALSE(other.is_proved());
  one.feed(answer_to(other, proof));
  ASSERT_TRUE(one.listener());
  EXPECT_EQ(one.listener()->incarnation, 4u);
  EXPECT_EQ(one.listener()->place, "here:80");
  EXPECT_TRUE(one.is_proved());
  EXPECT_TRUE(other.is_proved());
  EXPECT_FALSE(other.peer());
}

TEST(Handshake, foreign_bytes_get_no_answer) {
  const std::string request = "GET / HTTP/1.1\r\nHost: example\r\n\r\n";
  Handshake one = connector(), other = listener();
  one.take_output();
  for (Handshake* end : {&one, &other}) {
    end->feed(std::as_bytes(std::span(request)));
    EXPECT_EQ(end->outcome(), HandshakeOutcome::kMalformed);
    EXPECT_TRUE(end->take_output().empty());
  }
}

TEST(Handshake, other_version_is_named_by_both_ends) {
  Handshake one = connector(), other = listener();
  Bytes newer = one.take_output();
  newer[4] = std::byte{7};
  Bytes refusal = listeners_answer_to(other, newer);
  EXPECT_EQ(other.outcome(), HandshakeOutcome::kOtherVersion);
  EXPECT_NE(other.reason().message().find("handshake version 7, this process 2"), std::string::npos);
  ASSERT_FALSE(refusal.empty());
  refusal[4] = std::byte{7};  // as a refusal of another version would be
  EXPECT_TRUE(answer_to(one, refusal).empty());
  EXPECT_EQ(one.outcome(), HandshakeOutcome::kOtherVersion);
  EXPECT_EQ(one.reason().code(), ErrorCode::kMismatch);
}

TEST(Handshake, announced_lengths_are_not_trusted) {
  for (const uint32_t num_bytes : {33u, 31u, 0u, 16385u, UINT32_MAX}) {
    Handshake other = listener();
    Bytes hello = connector().take_output();
    std::memcpy(hello.data() + 8, &num_bytes, sizeof num_bytes);
    other.feed(hello);
    other.feed(Bytes(1));
    EXPECT_EQ(other.outcome(), HandshakeOutcome::kMalformed) << num_bytes;
    EXPECT_TRUE(other.take_output().empty());
  }
}

TEST(Handshake, refusals_of_a_listener_arrive_with_code_and_words) {
  Handshake one = connector(), other = listener();
  other.feed(answer_to(one, listeners_answer_to(other, answer_to(one, listeners_answer_to(other, one.take_output())))));
  ASSERT_TRUE(other.peer());
  other.refuse({ErrorCode::kResourceExhausted, "64 connections,\n\x1b[31mits limit" + std::string(1000, '!')});
  EXPECT_TRUE(answer_to(one, other.take_output()).empty());
  EXPECT_EQ(one.outcome(), HandshakeOutcome::kRefused);
  EXPECT_EQ(one.reason().code(), ErrorCode::kResourceExhausted);
  EXPECT_EQ(one.reason().message().size(), Handshake::kMostReasonBytes);
  EXPECT_EQ(one.reason().message().find("64 connections,??[31mits limit"), 0u);
}

TEST(EndpointInfo, what_cannot_be_sent_is_refused_before_it_is) {
  EndpointInfo own = kConnector;
  for (const std::string& name : {std::string(), std::string(256, 'x'), std::string("two\nlines")}) {
    own.name = name;
    EXPECT_FALSE(Handshake::connector(kSecret, own, nonce_of(1)).ok());
  }
  own = kConnector;
  for (const size_t num_bytes : {size_t{0}, EndpointInfo::kMostAddressBytes + 1}) {
    own.address.resize(num_bytes);
    EXPECT_FALSE(own.encode().ok());
  }
}

TEST(EndpointInfo, every_truncation_is_refused) {
  const Bytes bytes = kConnector.encode().value();
  EXPECT_EQ(EndpointInfo::decode(bytes).value(), kConnector);
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(EndpointInfo::decode(std::span(bytes).first(length)).ok()) << length;
  }
}

TEST(ListenerAddress, survives_being_handed_over_and_refuses_every_truncation) {
  const ListenerAddress address{.host = "::1", .port = 4242, .secret = kSecret};
  const Bytes bytes = address.encode();
  Result<ListenerAddress> decoded = ListenerAddress::decode(bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(decoded.value().host, "::1");
  EXPECT_EQ(decoded.value().port, 4242);
  EXPECT_TRUE(std::ranges::equal(decoded.value().secret.bytes(), kSecret.bytes()));
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(ListenerAddress::decode(std::span(bytes).first(length)).ok()) << length;
  }
}

TEST(Secret, short_ones_are_refused_and_random_ones_differ) {
  const Bytes bytes(2000);
  EXPECT_FALSE(Secret::from(std::span(bytes).first(15)).ok());
  EXPECT_TRUE(Secret::from(std::span(bytes).first(16)).ok());
  EXPECT_FALSE(Secret::from(std::span(bytes).first(1025)).ok());
  EXPECT_FALSE(std::ranges::equal(Secret::random().bytes(), Secret::random().bytes()));
}

}  // namespace
}  // namespace axon::rpc
