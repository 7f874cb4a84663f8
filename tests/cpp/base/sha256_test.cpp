// The test vectors of FIPS 180-4 and of RFC 4231.
#include "base/sha256.hpp"

#include <gtest/gtest.h>

#include <string>

namespace axon {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string hex(const Digest& digest) {
  std::string text;
  for (const std::byte byte : digest) {
    for (const int shift : {4, 0}) text += "0123456789abcdef"[std::to_integer<int>(byte) >> shift & 15];
  }
  return text;
}

std::string sha256(const std::string& text) {
  return hex(Sha256().add(bytes_of(text)).finish());
}

std::string hmac(const std::string& key, const std::string& text) {
  return hex(HmacSha256(bytes_of(key)).add(bytes_of(text)).finish());
}

TEST(Sha256, standard_vectors) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmn"
                   "opqrstnopqrstu"),
            "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
  EXPECT_EQ(sha256(std::string(1'000'000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, any_division_gives_the_same_digest) {
  const std::string text(200, 'x');
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    EXPECT_EQ(hex(Sha256().add(bytes_of(text.substr(0, cut))).add(bytes_of(text.substr(cut))).finish()), sha256(text))
        << cut;
  }
}

TEST(HmacSha256, standard_vectors) {
  EXPECT_EQ(hmac(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hmac("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hmac(std::string(20, '\xaa'), std::string(50, '\xdd')),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(hmac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_EQ(
      hmac(std::string(131, '\xaa'),
           "This is a test using a larger than block-size key and a larger than block-size data. The key needs to "
           "be hashed before being used by the HMAC algorithm."),
      "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST(HmacSha256, every_bit_of_a_digest_is_compared) {
  const Digest digest = HmacSha256(bytes_of("key")).finish();
  EXPECT_TRUE(equal_in_secret(digest, digest));
  for (size_t i = 0; i < digest.size() * 8; ++i) {
    Digest other = digest;
    other[i / 8] ^= std::byte{1} << static_cast<int>(i % 8);
    EXPECT_FALSE(equal_in_secret(digest, other)) << i;
  }
  EXPECT_FALSE(equal_in_secret(digest, std::span(digest).first(31)));
}

}  // namespace
}  // namespace axon
