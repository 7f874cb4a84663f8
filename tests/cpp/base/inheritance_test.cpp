// Tests which of its parent's descriptors a child process inherits. The test detects them by hang-ups: a socket reads
// the end of file when no process has a copy of the other end left.
#include "base/inheritance.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "base/file_descriptor.hpp"

namespace axon {
namespace {

using What = WithheldFromForks::What;

// The two ends of a connection.
struct Connection {
  Connection() {
    std::array<int, 2> ends{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()), 0);
    near = FileDescriptor(ends[0]);
    far = FileDescriptor(ends[1]);
  }

  bool has_hung_up() const {
    pollfd end{.fd = far.get(), .events = POLLRDHUP, .revents = 0};
    return poll(&end, 1, 0) == 1;
  }

  FileDescriptor near;
  FileDescriptor far;
};

// A child process that lives as long as this object and has what fork() left it. fork() returns here before it returns
// in the child.
class Child {
 public:
  Child() {
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe(ends.data()), 0);
    const FileDescriptor read_end(ends[0]);
    const FileDescriptor write_end(ends[1]);
    pid_ = fork();
    char ready = 0;
    if (pid_ == 0) {
      [[maybe_unused]] const ssize_t written = write(write_end.get(), &ready, sizeof ready);
      for (;;) pause();
    }
    EXPECT_EQ(::read(read_end.get(), &ready, sizeof ready), 1);
  }
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_ = -1;
};

FileDescriptor epoll_set_of(std::initializer_list<int> descriptors) {
  FileDescriptor set(epoll_create1(0));
  for (const int descriptor : descriptors) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = descriptor}};
    EXPECT_EQ(epoll_ctl(set.get(), EPOLL_CTL_ADD, descriptor, &event), 0);
  }
  return set;
}

bool is_closed_on_exec(const FileDescriptor& descriptor) {
  return (fcntl(descriptor.get(), F_GETFD) & FD_CLOEXEC) != 0;
}

TEST(Inheritance, connection_hangs_up_though_a_child_lives) {
  Connection withheld;
  Connection inherited;
  withheld.near.withhold_from_forks();
  const Child child;
  withheld.near = FileDescriptor();
  inherited.near = FileDescriptor();
  EXPECT_TRUE(withheld.has_hung_up());
  EXPECT_FALSE(inherited.has_hung_up());
}

TEST(Inheritance, follows_a_descriptor_that_moves_and_forgets_one_that_is_closed) {
  Connection first;
  first.near.withhold_from_forks();
  const int number = first.near.get();
  FileDescriptor moved = std::move(first.near);
  moved = FileDescriptor();
  Connection second;  // reuses the free descriptor number
  ASSERT_EQ(second.near.get(), number);
  const Child child;
  second.near = FileDescriptor();
  EXPECT_FALSE(second.has_hung_up()) << "the child lacks a descriptor that was never withheld";
}

TEST(Inheritance, child_has_blanks_in_place_of_what_is_withheld) {
  Connection connection;
  connection.near.withhold_from_forks();
  const pid_t child = fork();
  if (child == 0) {
    struct stat facts{};
    const bool is_blank = fstat(connection.near.get(), &facts) == 0 && !S_ISSOCK(facts.st_mode);
    connection.near = FileDescriptor();  // the copy of the owner in the child closes only the placeholder
    _exit(is_blank && fcntl(connection.far.get(), F_GETFD) >= 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_FALSE(connection.has_hung_up()) << "the parent's connection has ended with the child's copy";
}

TEST(Inheritance, sockets_of_epoll_sets_within_a_set_are_withheld_and_nothing_else) {
  Connection outer;
  Connection inner;
  Connection other;
  const FileDescriptor counter(eventfd(7, 0));
  const FileDescriptor nested = epoll_set_of({inner.near.get()});
  const FileDescriptor set = epoll_set_of({outer.near.get(), nested.get(), counter.get()});
  {
    const WithheldFromForks sockets(set.get(), What::kSocketsOfSet);
    const Child child;
    outer.near = FileDescriptor();
    inner.near = FileDescriptor();
    other.near = FileDescriptor();
    EXPECT_TRUE(outer.has_hung_up());
    EXPECT_TRUE(inner.has_hung_up());
    EXPECT_FALSE(other.has_hung_up());
  }
  uint64_t count = 0;
  EXPECT_EQ(read(counter.get(), &count, sizeof count), static_cast<ssize_t>(sizeof count));
}

// An earlier child keeps the first connection open. The set still watches it, under a number that now belongs to
// another connection.
TEST(Inheritance, a_number_that_has_become_another_file_is_left_alone) {
  Connection first;
  const int number = first.near.get();
  const FileDescriptor set = epoll_set_of({number});
  const Child keeps_first;
  first.near = FileDescriptor();
  Connection second;
  ASSERT_EQ(second.near.get(), number);
  ASSERT_FALSE(first.has_hung_up());
  const WithheldFromForks sockets(set.get(), What::kSocketsOfSet);
  const Child child;
  second.near = FileDescriptor();
  EXPECT_FALSE(second.has_hung_up());
}

TEST(Inheritance, closes_on_exec_all_that_a_set_watches) {
  const Connection connection;
  const FileDescriptor nested = epoll_set_of({connection.near.get()});
  const FileDescriptor set = epoll_set_of({nested.get()});
  close_on_exec(set.get());
  EXPECT_TRUE(is_closed_on_exec(set));
  EXPECT_TRUE(is_closed_on_exec(nested));
  EXPECT_TRUE(is_closed_on_exec(connection.near));
  EXPECT_FALSE(is_closed_on_exec(connection.far));
}

TEST(Inheritance, finds_epoll_sets_and_what_they_watch) {
  const FileDescriptor counter(eventfd(0, 0));
  const FileDescriptor set = epoll_set_of({counter.get()});
  const std::vector<int> sets = epoll_sets();
  EXPECT_TRUE(std::ranges::binary_search(sets, set.get()));
  EXPECT_FALSE(std::ranges::binary_search(sets, counter.get()));
  EXPECT_TRUE(watches(set.get(), counter.get()));
  EXPECT_FALSE(watches(set.get(), set.get()));
}

}  // namespace
}  // namespace axon
