// Calls that are used again allocate nothing from the heap, at either end, after as many were in flight at a time.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <string_view>
#include <tuple>
#include <vector>

#include "counted_new.hpp"
#include "rpc/core/runtimes.hpp"
#include "transport/networks.hpp"
#include "transport/node.hpp"

namespace {
std::atomic<bool> counting{false};  // in all threads, including the callee's
std::atomic<size_t> num_allocations{0};
}  // namespace

void axon::on_allocation() noexcept {
  if (counting.load(std::memory_order_relaxed)) num_allocations.fetch_add(1);
}

namespace axon::rpc {
namespace {

class CallAllocation : public testing::TestWithParam<std::tuple<transport::NetworkKind, size_t>> {};

INSTANTIATE_TEST_SUITE_P(Sizes, CallAllocation,
                         testing::Combine(testing::Values(transport::kUcxSharedMemory, transport::kRings),
                                          testing::Values(0, 64, 700, 4096, 5000, 100'000)));

TEST_P(CallAllocation, none_once_warm) {
  std::mutex mutex;
  std::vector<Invocation*> held;
  const auto& [kind, num_bytes] = GetParam();
  const auto network = kind.make();
  TwoRuntimes pair(engine::transports_of(*network, 2));
  ASSERT_TRUE(pair.server->add("echo", echo).ok());
  static constexpr size_t kInFlight = 32;
  // Includes calls whose answers were received but that are not released yet, and the buffers that answers landed in.
  static constexpr size_t kMostAtServer = 4 * kInFlight;
  const auto echo_once_all_are_here = [&](Invocation& invocation) {
    const std::lock_guard lock(mutex);
    held.push_back(&invocation);
    if (held.size() < kMostAtServer) return;
    for (Invocation* one : held) echo(*one);
    held.clear();
  };
  ASSERT_TRUE(pair.server->add("echo_once_all_are_here", echo_once_all_are_here).ok());

  const transport::Bytes bytes = transport::pattern(num_bytes, 1);
  std::vector<CallPointer> calls;
  for (size_t i = 0; i < kMostAtServer; ++i) calls.push_back(CallPointer::adopt(*new Call));
  const auto run = [&](std::string_view function, int num_rounds) {
    for (int round = 0; round < num_rounds; ++round) {
      for (const CallPointer& call : calls) {
        call->reset();
        fill(call->request, function, bytes);
        pair.to_server->start(*call);
      }
      for (const CallPointer& call : calls) {
        wait_for(*pair.to_server, *call);
        ASSERT_TRUE(call->status().ok());
      }
    }
  };
  run("echo_once_all_are_here", 2);
  calls.resize(kInFlight);  // the others would keep the buffers of their answers
  run("echo", 30);
  counting.store(true);
  run("echo", 100);
  counting.store(false);
  EXPECT_EQ(num_allocations.exchange(0), 0u) << "in " << 100 * kInFlight << " calls";
}

}  // namespace
}  // namespace axon::rpc
