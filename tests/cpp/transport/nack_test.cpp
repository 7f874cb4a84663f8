#include "transport/nack.hpp"

#include <gtest/gtest.h>

#include <string>

namespace axon::nack {
namespace {

Status sent_back(const Status& why) {
  const Encoded encoded(why);
  EXPECT_LE(encoded.bytes().size(), Encoded::kMostBytes);
  return decode(encoded.bytes());
}

TEST(Nack, mismatch_keeps_code_and_text) {
  const Status back = sent_back({ErrorCode::kMismatch, "rank 0 has 3, rank 1 has 4"});
  EXPECT_EQ(back.code(), ErrorCode::kMismatch);
  EXPECT_EQ(back.message(), "rank 0 has 3, rank 1 has 4");
}

// A receiver's own failure, such as a lack of memory, must not look like a failure of the sender.
TEST(Nack, other_codes_end_the_transfer_from_the_other_side) {
  for (const ErrorCode code : {ErrorCode::kTimeout, ErrorCode::kPeerLost, ErrorCode::kResourceExhausted}) {
    const Status back = sent_back({code, "why"});
    EXPECT_EQ(back.code(), ErrorCode::kAborted);
    EXPECT_EQ(back.message(), "why");
  }
}

TEST(Nack, without_a_reason_is_no_success_either) {
  EXPECT_TRUE(Encoded(Status()).bytes().empty());
  EXPECT_FALSE(sent_back(Status()).ok());
}

TEST(Nack, text_is_cut_between_characters) {
  const Status back = sent_back({ErrorCode::kMismatch, std::string(510, 'x') + "\u00e9"});
  EXPECT_EQ(back.message(), std::string(510, 'x'));
  EXPECT_EQ(sent_back({ErrorCode::kMismatch, std::string(600, 'x')}).message().size(), Encoded::kMostBytes - 1);
}

// A hostile peer may send any bytes of any length.
TEST(Nack, foreign_bytes_are_never_a_success) {
  for (int first = 0; first < 256; ++first) {
    const std::string bytes(1000, static_cast<char>(first));
    const Status back = decode(std::as_bytes(std::span(bytes)));
    EXPECT_FALSE(back.ok()) << first;
    EXPECT_LT(back.message().size(), Encoded::kMostBytes);
  }
}

}  // namespace
}  // namespace axon::nack
