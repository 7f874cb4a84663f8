#include "gpu_comm/workspace/shared_page.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <span>

#include "ipc/peer_process.hpp"

namespace axon::gpu_comm {
namespace {

std::atomic_ref<uint32_t> flag(const SharedPage& page, size_t index) {
  return std::atomic_ref(reinterpret_cast<uint32_t*>(page.data())[index]);
}

SharedPage create() {
  Result<SharedPage> page = SharedPage::create();
  if (!page.ok()) throw std::runtime_error(page.status().message());
  return std::move(page).value();
}

// Maps the parent's page of this number as a process that has not inherited its mapping would.
std::optional<SharedPage> fetch(pid_t parent, int number) {
  const Result<ipc::PeerProcess> process = ipc::PeerProcess::open(parent);
  if (!process.ok()) return std::nullopt;
  Result<FileDescriptor> memory = process.value().fetch(number);
  if (!memory.ok()) return std::nullopt;
  Result<SharedPage> page = SharedPage::map(memory.value());
  if (!page.ok()) return std::nullopt;
  return std::move(page).value();
}

TEST(SharedPage, begins_as_zeros) {
  const SharedPage page = create();
  EXPECT_TRUE(std::ranges::all_of(std::span(page.data(), SharedPage::kNumBytes),
                                  [](std::byte each) { return each == std::byte{0}; }));
}

TEST(SharedPage, what_a_peer_stores_comes_and_stays_when_it_ends) {
  ipc::PeerProcess::allow_peers();
  const SharedPage page = create();
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    const std::optional<SharedPage> theirs = fetch(parent, page.descriptor().get());
    if (!theirs) _exit(1);
    while (flag(*theirs, 0).load() == 0) usleep(100);
    flag(*theirs, SharedPage::kNumBytes / 4 - 1).store(7);
    _exit(0);
  }
  flag(page, 0).store(1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 1) GTEST_SKIP() << "processes may not fetch each other's descriptors";
  ASSERT_EQ(status, 0);
  EXPECT_EQ(flag(page, SharedPage::kNumBytes / 4 - 1).load(), 7u);
}

TEST(SharedPage, outlives_its_maker) {
  std::optional<SharedPage> mine(create());
  flag(*mine, 3).store(5);
  Result<SharedPage> theirs = SharedPage::map(FileDescriptor(dup(mine->descriptor().get())));
  ASSERT_TRUE(theirs.ok()) << theirs.status().message();
  mine.reset();
  EXPECT_EQ(flag(theirs.value(), 3).load(), 5u);
}

TEST(SharedPage, needs_memory_that_the_descriptor_refers_to) {
  EXPECT_FALSE(SharedPage::map(FileDescriptor()).ok());
}

}  // namespace
}  // namespace axon::gpu_comm
