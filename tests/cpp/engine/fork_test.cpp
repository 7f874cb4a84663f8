// Tests forked children, which inherit the memory of an engine and its groups, but not its thread. Every request of a
// child ends at once, and the parent's engine continues.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>

#include "engine/engines.hpp"
#include "engine/instance.hpp"

namespace axon::engine {
namespace {

using namespace std::chrono_literals;

class ForkTest : public testing::TestWithParam<transport::NetworkKind> {
 protected:
  // Runs `body`, with its expectations, in a child, which must reach its end.
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
    EXPECT_EQ(WEXITSTATUS(status), 0) << "the child's failures are printed above";
  }

  static void expect_forked(const Status& status) {
    EXPECT_EQ(status.code(), ErrorCode::kAborted);
    EXPECT_NE(status.message().find("was forked from one that uses torch_axon"), std::string::npos) << status.message();
  }

  // All requests that a child can make.
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

  const std::unique_ptr<transport::Network> network_ = GetParam().make();
  Engines engines_{transports_of(*network_, 2)};
  std::vector<std::unique_ptr<Communicator>> group_ = engines_.form("parents");
};

INSTANTIATE_TEST_SUITE_P(Networks, ForkTest, testing::Values(transport::kUcxSharedMemory, transport::kRings),
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
    EXPECT_TRUE(group_[0]->wait(*received, sync::Clock::now() + 10s));
    expect_forked(received->status());
    EXPECT_TRUE(group_[0]->wait(*received, sync::Clock::now() + 10s)) << "a second wait must also end at once";
    received->released.store(true);  // the engine never releases it in a child
  });
  EXPECT_FALSE(received->finished());
  auto sent = TestOperation::send({1, 2, 3}, 0, 0);
  EXPECT_TRUE(run(*group_[1], *sent).ok());
  EXPECT_TRUE(group_[0]->wait(*received, sync::Clock::now() + 10s));
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

// The process's own engine. A child can start one only if its parent has none.
class ForkedInstanceTest : public testing::Test {
 protected:
  static std::unique_ptr<Communicator> form_alone() {
    const EngineHold hold = hold_instance();
    const OwnAddress own = hold.engine().make_address();
    return hold.engine().form({.name = "alone", .rank = 0, .addresses = {own.address()}}).value();
  }

  static void expect_sum(Communicator& group, int32_t value, int32_t sum) {
    const auto operation = TestOperation::all_reduce(std::vector<int32_t>(50'000, value), 20s);
    ASSERT_TRUE(run(group, *operation).ok()) << operation->status().message();
    EXPECT_EQ(operation->data, std::vector<int32_t>(50'000, sum));
  }

  // Forms a group of two with the process at the other end of the socket.
  static void meet(int rank, int socket) {
    const EngineHold hold = hold_instance();
    const OwnAddress own = hold.engine().make_address();
    const std::vector<uint8_t> sent = own.address().encode();
    ASSERT_EQ(write(socket, sent.data(), sent.size()), static_cast<ssize_t>(sent.size()));
    std::vector<uint8_t> received(4096);
    const ssize_t num_bytes = read(socket, received.data(), received.size());
    ASSERT_GT(num_bytes, 0);
    received.resize(static_cast<size_t>(num_bytes));
    std::vector<PeerAddress> addresses{own.address(), PeerAddress::decode(received).value()};
    if (rank == 1) std::swap(addresses[0], addresses[1]);
    auto group = hold.engine().form({.name = "forked", .rank = rank, .addresses = std::move(addresses)});
    ASSERT_TRUE(group.ok()) << group.status().message();
    expect_sum(*group.value(), rank + 1, 3);
  }

  static pid_t start_child(const std::function<void()>& body) {
    const pid_t child = fork();
    if (child != 0) return child;
    alarm(60);
    body();
    shut_down_instance();
    _exit(HasFailure() ? 1 : 0);
  }

  static void expect_success(pid_t child) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "wait status " << status;
  }
};

TEST_F(ForkedInstanceTest, children_of_a_parent_that_has_ended_its_groups_form_their_own) {
  const auto closed = form_alone();
  expect_sum(*closed, 7, 7);
  closed->close();  // but not destroyed, as when the program keeps a Work
  end_unused_instance();
  std::array<int, 2> ends{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends.data()), 0);
  const std::array<pid_t, 2> children{start_child([&] { meet(0, ends[0]); }), start_child([&] { meet(1, ends[1]); })};
  for (const pid_t child : children) expect_success(child);
  for (const int end : ends) close(end);
  expect_sum(*form_alone(), 8, 8);
}

TEST_F(ForkedInstanceTest, a_child_of_a_parent_that_has_a_group_cannot_form_one) {
  const auto group = form_alone();
  end_unused_instance();
  expect_success(start_child([] { EXPECT_THROW(instance(), std::runtime_error); }));
  expect_sum(*group, 9, 9);
}

TEST_F(ForkedInstanceTest, an_engine_that_has_ended_before_a_fork_keeps_no_descriptors) {
  const auto num_descriptors = [] {
    const int next = dup(0);
    close(next);
    return next;
  };
  form_alone();
  end_unused_instance();
  const int num_before = num_descriptors();
  for (int i = 0; i < 5; ++i) {
    form_alone();
    end_unused_instance();
  }
  EXPECT_EQ(num_descriptors(), num_before);
}

}  // namespace
}  // namespace axon::engine
