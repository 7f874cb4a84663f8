#include "memory/shared_pages.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <span>

namespace axon {
namespace {

constexpr size_t kNumBytes = 8192;

SharedPages make() {
  return SharedPages::make(kNumBytes).value();
}

FileDescriptor copy_of(int descriptor) {
  return FileDescriptor(dup(descriptor));
}

std::atomic_ref<uint32_t> word(const SharedPages& pages, size_t index) {
  return std::atomic_ref(reinterpret_cast<uint32_t*>(pages.data())[index]);
}

TEST(SharedPages, begin_as_zeros) {
  const SharedPages pages = make();
  EXPECT_TRUE(
      std::ranges::all_of(std::span(pages.data(), kNumBytes), [](std::byte each) { return each == std::byte{}; }));
}

TEST(SharedPages, are_allocated_on_use_up_to_the_memory_of_the_machine) {
  const Result<SharedPages> pages = SharedPages::make_on_use(kNumBytes, "test");
  ASSERT_TRUE(pages.ok()) << pages.status().message();
  EXPECT_EQ(word(pages.value(), 0).load(), 0u);
  EXPECT_TRUE(SharedPages::map(copy_of(pages.value().descriptor()), kNumBytes).ok());
  EXPECT_FALSE(SharedPages::make_on_use(size_t{1} << 60, "test").ok());
}

TEST(SharedPages, what_a_peer_stores_arrives_and_stays_when_it_ends) {
  const SharedPages pages = make();
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    const Result<SharedPages> theirs = SharedPages::open(parent, pages.descriptor(), kNumBytes);
    if (!theirs.ok()) _exit(1);
    while (word(theirs.value(), 0).load() == 0) usleep(100);
    word(theirs.value(), kNumBytes / 4 - 1).store(7);
    _exit(0);
  }
  word(pages, 0).store(1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_EQ(word(pages, kNumBytes / 4 - 1).load(), 7u);
}

TEST(SharedPages, outlive_their_maker) {
  std::optional<SharedPages> mine(make());
  word(*mine, 3).store(5);
  const Result<SharedPages> theirs = SharedPages::map(copy_of(mine->descriptor()), kNumBytes);
  ASSERT_TRUE(theirs.ok()) << theirs.status().message();
  mine.reset();
  EXPECT_EQ(word(theirs.value(), 3).load(), 5u);
}

TEST(SharedPages, are_mapped_whole_by_a_descriptor_that_is_closed_then) {
  const SharedPages mine = make();
  const Result<SharedPages> theirs = SharedPages::map(copy_of(mine.descriptor()), kNumBytes);
  ASSERT_TRUE(theirs.ok()) << theirs.status().message();
  EXPECT_EQ(theirs.value().descriptor(), -1);
  EXPECT_FALSE(SharedPages::map(copy_of(mine.descriptor()), kNumBytes / 2).ok());
  EXPECT_FALSE(SharedPages::map(FileDescriptor(), kNumBytes).ok());
}

TEST(SharedPages, cannot_be_shortened) {
  const SharedPages pages = make();
  EXPECT_NE(ftruncate(pages.descriptor(), kNumBytes / 2), 0);
}

TEST(SharedPages, are_not_opened_but_by_their_own_descriptor_and_length) {
  const SharedPages mine = make();
  EXPECT_TRUE(SharedPages::open(getpid(), mine.descriptor(), kNumBytes).ok());
  EXPECT_FALSE(SharedPages::open(getpid(), mine.descriptor(), kNumBytes / 2).ok());
  EXPECT_FALSE(SharedPages::open(getpid(), 1 << 20, kNumBytes).ok());
  EXPECT_FALSE(SharedPages::open(INT32_MAX, mine.descriptor(), kNumBytes).ok());
}

TEST(SharedPages, are_no_file_that_another_function_made) {
  const FileDescriptor unsealed(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), kNumBytes), 0);
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  const FileDescriptor read_end(ends[0]);
  const FileDescriptor write_end(ends[1]);
  for (const int descriptor : {unsealed.get(), read_end.get()}) {
    EXPECT_FALSE(SharedPages::open(getpid(), descriptor, kNumBytes).ok());
    EXPECT_FALSE(SharedPages::map(copy_of(descriptor), kNumBytes).ok());
  }
}

}  // namespace
}  // namespace axon
