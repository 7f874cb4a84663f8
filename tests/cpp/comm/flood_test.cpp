// More messages than a rank may keep before anybody receives them: the group ends, on every rank and beside the engine.
#include <gtest/gtest.h>

#include <string>

#include "comm/companion.hpp"
#include "comm/engines.hpp"

namespace axon {
namespace {

using namespace std::chrono_literals;

class Listener final : public Companion {
 public:
  void on_failed(const Status& reason) noexcept override { heard += reason.message(); }
  void on_rank_lost(int, const Status&) noexcept override {}
  Status fault() noexcept override { return Status(); }

  std::string heard;
};

TEST(FloodTest, more_than_an_inbox_may_keep_ends_the_group) {
  static constexpr size_t kBlock = 1 << 20;
  LoopbackFabric fabric({.largest_eager_num_bytes = kBlock, .kills = {}});
  Engines engines(loopback_transports(fabric, 2));
  const auto group = engines.form("flooded");
  Listener listener;
  group[1]->accompany(&listener);
  for (size_t i = 0; i <= Inbox::kMostUnexpectedBytes / kBlock; ++i) {
    const auto sent = TestOperation::send(std::vector<int32_t>(kBlock / sizeof(int32_t)), 1, 0);
    ASSERT_TRUE(run(*group[0], *sent).ok());
  }
  const auto told = TestOperation::all_reduce({1}, 30s);
  const std::string reason = "256 MiB have come without a receive for them, the latest from rank 0";
  EXPECT_NE(run(*group[0], *told).message().find(reason), std::string::npos) << told->status().message();
  const auto own = TestOperation::receive(1, 0, 0);
  EXPECT_EQ(run(*group[1], *own).code(), ErrorCode::kResourceExhausted);
  group[1]->accompany(nullptr);
  EXPECT_NE(listener.heard.find(reason), std::string::npos) << listener.heard;
}

}  // namespace
}  // namespace axon
