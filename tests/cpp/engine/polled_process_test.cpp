// Tests processes whose end is detected by polling.
#include "engine/polled_process.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace axon::engine {
namespace {

class PolledProcesses : public testing::Test {
 protected:
  PolledProcesses() : child(fork()) {
    while (child == 0) pause();
  }
  ~PolledProcesses() override {
    if (!is_reaped) end(WEXITED);
  }
  // Waits for the child with these `options` of waitid(); with WNOWAIT it stays a zombie.
  void end(int options) {
    ::kill(child, SIGKILL);
    siginfo_t how{};
    EXPECT_EQ(waitid(P_PID, static_cast<id_t>(child), &how, options), 0);
    is_reaped = (options & WNOWAIT) == 0;
  }

  const pid_t child;
  bool is_reaped = false;
};

TEST_F(PolledProcesses, have_ended_whether_or_not_their_parent_has_waited_for_them) {
  const PolledProcess process = PolledProcess::find(child, 7).value();
  EXPECT_EQ(process.peer(), 7U);
  EXPECT_FALSE(process.has_ended());
  end(WEXITED | WNOWAIT);
  EXPECT_TRUE(process.has_ended());
  end(WEXITED);
  EXPECT_TRUE(process.has_ended());
}

TEST_F(PolledProcesses, are_not_found_once_they_have_ended) {
  end(WEXITED | WNOWAIT);
  EXPECT_EQ(PolledProcess::find(child, 7).status().code(), ErrorCode::kPeerLost);
  end(WEXITED);
  EXPECT_EQ(PolledProcess::find(child, 7).status().code(), ErrorCode::kPeerLost);
}

TEST_F(PolledProcesses, are_found_by_themselves) {
  EXPECT_FALSE(PolledProcess::find(getpid(), 1).value().has_ended());
}

}  // namespace
}  // namespace axon::engine
