// Tests messages of a rank that has sent them and then does something else.
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "engine/engines.hpp"

namespace axon::engine {
namespace {

using namespace std::chrono_literals;

class QuietSenders : public testing::TestWithParam<transport::NetworkKind> {
 protected:
  const std::unique_ptr<transport::Network> network_ = GetParam().make();
  Engines engines_{transports_of(*network_, 2)};
  std::vector<std::unique_ptr<Communicator>> group_ = engines_.form("pair");
};

INSTANTIATE_TEST_SUITE_P(Networks, QuietSenders,
                         testing::Values(transport::kLoopback, transport::kUcxSharedMemory, transport::kRings,
                                         transport::kRingsCopies),
                         [](const auto& info) { return std::string(info.param.name); });

// The very first message waits for its receiver's answer, longer than its sender waits.
TEST_P(QuietSenders, need_no_further_call_for_what_they_have_sent) {
  std::this_thread::sleep_for(100ms);  // lets the background threads fall asleep
  auto sent = TestOperation::send({7}, 1, 3);
  ASSERT_TRUE(run(*group_[0], *sent).ok());
  auto received = TestOperation::receive(1, 0, 3, 10s);
  ASSERT_TRUE(run(*group_[1], *received).ok()) << received->status().message();
  EXPECT_EQ(received->data, std::vector<int32_t>{7});
}

}  // namespace
}  // namespace axon::engine
