#include "base/forks.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <mutex>

namespace axon {
namespace {

struct Guarded {
  std::mutex mutex;
  int value = 0;
};

int exit_code_of_child(const std::function<bool()>& succeeds) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(succeeds() ? 0 : 1);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(Forks, are_counted_in_the_child) {
  const uint32_t before = num_forks();
  EXPECT_EQ(exit_code_of_child([&] { return num_forks() == before + 1; }), 0);
  EXPECT_EQ(num_forks(), before);
}

TEST(OnePerProcess, is_the_same_object_until_the_process_forks) {
  static OnePerProcess<Guarded> one;
  one.get().value = 7;
  EXPECT_EQ(one.get().value, 7);
}

TEST(OnePerProcess, is_a_new_object_in_a_child_whose_parent_had_locked_it) {
  static OnePerProcess<Guarded> one;
  one.get().value = 7;
  {
    const std::lock_guard lock(one.get().mutex);
    EXPECT_EQ(exit_code_of_child([&] {
                const std::lock_guard own(one.get().mutex);
                return one.get().value == 0;
              }),
              0);
  }
  EXPECT_EQ(one.get().value, 7);
}

}  // namespace
}  // namespace axon
