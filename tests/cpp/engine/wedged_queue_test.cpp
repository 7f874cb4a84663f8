// Tests a process with a wedged receive queue, since another process was killed while it wrote there. Its groups end on
// all ranks, and other groups are not affected.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

#include "engine/engines.hpp"

namespace axon::engine {
namespace {

using namespace std::chrono_literals;

constexpr const char* kWhy = "no longer receives messages from its host";

// Another process of this host that an engine knows, and that does nothing.
class Neighbour {
 public:
  explicit Neighbour(Engine& engine) : pid_(fork()) {
    if (pid_ == 0) {
      pause();
      _exit(0);
    }
    PeerAddress peer_address = engine.address();
    peer_address.process[0] += 1;
    peer_address.pid = pid_;
    beacon_.emplace(HostBeacon::light(peer_address.process).value());  // the proof that it is on this host
    EXPECT_TRUE(engine.exclusively([&] { return engine.meet(peer_address).ok(); }));
  }
  ~Neighbour() { end(); }
  Neighbour(const Neighbour&) = delete;
  Neighbour& operator=(const Neighbour&) = delete;

  pid_t pid() const noexcept { return pid_; }
  void end() {
    if (std::exchange(has_ended_, true)) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

 private:
  const pid_t pid_;
  std::optional<HostBeacon> beacon_;
  bool has_ended_ = false;
};

TEST(WedgedQueueTest, ends_the_groups_of_its_engine_on_all_ranks) {
  transport::LoopbackFabric fabric;
  Engines engines(loopback_transports(fabric, 2));
  const auto group = engines.form("of the wedged");
  Neighbour neighbour(engines[0]);
  const auto awaited = TestOperation::all_reduce({1}, 30s);
  group[0]->start(*awaited);
  fabric.wedge(0);
  neighbour.end();
  ASSERT_TRUE(group[0]->wait(*awaited, sync::Clock::now() + 30s));
  EXPECT_NE(awaited->status().message().find(kWhy), std::string::npos) << awaited->status().message();
  EXPECT_NE(awaited->status().message().find(std::to_string(neighbour.pid())), std::string::npos);
  EXPECT_TRUE(engines[0].is_wedged());
  EXPECT_FALSE(engines[1].is_wedged());
  const auto of_the_other = TestOperation::all_reduce({1}, 30s);
  EXPECT_NE(run(*group[1], *of_the_other).message().find(kWhy), std::string::npos) << of_the_other->status().message();
  const auto received = TestOperation::receive(1, 0, 0);
  EXPECT_NE(run(*group[1], *received).message().find(kWhy), std::string::npos) << received->status().message();
}

TEST(WedgedQueueTest, no_group_is_formed_by_its_engine) {
  transport::LoopbackFabric fabric;
  Engines engines(loopback_transports(fabric, 2));
  Neighbour neighbour(engines[0]);
  const auto group = engines.form("before");
  const auto awaited = TestOperation::all_reduce({1}, 30s);
  group[0]->start(*awaited);
  fabric.wedge(0);
  neighbour.end();
  ASSERT_TRUE(group[0]->wait(*awaited, sync::Clock::now() + 30s));
  const OwnAddress own = engines[0].make_address();
  auto formed = engines[0].form({.name = "after", .rank = 0, .addresses = {own.address()}});
  ASSERT_FALSE(formed.ok());
  EXPECT_NE(formed.status().message().find(kWhy), std::string::npos) << formed.status().message();
}

TEST(WedgedQueueTest, a_neighbours_end_alone_wedges_no_queue) {
  transport::LoopbackFabric fabric;
  Engines engines(loopback_transports(fabric, 2));
  const auto group = engines.form("goes on");
  {
    const Neighbour neighbour(engines[0]);
  }
  on_all_ranks(2, [&](int rank) {
    const auto sum = TestOperation::all_reduce({1}, 30s);
    EXPECT_TRUE(run(*group[static_cast<size_t>(rank)], *sum).ok()) << sum->status().message();
  });
  EXPECT_FALSE(engines[0].is_wedged());
}

}  // namespace
}  // namespace axon::engine
