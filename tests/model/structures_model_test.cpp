// Checks the queue of submissions and the published value in every interleaving.
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "base/published.hpp"
#include "engine/submissions.hpp"
#include "scheduler.hpp"

namespace axon {
namespace {

constexpr int kAll = 1000;  // more deviations than there are decision points

struct Item : engine::QueueNode {
  int thread = 0;
  int number = 0;
};

TEST(SubmissionsModel, every_item_is_taken_once_in_its_threads_order) {
  const model::Report report = model::explore({.most_deviations = kAll}, [] {
    engine::Submissions submissions;
    std::array<Item, 4> items;
    std::vector<sync::thread> pushers;
    for (int thread = 0; thread < 2; ++thread) {
      pushers.emplace_back([&submissions, &items, thread] {
        for (int number = 0; number < 2; ++number) {
          Item& item = items[static_cast<size_t>(2 * thread + number)];
          item.thread = thread;
          item.number = number;
          submissions.push(item);
        }
      });
    }
    std::array<int, 2> num_taken{};
    const auto take = [&] {
      for (engine::QueueNode* next = submissions.take_all(); next != nullptr; next = next->next) {
        const auto& item = static_cast<Item&>(*next);
        model::check(item.number == num_taken[static_cast<size_t>(item.thread)]++, "items are taken in push order");
      }
    };
    take();
    for (sync::thread& pusher : pushers) pusher.join();
    take();
    model::check(num_taken == std::array{2, 2} && submissions.empty(), "no item is lost");
  });
  EXPECT_EQ(report.failure, "") << testing::PrintToString(report.schedule);
  EXPECT_GT(report.num_schedules, 1000u);
}

TEST(PublishedModel, a_reader_gets_a_whole_value_and_never_an_older_one) {
  using Pair = std::array<uint64_t, 2>;
  const model::Report report = model::explore({.most_deviations = kAll}, [] {
    Published<Pair> published(Pair{0, 0});
    sync::thread writer([&] {
      for (uint64_t value = 1; value <= 2; ++value) published.publish({value, value});
    });
    uint64_t latest = 0;
    for (int i = 0; i < 2; ++i) {
      const Pair value = published.read();
      model::check(value[0] == value[1], "the value is complete");
      model::check(value[0] >= latest, "values do not go back");
      latest = value[0];
    }
    writer.join();
    model::check(published.read() == Pair{2, 2}, "the last value stays");
  });
  EXPECT_EQ(report.failure, "") << testing::PrintToString(report.schedule);
  EXPECT_GT(report.num_schedules, 1000u);
}

// Checks that the checker finds races between two threads.
TEST(Model, finds_a_lost_update_a_lost_wake_up_and_a_deadlock) {
  EXPECT_EQ(model::explore({.most_deviations = 1},
                           [] {
                             sync::atomic<int> count{0};
                             sync::thread other([&] { count.store(count.load() + 1); });
                             count.store(count.load() + 1);
                             other.join();
                             model::check(count.load() == 2, "both count");
                           })
                .failure,
            "not true: both count");
  const auto sleeper = [] {
    sync::mutex mutex;
    sync::condition_variable changed;
    sync::atomic<bool> ready{false};
    sync::thread other([&] {
      ready.store(true);
      changed.notify_all();  // without the mutex: the sleeper may have checked the flag, and not sleep yet
    });
    {
      std::unique_lock lock(mutex);
      changed.wait_until(lock, sync::Clock::time_point(std::chrono::hours(1)), [&] { return ready.load(); });
    }
    other.join();
  };
  EXPECT_EQ(model::explore({.most_deviations = 2}, sleeper).failure, "it ends too late: a wake-up is lost");
  EXPECT_EQ(model::explore({.most_deviations = 1},
                           [] {
                             sync::mutex first, second;
                             sync::thread other([&] {
                               const std::scoped_lock lock(second);
                               const std::lock_guard inner(first);
                             });
                             {
                               const std::lock_guard lock(first);
                               const std::lock_guard inner(second);
                             }
                             other.join();
                           })
                .failure,
            "all threads wait for each other");
}

}  // namespace
}  // namespace axon
