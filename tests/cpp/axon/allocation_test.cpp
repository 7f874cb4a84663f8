// A call of the library that is opened again allocates nothing from the heap, at either end, once several have been
// there at a time.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <span>
#include <thread>
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

// At the server are the call, and those before it that the client knows the answers of but that have not yet left.
constexpr size_t kMostAtServer = 16;

// Whoever is asked: parts are kept meanwhile.
const Ask in_blocks = [](Announced&) {};

// Calls at once, none of which is answered before all are there.
void warm_up(const Peer& server, std::span<const uint8_t> bytes) {
  std::vector<Call> calls;
  for (size_t i = 0; i < kMostAtServer; ++i) {
    Call& call = calls.emplace_back(server, "echo_once_all_are_here");
    call.on_announced(in_blocks);
    call.request().tensor(bytes);
    call.start();
  }
  for (Call& call : calls) {
    ASSERT_TRUE(call.wait(10s));
    ASSERT_TRUE(call.status().ok()) << call.status().message();
  }
}

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

TEST(LibraryAllocation, none_once_warm) {
  std::mutex mutex;
  std::vector<Invocation> held;
  Meeting met;
  ASSERT_TRUE(met.server.add("echo", echo).ok());
  const auto echo_once_all_are_here = [&](Invocation& invocation) {
    const std::lock_guard lock(mutex);
    held.push_back(std::move(invocation));
    if (held.size() < kMostAtServer) return;
    for (Invocation& each : held) echo(each);
    held.clear();
  };
  ASSERT_TRUE(met.server.add("echo_once_all_are_here", echo_once_all_are_here, in_blocks).ok());

  const std::vector<uint8_t> bytes(100'000, 0x5A);
  std::vector<uint8_t> arguments(bytes.size());
  std::vector<uint8_t> reply(bytes.size());
  const auto into = [](std::vector<uint8_t>& memory) {
    return
        [&memory](Announced& coming) { coming.receive_into(0, std::span(memory).first(coming.tensor(0).num_bytes)); };
  };
  const Ask into_reply = into(reply);
  ASSERT_TRUE(met.server.add("echo_from_memory", echo, into(arguments)).ok());
  for (const size_t num_bytes : {0, 64, 5'000, 100'000}) {
    const std::span argument = std::span(bytes).first(num_bytes);
    warm_up(met.to_server, argument);
    Call call(met.to_server, "echo");
    expect_no_allocations(call, met.to_server, "echo", argument);
    call.on_announced(into_reply);
    call.open(met.to_server, "echo_from_memory");
    expect_no_allocations(call, met.to_server, "echo_from_memory", argument);
  }
}

}  // namespace
}  // namespace axon::library
