// A call of the library that is opened again allocates nothing from the heap, at either end, after several calls were
// in flight at a time.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "axon/connected_pair.hpp"
#include "counted_new.hpp"

namespace {
std::atomic<bool> counting{false};  // in all threads, including the callee's
std::atomic<size_t> num_allocations{0};
}  // namespace

void axon::on_allocation() noexcept {
  if (counting.load(std::memory_order_relaxed)) num_allocations.fetch_add(1);
}

namespace axon::library {
namespace {

// The server holds the call, and earlier calls whose answers the client has received but that are not released yet.
constexpr size_t kMostAtServer = 16;

class LibraryAllocation : public testing::Test {
 protected:
  // Makes the runtime ask, so that payload frames are kept in the meantime.
  static void in_blocks(Announced&) {}

  LibraryAllocation() {
    const auto echo_once_all_are_here = [this](Invocation& invocation) {
      const std::lock_guard lock(mutex_);
      held_.push_back(std::move(invocation));
      if (held_.size() < kMostAtServer) return;
      for (Invocation& each : held_) echo(each);
      held_.clear();
    };
    EXPECT_TRUE(pair_.server.add("echo_once_all_are_here", echo_once_all_are_here, in_blocks).ok());
  }

  // Runs calls at once, which are answered only after all have arrived.
  void warm_up(std::span<const uint8_t> bytes, const Ask& ask = in_blocks) {
    std::vector<Call> calls;
    for (size_t i = 0; i < kMostAtServer; ++i) {
      Call& call = calls.emplace_back(pair_.to_server, "echo_once_all_are_here");
      call.on_announced(ask);
      call.request().tensor(bytes);
      call.start();
    }
    for (Call& call : calls) {
      ASSERT_TRUE(call.wait(10s));
      ASSERT_TRUE(call.status().ok()) << call.status().message();
    }
  }

  std::mutex mutex_;
  std::vector<Invocation> held_;
  ConnectedPair pair_;
};

void run(Call& call, const Peer& server, std::string_view function, std::span<const uint8_t> bytes, int num_calls) {
  for (int i = 0; i < num_calls; ++i) {
    call.request().tensor(bytes);
    call.start();
    ASSERT_TRUE(call.wait(10s));
    ASSERT_TRUE(call.status().ok()) << call.status().message();
    while (!call.released()) std::this_thread::yield();
    call.open(server, function);
  }
}

void expect_no_allocations(Call& call, const Peer& server, std::string_view function, std::span<const uint8_t> bytes) {
  run(call, server, function, bytes, 100);
  counting.store(true);
  run(call, server, function, bytes, 1000);
  counting.store(false);
  EXPECT_EQ(num_allocations.exchange(0), 0u) << function << ", " << bytes.size() << " bytes";
}

TEST_F(LibraryAllocation, none_once_warm) {
  ASSERT_TRUE(pair_.server.add("echo", echo).ok());
  const std::vector<uint8_t> bytes(100'000, 0x5A);
  std::vector<uint8_t> arguments(bytes.size());
  std::vector<uint8_t> reply(bytes.size());
  const auto into = [](std::vector<uint8_t>& memory) {
    return
        [&memory](Announced& coming) { coming.receive_into(0, std::span(memory).first(coming.tensor(0).num_bytes)); };
  };
  const Ask into_reply = into(reply);
  ASSERT_TRUE(pair_.server.add("echo_from_memory", echo, into(arguments)).ok());
  for (const size_t num_bytes : {0, 64, 5'000, 100'000}) {
    const std::span argument = std::span(bytes).first(num_bytes);
    warm_up(argument);
    Call call(pair_.to_server, "echo");
    expect_no_allocations(call, pair_.to_server, "echo", argument);
    call.on_announced(into_reply);
    call.open(pair_.to_server, "echo_from_memory");
    expect_no_allocations(call, pair_.to_server, "echo_from_memory", argument);
  }
}

TEST_F(LibraryAllocation, none_for_what_comes_into_a_pool_once_warm) {
  const Pool pool(size_t{1} << 24);
  ASSERT_TRUE(pair_.server.add("echo_from_pool", echo, pool).ok());
  const std::vector<uint8_t> bytes(100'000, 0x5A);
  for (const size_t num_bytes : {64, 100'000}) {
    const std::span argument = std::span(bytes).first(num_bytes);
    warm_up(argument, pool);  // which then has as many allocations
    Call call(pair_.to_server, "echo_from_pool");
    call.on_announced(pool);
    call.open(pair_.to_server, "echo_from_pool");
    expect_no_allocations(call, pair_.to_server, "echo_from_pool", argument);
  }
}

TEST_F(LibraryAllocation, none_for_publications_once_warm) {
  std::atomic<int> num_arrived{0};
  const auto count = [&](Invocation& invocation) {
    ++num_arrived;
    invocation.reply();
  };
  ASSERT_TRUE(pair_.server.add("count", count).ok());
  const std::vector<Peer> peers(3, pair_.to_server);
  const std::vector<uint8_t> bytes(100'000, 0x5A);
  warm_up(bytes);
  std::atomic<int> num_ends{0};
  Publication news("count");
  news.on_finished([&] { num_ends.fetch_add(1); });
  const auto run = [&](int num_turns) {
    for (int i = 0; i < num_turns; ++i) {
      news.message().tensor(std::span(bytes));
      news.tell(peers);
      ASSERT_TRUE(news.wait(10s));
      while (!news.released() || num_arrived.load() < 3) std::this_thread::yield();
      num_arrived.store(0);
      news.open("count");
    }
  };
  run(100);
  counting.store(true);
  run(1000);
  counting.store(false);
  EXPECT_EQ(num_allocations.exchange(0), 0u);
  EXPECT_EQ(num_ends.load(), 1100);
}

}  // namespace
}  // namespace axon::library
