// Tests rings while one of two processes has no file descriptor left.
#include <dirent.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <functional>
#include <optional>

#include "base/resources.hpp"
#include "transport/networks.hpp"
#include "transport/node.hpp"
#include "transport/process_group.hpp"
#include "transport/rings/rings.hpp"
#include "transport/shortage.hpp"

namespace axon::transport {
namespace {

using namespace std::chrono_literals;

class RingsShortOfDescriptors : public testing::TestWithParam<int> {
 protected:
  static bool is_short(int rank) { return rank == GetParam(); }
  static std::unique_ptr<Transport> make_transport() {
    return with_rings(kUcxTcp.make()->make_transport(), RingUse::kCopies);
  }

  // Two connected processes, of which the parameter chooses the one without file descriptors.
  struct Rank {
    const int rank;
    Node& node;
    const PeerId peer;
    std::optional<Shortage>& shortage;
    ProcessGroup& group;
  };
  static void on_both(const std::function<void(Rank)>& run) {
    ProcessGroup group(2, [&run](int rank, ProcessGroup& group) {
      Node node(make_transport());
      const PeerId peer = group.meet(rank, node, true)[1 - rank];
      std::optional<Shortage> shortage;
      if (is_short(rank)) shortage.emplace();
      group.barrier(rank);
      run({rank, node, peer, shortage, group});
      group.barrier(rank, node);
    });
    EXPECT_TRUE(group.wait());
  }
};

INSTANTIATE_TEST_SUITE_P(At, RingsShortOfDescriptors, testing::Values(0, 1),
                         [](const auto& at) { return at.param == 0 ? "sender" : "receiver"; });

TEST_P(RingsShortOfDescriptors, wait_until_some_come_back) {
  on_both([](Rank at) {
    Node& node = at.node;
    if (at.rank == 0) node.send(at.peer, pattern(300, 7));
    drive({&node}, [&] { return !node.lost.empty(); }, 100ms);
    EXPECT_EQ(node.num_complete(), 0U);
    at.group.barrier(at.rank);
    at.shortage.reset();
    EXPECT_TRUE(drive({&node}, [&] { return at.rank == 0 ? node.all_sends_finished() : node.num_complete() == 1; }));
    if (at.rank == 1) {
      EXPECT_EQ(node.arrivals.front().bytes(), pattern(300, 7));
    }
    EXPECT_TRUE(node.lost.empty());
  });
}

TEST_P(RingsShortOfDescriptors, lose_the_peer_where_none_come_back) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer itself needs descriptors: it reads through a pipe whether an object is accessible";
#endif
  on_both([](Rank at) {
    if (at.rank != 0) return;
    Transfer& sent = at.node.send(at.peer, pattern(300, 7));
    EXPECT_TRUE(drive({&at.node}, [&] { return !at.node.lost.empty() && sent.finished(); }));
    EXPECT_EQ(sent.status.code(), ErrorCode::kPeerLost);
  });
}

TEST(Descriptors, are_counted_and_named_when_they_are_not_enough) {
  EXPECT_TRUE(check_descriptors(1, "be tested").ok());
  const Shortage shortage;
  const Status status = check_descriptors(3, "be tested");
  EXPECT_EQ(status.code(), ErrorCode::kResourceExhausted);
  EXPECT_NE(status.message().find("descriptors of this process are left, and 3 are needed to be tested; ulimit -n"),
            std::string::npos)
      << status.message();
  EXPECT_EQ(opendir("/"), nullptr);
  EXPECT_EQ(out_of("opendir", errno).code(), ErrorCode::kResourceExhausted);
}

}  // namespace
}  // namespace axon::transport
