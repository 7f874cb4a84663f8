// Forked children, which inherit the memory of an engine and its groups, but not the thread that drives them: whatever
// they ask of them ends at once, and their parent's engine works on.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>
#include <thread>

#include "comm/engines.hpp"

namespace axon {
namespace {

using namespace std::chrono_literals;

class ForkTest : public testing::TestWithParam<NetworkKind> {
 protected:
  // Runs `body`, with its expectations, in a child, which has to come to its end.
  static void in_child(const std::function<void()>& body) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      body();
      _exit(HasFailure() ? 1 : 0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status) << ": does a call of the child hang?";
    EXPECT_EQ(WEXITSTATUS(status), 0) << "failures of the child stand above";
  }

  static void expect_forked(const Status& status) {
    EXPECT_EQ(status.code(), ErrorCode::kAborted);
    EXPECT_NE(status.message().find("was forked from one that uses torch_axon"), std::string::npos) << status.message();
  }

  // All that a child can ask for.
  void expect_that_nothing_works() {
    auto operation = TestOperation::all_reduce({1, 2}, 30s);
    expect_forked(run(*group_[0], *operation));
    EXPECT_EQ(operation->data, (std::vector<int32_t>{1, 2}));
    expect_forked(group_[0]->failure());
    expect_forked(group_[0]->path_to(1).status());
    group_[0]->abort("in a child");
    group_[0]->close();
    group_[0].reset();
    engines_[0].shut_down();
  }

  void expect_that_all_works() {
    on_all_ranks(2, [&](int rank) {
      auto operation = TestOperation::all_reduce(std::vector<int32_t>(50'000, rank + 1), 30s);
      ASSERT_TRUE(run(*group_[static_cast<size_t>(rank)], *operation).ok()) << operation->status().message();
      EXPECT_EQ(operation->data, std::vector<int32_t>(50'000, 3));
    });
  }

  const std::unique_ptr<Network> network_ = GetParam().make();
  Engines engines_{transports_of(*network_, 2)};
  std::vector<std::unique_ptr<Communicator>> group_ = engines_.form("parents");
};

INSTANTIATE_TEST_SUITE_P(Networks, ForkTest, testing::Values(kUcxSharedMemory, kRings),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(ForkTest, what_a_child_asks_of_its_parents_groups_fails_at_once_and_its_parent_works_on) {
  expect_that_all_works();
  in_child([&] { expect_that_nothing_works(); });
  expect_that_all_works();
}

TEST_P(ForkTest, what_its_parent_has_in_flight_fails_in_a_child_that_waits_for_it_and_goes_on_in_the_parent) {
  auto received = TestOperation::receive(3, 1, 0);
  group_[0]->start(*received);
  in_child([&] {
    EXPECT_TRUE(group_[0]->wait(*received, Clock::now() + 10s));
    expect_forked(received->status());
    EXPECT_TRUE(group_[0]->wait(*received, Clock::now() + 10s)) << "a second time";
    received->released.store(true);  // never, in a child
  });
  EXPECT_FALSE(received->finished());
  auto sent = TestOperation::send({1, 2, 3}, 0, 0);
  EXPECT_TRUE(run(*group_[1], *sent).ok());
  EXPECT_TRUE(group_[0]->wait(*received, Clock::now() + 10s));
  await_release(*received);
  EXPECT_EQ(received->data, (std::vector<int32_t>{1, 2, 3}));
}

TEST_P(ForkTest, children_of_every_moment_of_a_busy_engine_come_to_their_end) {
  std::atomic<bool> enough{false};
  std::thread traffic([&] {
    on_all_ranks(2, [&](int rank) {
      for (bool last = false; !last;) {
        last = rank == 0 && enough.load();
        auto operation = TestOperation::broadcast({last ? 1 : 0}, 0, 30s);
        ASSERT_TRUE(run(*group_[static_cast<size_t>(rank)], *operation).ok());
        last = operation->data[0] == 1;
      }
    });
  });
  for (int i = 0; i < 50; ++i) {
    in_child([&] {
      expect_forked(group_[0]->failure());
      expect_forked(group_[1]->path_to(0).status());
    });
  }
  enough.store(true);
  traffic.join();
  expect_that_all_works();
}

}  // namespace
}  // namespace axon
