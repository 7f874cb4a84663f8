#include "ipc/registrations/cache_thread.hpp"

#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>

namespace axon::ipc {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Waits until the condition holds, or long enough to show that it does not.
bool comes_true(const std::function<bool()>& condition) {
  const auto deadline = CacheThread::Clock::now() + seconds(20);
  while (!condition()) {
    if (CacheThread::Clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST(CacheThread, looks_often_at_first_then_seldom_or_never) {
  EXPECT_EQ(CacheThread::pause_after(milliseconds(0), Liveliness::kIdle), CacheThread::kShortPause);
  EXPECT_EQ(CacheThread::pause_after(milliseconds(19), Liveliness::kLive), CacheThread::kShortPause);
  EXPECT_EQ(CacheThread::pause_after(milliseconds(20), Liveliness::kLive), CacheThread::kLongPause);
  EXPECT_EQ(CacheThread::pause_after(milliseconds(20), Liveliness::kHasty), CacheThread::kHastyPause);
  EXPECT_EQ(CacheThread::pause_after(milliseconds(20), Liveliness::kIdle), std::nullopt);
}

TEST(CacheThread, looks_at_all_tasks) {
  std::atomic<int> first{0}, second{0};
  CacheThread cache_thread;
  ASSERT_TRUE(cache_thread.add_task([&] { return ++first, Liveliness::kIdle; }).ok());
  ASSERT_TRUE(cache_thread.add_task([&] { return ++second, Liveliness::kIdle; }).ok());
  EXPECT_TRUE(comes_true([&] { return first > 1 && second > 1; }));
}

// Makes new threads request more stack than the address space has.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    (void)pthread_getattr_default_np(&before_);
    pthread_attr_t greedy;
    (void)pthread_attr_init(&greedy);
    (void)pthread_attr_setstacksize(&greedy, size_t{1} << 47);
    (void)pthread_setattr_default_np(&greedy);
    (void)pthread_attr_destroy(&greedy);
  }
  ~NoMoreThreads() {
    (void)pthread_setattr_default_np(&before_);
    (void)pthread_attr_destroy(&before_);
  }

 private:
  pthread_attr_t before_{};
};

TEST(CacheThread, says_why_its_thread_cannot_be_started_and_may_be_asked_again) {
  std::atomic<int> num_looks{0};
  CacheThread cache_thread("axon-test");
  const auto look = [&] { return ++num_looks, Liveliness::kIdle; };
  {
    const NoMoreThreads shortage;
    const Status refused = cache_thread.add_task(look);
    EXPECT_EQ(refused.code(), ErrorCode::kResourceExhausted);
    for (const char* part : {"the thread 'axon-test' cannot be started", "ulimit -u"}) {
      EXPECT_NE(refused.message().find(part), std::string::npos) << refused.message();
    }
  }
  ASSERT_TRUE(cache_thread.add_task(look).ok());
  EXPECT_TRUE(comes_true([&] { return num_looks > 0; }));
}

TEST(CacheThread, wakes_from_its_sleep) {
  std::atomic<int> num_looks{0};
  CacheThread cache_thread;
  ASSERT_TRUE(cache_thread.add_task([&] { return ++num_looks, Liveliness::kIdle; }).ok());
  for (int again = 0; again < 3; ++again) {
    const int before = num_looks;
    cache_thread.wake();
    EXPECT_TRUE(comes_true([&] { return num_looks > before; }));
  }
}

TEST(CacheThread, keeps_looking_as_long_as_something_is_live) {
  std::atomic<int> num_looks{0};
  CacheThread cache_thread;
  ASSERT_TRUE(cache_thread.add_task([&] { return ++num_looks, Liveliness::kLive; }).ok());
  EXPECT_TRUE(comes_true([&] { return num_looks > 25; }));  // more than fit into the alert period
}

TEST(CacheThread, calls_nothing_once_it_has_stopped) {
  std::atomic<int> num_looks{0};
  CacheThread cache_thread;
  ASSERT_TRUE(cache_thread.add_task([&] { return ++num_looks, Liveliness::kLive; }).ok());
  EXPECT_TRUE(comes_true([&] { return num_looks > 0; }));
  cache_thread.stop();
  const int at_the_end = num_looks;
  cache_thread.wake();
  cache_thread.stop();
  EXPECT_EQ(num_looks, at_the_end);
}

}  // namespace
}  // namespace axon::ipc
