#include "base/task.hpp"

#include <gtest/gtest.h>

#include <coroutine>
#include <string>

#include "base/status.hpp"

namespace axon {
namespace {

struct Stage {
  SizeClassPool pool;
  std::coroutine_handle<> suspended;
  int num_alive = 0;

  SizeClassPool& size_class_pool() { return pool; }
};

struct Suspend {
  Stage& stage;
  bool await_ready() const { return false; }
  void await_suspend(std::coroutine_handle<> handle) { stage.suspended = handle; }
  void await_resume() const {}
};

struct Alive {
  explicit Alive(Stage& owner) : stage(owner) { ++stage.num_alive; }
  ~Alive() { --stage.num_alive; }
  Stage& stage;
};

Task<int> inner(Stage& stage, int value) {
  Alive alive(stage);
  co_await Suspend{stage};
  co_return value + 1;
}

Task<int> outer(Stage& stage) {
  Alive alive(stage);
  const int first = co_await inner(stage, 1);
  const int second = co_await inner(stage, first);
  co_return second;
}

Task<Status> fails_early(Stage& stage) {
  AXON_CO_TRY(Status(ErrorCode::kInternal, "early"));
  co_await Suspend{stage};
  co_return Status();
}

TEST(Task, is_lazy_and_runs_nested_tasks_to_the_end) {
  Stage stage;
  Task<int> task = outer(stage);
  EXPECT_EQ(stage.num_alive, 0);
  task.resume();
  EXPECT_EQ(stage.num_alive, 2);
  stage.suspended.resume();
  EXPECT_FALSE(task.done());
  stage.suspended.resume();
  ASSERT_TRUE(task.done());
  EXPECT_EQ(task.take(), 3);
}

TEST(Task, destroying_it_suspended_destroys_nested_frames) {
  Stage stage;
  {
    Task<int> task = outer(stage);
    task.resume();
    EXPECT_EQ(stage.num_alive, 2);
  }
  EXPECT_EQ(stage.num_alive, 0);
}

TEST(Task, co_try_leaves_with_the_failure) {
  Stage stage;
  Task<Status> task = fails_early(stage);
  task.resume();
  ASSERT_TRUE(task.done());
  EXPECT_EQ(task.take().message(), "early");
}

}  // namespace
}  // namespace axon
