// Calls that are given up before their server reads them, because it is stopped. They do not begin, and their slots are
// free again.
#include <gtest/gtest.h>

#include <atomic>

#include "rpc/core/runtimes.hpp"
#include "transport/networks.hpp"
#include "transport/node.hpp"

namespace axon::rpc {
namespace {

using namespace std::chrono_literals;

class CancelledCallsTest : public testing::TestWithParam<transport::NetworkKind> {
 protected:
  CancelledCallsTest() {
    const auto count = [this](Invocation& invocation) {
      ++num_run_;
      echo(invocation);
    };
    EXPECT_TRUE(pair_.server->add("count", count).ok());
    EXPECT_TRUE(invoke(*pair_.to_server, "count", {})->status().ok());
  }

  static std::vector<std::unique_ptr<transport::Transport>> transports(transport::Network& network) {
    std::vector<std::unique_ptr<transport::Transport>> made;
    for (int i = 0; i < 2; ++i) made.push_back(network.make_transport());
    return made;
  }

  // Starts calls while the server's engine does nothing.
  std::vector<CallPointer> start_all(std::chrono::milliseconds timeout) {
    std::vector<CallPointer> calls;
    for (int i = 0; i < 1500; ++i) calls.push_back(start(*pair_.to_server, "count", sent_[i % sent_.size()], timeout));
    return calls;
  }

  void expect_all_ended(const std::vector<CallPointer>& calls, ErrorCode code) {
    for (const CallPointer& call : calls) {
      EXPECT_TRUE(pair_.to_server->wait(*call, Clock::now() + 60s));
      EXPECT_EQ(call->status().code(), code);
    }
  }

  void expect_none_run(const std::vector<CallPointer>& calls) {
    std::vector<CallPointer> next;
    for (int i = 0; i < 1500; ++i) next.push_back(start(*pair_.to_server, "count", sent_[0]));
    expect_all_ended(next, ErrorCode::kOk);
    EXPECT_EQ(num_run_.load(), 1 + 1500);
    next.insert(next.end(), calls.begin(), calls.end());
    for (const CallPointer& call : next) wait_for(*pair_.to_server, *call);
  }

  const std::vector<transport::Bytes> sent_{transport::pattern(8, 1), transport::pattern(3000, 2),
                                            transport::pattern(40'000, 3), transport::pattern(200'000, 4)};
  std::atomic<int> num_run_{0};
  std::unique_ptr<transport::Network> network_ = GetParam().make();
  TwoRuntimes pair_{transports(*network_)};
};

INSTANTIATE_TEST_SUITE_P(Networks, CancelledCallsTest,
                         testing::Values(transport::kRings, transport::kRingsCopies, transport::kLoopback,
                                         transport::kUcxTcp),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(CancelledCallsTest, those_that_have_timed_out_do_not_begin) {
  std::vector<CallPointer> calls;
  pair_.server_engine().exclusively([&] {
    calls = start_all(100ms);
    expect_all_ended(calls, ErrorCode::kTimeout);
    const Clock::time_point until = Clock::now() + 100ms;  // deadlines are accurate to some milliseconds
    while (Clock::now() < until) pair_.client_engine().nudge();
  });
  expect_none_run(calls);
}

using CancelledInRingsTest = CancelledCallsTest;

INSTANTIATE_TEST_SUITE_P(Networks, CancelledInRingsTest, testing::Values(transport::kRings, transport::kRingsCopies),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(CancelledInRingsTest, nor_do_those_that_have_been_cancelled) {
  std::vector<CallPointer> calls;
  pair_.server_engine().exclusively([&] {
    calls = start_all(60s);
    for (const CallPointer& call : calls) pair_.to_server->cancel(*call);
    expect_all_ended(calls, ErrorCode::kCancelled);
  });
  expect_none_run(calls);
}

}  // namespace
}  // namespace axon::rpc
