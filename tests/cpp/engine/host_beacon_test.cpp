#include "engine/host_beacon.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <optional>

#include "base/random.hpp"
#include "comes_true.hpp"

namespace axon::engine {
namespace {

HostBeacon::Name random_name() {
  return {random_number(), random_number()};
}

bool sees(const HostBeacon::Name& name) {
  Result<bool> seen = HostBeacon::look_for(name);
  EXPECT_TRUE(seen.ok()) << seen.status().message();
  return seen.ok() && seen.value();
}

// Returns the exit code of a child that runs this.
int in_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(HostBeacon, is_seen_while_it_is_lit) {
  const HostBeacon::Name name = random_name();
  EXPECT_FALSE(sees(name));
  {
    const Result<HostBeacon> beacon = HostBeacon::light(name);
    ASSERT_TRUE(beacon.ok());
    for (int i = 0; i < 10'000; ++i) ASSERT_TRUE(sees(name)) << "checks exhaust a resource, check " << i;
    EXPECT_EQ(in_child([&] { return sees(name) ? 7 : 1; }), 7);
  }
  EXPECT_FALSE(sees(name));
}

TEST(HostBeacon, a_name_is_lit_once) {
  const HostBeacon::Name name = random_name();
  const Result<HostBeacon> beacon = HostBeacon::light(name);
  ASSERT_TRUE(beacon.ok());
  EXPECT_FALSE(HostBeacon::light(name).ok());
}

TEST(HostBeacon, is_not_seen_from_another_network_namespace) {
  const HostBeacon::Name name = random_name();
  const Result<HostBeacon> beacon = HostBeacon::light(name);
  ASSERT_TRUE(beacon.ok());
  const int code = in_child([&] {
    if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0) return 2;
    return sees(name) ? 1 : 0;
  });
  if (code == 2) GTEST_SKIP() << "this kernel or container does not permit network namespaces";
  EXPECT_EQ(code, 0);
}

TEST(HostBeacon, goes_out_with_its_process_though_a_child_lives) {
  const HostBeacon::Name name = random_name();
  std::optional<Result<HostBeacon>> beacon(HostBeacon::light(name));
  ASSERT_TRUE(beacon->ok());
  const pid_t child = fork();
  while (child == 0) pause();
  beacon.reset();
  EXPECT_TRUE(comes_true([&] { return !sees(name); })) << "the child keeps the beacon for ever";
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

// A check that fails must not be mistaken for an answer.
TEST(HostBeacon, looking_without_a_descriptor_fails) {
  const HostBeacon::Name name = random_name();
  const Result<HostBeacon> beacon = HostBeacon::light(name);
  ASSERT_TRUE(beacon.ok());
  const int code = in_child([&] {
    const rlimit none{.rlim_cur = 0, .rlim_max = 0};
    setrlimit(RLIMIT_NOFILE, &none);
    return HostBeacon::look_for(name).ok() ? 1 : 0;
  });
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace axon::engine
