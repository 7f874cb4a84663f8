// Tests a process with a wedged receive queue, as UCX's is once another process was killed while it wrote there. No
// message arrives any more, and no process is told. The operations end by their timeouts.
#include <gtest/gtest.h>

#include "engine/engines.hpp"

namespace axon::engine {
namespace {

using namespace std::chrono_literals;

// Expects that rank 0, which receives nothing, times out, and that rank 1 learns of that.
void expect_timeouts(const std::vector<std::unique_ptr<Communicator>>& group) {
  const auto received = TestOperation::receive(1, 1, 0, 100ms);
  EXPECT_EQ(run(*group[0], *received).code(), ErrorCode::kTimeout) << received->status().message();
  const auto awaited = TestOperation::all_reduce({1}, 100ms);
  EXPECT_EQ(run(*group[0], *awaited).code(), ErrorCode::kTimeout) << awaited->status().message();
  const auto of_the_other = TestOperation::all_reduce({1}, 30s);
  (void)run(*group[1], *of_the_other);  // may succeed: what rank 0 sent has arrived
  const auto next = TestOperation::barrier(30s);
  const std::string text = run(*group[1], *next).message();
  EXPECT_NE(text.find("rank 0 reports: "), std::string::npos) << text;
}

TEST(WedgedQueueTest, operations_end_by_their_timeouts) {
  transport::LoopbackFabric fabric;
  Engines engines(loopback_transports(fabric, 2));
  const auto group = engines.form("of the wedged");
  fabric.wedge(0);
  expect_timeouts(group);
}

TEST(WedgedQueueTest, operations_of_groups_formed_later_end_by_their_timeouts) {
  transport::LoopbackFabric fabric;
  Engines engines(loopback_transports(fabric, 2));
  fabric.wedge(0);
  expect_timeouts(engines.form("after"));
}

}  // namespace
}  // namespace axon::engine
