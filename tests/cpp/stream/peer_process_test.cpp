#include "stream/peer_process.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

namespace axon {
namespace {

// A child that waits to be killed.
class Child {
 public:
  Child() : pid_(fork()) {
    while (pid_ == 0) pause();
  }
  ~Child() { end(); }
  pid_t pid() const { return pid_; }
  void end() {
    if (pid_ == 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_;
};

TEST(PeerProcess, tells_when_it_has_ended) {
  Child child;
  Result<PeerProcess> process = PeerProcess::open(child.pid());
  ASSERT_TRUE(process.ok()) << process.status().message();
  EXPECT_FALSE(process.value().has_ended());
  child.end();
  EXPECT_TRUE(process.value().has_ended());
}

TEST(PeerProcess, one_that_is_gone_cannot_be_opened) {
  Child child;
  const pid_t pid = child.pid();
  child.end();
  EXPECT_FALSE(PeerProcess::open(pid).ok());
}

TEST(PeerProcess, descriptors_are_fetched) {
  PeerProcess::allow_peers();
  const FileDescriptor file(memfd_create("shared", MFD_CLOEXEC));
  ASSERT_EQ(write(file.get(), "axon", 4), 4);
  Child child;
  Result<PeerProcess> process = PeerProcess::open(child.pid());
  ASSERT_TRUE(process.ok()) << process.status().message();
  Result<FileDescriptor> fetched = process.value().fetch(file.get());
  if (!fetched.ok()) GTEST_SKIP() << fetched.status().message();
  std::array<char, 4> text{};
  ASSERT_EQ(pread(fetched.value().get(), text.data(), text.size(), 0), 4);
  EXPECT_EQ(std::string(text.data(), text.size()), "axon");
  EXPECT_FALSE(process.value().fetch(12345).ok());
}

}  // namespace
}  // namespace axon
