#include "base/status.hpp"

#include <gtest/gtest.h>

namespace axon {
namespace {

TEST(Status, one_full_stop_between_sentences) {
  for (const char* first : {"rank 2 has ended", "rank 2 has ended."}) {
    const Status status = Status(ErrorCode::kPeerLost, first).followed_by("Rank 1 waited for it");
    EXPECT_EQ(status.code(), ErrorCode::kPeerLost);
    EXPECT_EQ(status.message(), "rank 2 has ended. Rank 1 waited for it");
  }
}

TEST(Status, success_has_a_code_and_no_message) {
  const Status success;
  EXPECT_EQ(success.code(), ErrorCode::kOk);
  EXPECT_EQ(success.message(), "");
  EXPECT_EQ(success.error().code, ErrorCode::kOk);
  EXPECT_TRUE(success.clone().ok());
  EXPECT_TRUE(success.followed_by("nothing failed").ok());
  EXPECT_TRUE(Status(ErrorCode::kOk, "").ok());
}

TEST(Result, status_of_a_value_is_a_success) {
  Result<int> result(3);
  EXPECT_TRUE(result.ok());
  EXPECT_EQ(result.status().code(), ErrorCode::kOk);
  EXPECT_FALSE(Result<int>(Status()).ok());
  EXPECT_EQ(Result<int>(Status()).status().code(), ErrorCode::kInternal);
}

TEST(ResultDeathTest, value_of_a_failure_ends_the_process_with_its_message) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Result<int> failure(Status(ErrorCode::kTimeout, "rank 3 did not answer"));
  EXPECT_DEATH(static_cast<void>(failure.value()), "rank 3 did not answer");
}

}  // namespace
}  // namespace axon
