// A call of the library that is opened again allocates nothing from the heap, at either end, once warm.
#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "axon/meeting.hpp"
#include "counted_new.hpp"

namespace {
std::atomic<bool> counting{false};  // in all threads: the callee's, too
std::atomic<size_t> num_allocations{0};
}  // namespace

void axon::on_allocation() noexcept {
  if (counting.load(std::memory_order_relaxed)) num_allocations.fetch_add(1);
}

namespace axon::library {
namespace {

TEST(LibraryAllocation, none_once_warm) {
  Meeting met;
  ASSERT_TRUE(met.server.add("echo", echo).ok());
  const std::vector<uint8_t> bytes(100'000, 0x5A);
  for (const size_t num_bytes : {0, 64, 5'000, 100'000}) {
    Call call(met.to_server, "echo");
    const auto run = [&](int num_calls) {
      for (int i = 0; i < num_calls; ++i) {
        call.request().tensor(std::span(bytes).first(num_bytes));
        call.start();
        ASSERT_TRUE(call.wait(10s));
        ASSERT_TRUE(call.status().ok()) << call.status().message();
        while (!call.released()) std::this_thread::yield();
        call.open(met.to_server, "echo");
      }
    };
    run(100);
    counting.store(true);
    run(1000);
    counting.store(false);
    EXPECT_EQ(num_allocations.exchange(0), 0u) << num_bytes << " bytes";
  }
}

}  // namespace
}  // namespace axon::library
