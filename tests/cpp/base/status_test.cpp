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

}  // namespace
}  // namespace axon
