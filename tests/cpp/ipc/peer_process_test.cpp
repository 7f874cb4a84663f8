#include "ipc/peer_process.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <span>
#include <string>

namespace axon::ipc {
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

TEST(PeerProcess, knows_whether_it_may_be_read) {
  PeerProcess::allow_peers();
  Child child;
  Result<PeerProcess> process = PeerProcess::open(child.pid());
  ASSERT_TRUE(process.ok()) << process.status().message();
  uint32_t word = 7;  // at the same address there
  const bool reads =
      process.value().read(reinterpret_cast<uint64_t>(&word), std::as_writable_bytes(std::span(&word, 1))).ok();
  EXPECT_EQ(process.value().may_be_read(), reads);
  child.end();
  EXPECT_FALSE(process.value().may_be_read());
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

TEST(PeerProcess, memory_is_read) {
  PeerProcess::allow_peers();
  const std::array<char, 5> text{"axon"};  // a fork has it at the same address
  Child child;
  Result<PeerProcess> process = PeerProcess::open(child.pid());
  ASSERT_TRUE(process.ok()) << process.status().message();
  std::array<char, 5> read{};
  const auto bytes = std::as_writable_bytes(std::span(read));
  const Status status = process.value().read(reinterpret_cast<uint64_t>(text.data()), bytes);
  if (!status.ok()) GTEST_SKIP() << status.message();
  EXPECT_EQ(read, text);
  EXPECT_FALSE(process.value().read(8, bytes).ok());
  child.end();
  EXPECT_FALSE(process.value().read(reinterpret_cast<uint64_t>(text.data()), bytes).ok());
}

TEST(PeerProcess, memory_is_read_whole_or_not_at_all) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  auto* const pages =
      static_cast<std::byte*>(mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(pages, MAP_FAILED);
  ASSERT_EQ(munmap(pages + page, page), 0);
  Child child;
  Result<PeerProcess> process = PeerProcess::open(child.pid());
  ASSERT_TRUE(process.ok()) << process.status().message();
  std::array<std::byte, 16> bytes{};
  EXPECT_FALSE(process.value().read(reinterpret_cast<uint64_t>(pages + page - 8), bytes).ok());
  munmap(pages, page);
}

}  // namespace
}  // namespace axon::ipc
