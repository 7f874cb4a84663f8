// Tests that every part of a copy is made once, whichever threads take part.
#include "base/copy_threads.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

namespace axon {
namespace {

constexpr size_t kNumBytes = size_t{4} << 20;

// The threads of the process, with three helpers.
CopyThreads& threads_of_four() {
  setenv("AXON_COPY_THREADS", "4", 1);
  return CopyThreads::instance();
}

// Returns whether each part was made exactly once.
bool makes_each_part(CopyThreads& threads, size_t num_parts) {
  std::vector<std::atomic<int>> made(num_parts);
  threads.run(num_parts, [&](size_t part) noexcept { made[part].fetch_add(1); });
  return std::all_of(made.begin(), made.end(), [](const std::atomic<int>& times) { return times == 1; });
}

TEST(CopyThreads, each_part_of_each_copy_is_made_once) {
  CopyThreads& threads = threads_of_four();
  EXPECT_EQ(threads.size(), 4u);
  for (size_t round = 0; round < 20'000; ++round) ASSERT_TRUE(makes_each_part(threads, 1 + round % 17)) << round;
}

TEST(CopyThreads, copies_of_several_threads_come_at_the_same_time) {
  CopyThreads& threads = threads_of_four();
  std::atomic<size_t> num_right{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int round = 0; round < 2'000; ++round) num_right += makes_each_part(threads, 8) ? 1 : 0;
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(num_right, 8'000u);
}

TEST(CopyThreads, several_threads_take_part) {
  CopyThreads& threads = threads_of_four();
  std::atomic<int> num_inside{0};
  threads.run(2, [&](size_t) noexcept {
    num_inside.fetch_add(1);
    while (num_inside.load() < 2) std::this_thread::yield();  // ends only if another thread takes the other part
  });
}

TEST(CopyThreads, a_forked_child_has_threads_of_its_own) {
  ASSERT_TRUE(makes_each_part(threads_of_four(), 8));
  const pid_t child = fork();
  if (child == 0) _exit(makes_each_part(CopyThreads::instance(), 8) ? 0 : 1);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(CopyThreads, short_copies_are_made_by_one_thread) {
  const CopyThreads& threads = threads_of_four();
  EXPECT_EQ(threads.num_parts_for(1 << 20), 1u);
  EXPECT_EQ(threads.num_parts_for(kNumBytes), 8u);
  EXPECT_EQ(threads.num_bytes_of_step(1 << 20, 1 << 19), size_t{1} << 19);
  EXPECT_EQ(threads.num_bytes_of_step(3 << 20, 1 << 20), size_t{3} << 20);
  EXPECT_EQ(threads.num_bytes_of_step(64 << 20, 1 << 20), size_t{4} << 20);
}

TEST(CopyThreads, processes_of_a_host_share_its_cores) {
  unsetenv("AXON_COPY_THREADS");
  auto& threads = *new CopyThreads;  // never destroyed, as that of the process
  EXPECT_EQ(threads.size(), 1u);
  threads.set_num_processes(1);
  EXPECT_GE(threads.size(), 1u);
  EXPECT_LE(threads.size(), 4u);
  threads.set_num_processes(1'000'000);
  EXPECT_EQ(threads.size(), 1u);
}

}  // namespace
}  // namespace axon
