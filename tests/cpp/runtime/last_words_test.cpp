// What a peer has said before its end counts, although the word of that end goes another way, and is quicker.
#include <gtest/gtest.h>

#include <sys/socket.h>

#include <array>
#include <atomic>
#include <string>

#include "comes_true.hpp"
#include "runtime/runtimes.hpp"
#include "transport/node.hpp"

namespace axon {
namespace {

using namespace std::chrono_literals;

// A server that answers once it is told to.
struct LastWords {
  LastWords() {
    EXPECT_TRUE(pair.server->add("hold", [this](Invocation& each) { held.store(&each); }).ok());
  }

  CallPointer call(std::span<const std::byte> bytes) {
    CallPointer call = start(*pair.to_server, "hold", bytes, 24h);
    EXPECT_TRUE(comes_true([&] { return held.load() != nullptr; }));
    return call;
  }
  void answer() { echo(*held.load()); }

  void expect_answered(Call& call, std::span<const std::byte> bytes) {
    wait_for(*pair.to_server, call);
    ASSERT_TRUE(call.status().ok()) << call.status().message();
    EXPECT_EQ(content(call.reply()), Bytes(bytes.begin(), bytes.end()));
  }

  // As the client's engine does, at another time.
  void tick(Clock::time_point now) {
    pair.client_engine().exclusively([&] { EXPECT_TRUE(static_cast<Door&>(*pair.client).tick(now)); });
  }

  std::atomic<Invocation*> held{nullptr};
  LoopbackFabric fabric;
  TwoRuntimes pair{loopback_transports(fabric, 2)};
};

TEST(LastWordsTest, an_answer_may_come_after_its_sender_s_socket_has_hung_up) {
  LastWords last;
  std::array<int, 2> ends{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  FileDescriptor servers(ends[1]);
  last.pair.meet(FileDescriptor(ends[0]));
  const Bytes bytes = pattern(100, 1);
  const CallPointer call = last.call(bytes);
  servers = FileDescriptor();
  // Later than the engine's own looks, of which there are none any more then.
  const Clock::time_point later = Clock::now() + 1h;
  last.tick(later);
  EXPECT_TRUE(last.pair.to_server->failure().ok());
  last.answer();
  last.expect_answered(*call, bytes);
  last.tick(later + 1s);
  EXPECT_EQ(last.pair.to_server->failure().message(), "'server' is gone: its socket has hung up");
}

}  // namespace
}  // namespace axon
