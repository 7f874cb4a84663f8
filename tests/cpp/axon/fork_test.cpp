// Processes that use the C++ library and fork.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

#include "axon/connected_pair.hpp"

namespace axon::library {
namespace {

void meet_and_call() {
  ConnectedPair pair;
  ASSERT_TRUE(pair.server.add("echo", echo).ok());
  Call call(pair.to_server, "echo");
  call.start();
  ASSERT_TRUE(call.wait(20s));
  EXPECT_TRUE(call.status().ok()) << call.status().message();
}

void expect_success_in_child(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    body();
    exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "wait status " << status;
}

TEST(Fork, a_child_opens_runtimes_once_its_parent_has_closed_its_own) {
  meet_and_call();
  expect_success_in_child([] {
    meet_and_call();
    expect_success_in_child(meet_and_call);
  });
  meet_and_call();
}

TEST(Fork, a_child_opens_none_while_its_parent_has_one) {
  const ConnectedPair pair;
  expect_success_in_child([] {
    const Result<Runtime> opened = Runtime::open({.name = "child's"});
    ASSERT_FALSE(opened.ok());
    EXPECT_NE(opened.status().message().find("was forked from one that uses torch_axon"), std::string::npos)
        << opened.status().message();
    // Skips the check of the leak sanitizer: the child does not own what the parent has open.
    _exit(testing::Test::HasFailure() ? 1 : 0);
  });
}

}  // namespace
}  // namespace axon::library
