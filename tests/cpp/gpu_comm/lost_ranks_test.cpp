#include "gpu_comm/lost_ranks.hpp"

#include <gtest/gtest.h>

namespace axon::gpu_comm {
namespace {

const Status kEnded(ErrorCode::kPeerLost, "its process has ended");

TEST(LostRanks, kernels_are_concerned_by_ranks_that_they_may_wait_for) {
  LostRanks lost;
  lost.note(3, kEnded);
  EXPECT_FALSE(lost.concerns_kernels(3));
  EXPECT_TRUE(lost.first().ok());
  EXPECT_EQ(lost.reason_of(3).message(), kEnded.message());
  lost.connect(2);
  EXPECT_TRUE(lost.first().ok());
  lost.connect(3);
  EXPECT_TRUE(lost.concerns_kernels(3));
  EXPECT_FALSE(lost.concerns_kernels(2));
  EXPECT_EQ(lost.first().message(), kEnded.message());
}

TEST(LostRanks, the_first_loss_stays_the_first) {
  LostRanks lost;
  for (const int index : {0, 1}) lost.connect(index);
  lost.note(1, kEnded);
  const auto lost_at = lost.first_lost_at();
  lost.note(0, Status(ErrorCode::kPeerLost, "another reason"));
  EXPECT_EQ(lost.first().message(), kEnded.message());
  EXPECT_EQ(lost.first_lost_at(), lost_at);
}

}  // namespace
}  // namespace axon::gpu_comm
