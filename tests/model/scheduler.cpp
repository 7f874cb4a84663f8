#include "scheduler.hpp"

#include <ucontext.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace axon::model {

namespace {

constexpr size_t kStackBytes = 256 << 10;
constexpr size_t kMostPoints = 100'000;  // per schedule: a program with more points does not end

struct Thread {
  std::function<void()> body;
  std::unique_ptr<std::byte[]> stack;
  ucontext_t context{};
  std::function<bool()> condition{};  // null: the thread can run
  Duration deadline = kNever;
  uint64_t ran_at = 0;
  bool yields = false;
  bool ended = false;
};

// Runs one schedule: the given decisions, then always the first choice.
class Run {
 public:
  struct Decision {
    int chosen;
    int num_choices;
  };

  Run(std::vector<Decision> decisions, const Limits& limits) : decisions_(std::move(decisions)), limits_(limits) {}

  void execute(const std::function<void()>& program) {
    spawn(program);
    while (failure_.empty()) {
      Thread* next = decide();
      if (next == nullptr) break;
      current_ = next;
      next->ran_at = ++num_turns_;
      swapcontext(&scheduler_, &next->context);
    }
  }

  void point() {
    if (++num_points_ > kMostPoints) return fail("it does not end");
    // Avoids a context switch if the thread keeps its turn, which is most of the time.
    const std::vector<Thread*> choices = runnable();
    Thread* next = choose(choices);
    if (next == current_) return;
    chosen_ = next;
    leave();
  }

  void leave() { swapcontext(&current_->context, &scheduler_); }

  bool block_until(const std::function<bool()>& condition, Duration deadline) {
    if (!condition()) {
      current_->condition = condition;
      current_->deadline = deadline;
      leave();
      current_->condition = nullptr;
      current_->deadline = kNever;
    }
    return condition();
  }

  void yield() {
    current_->yields = true;
    point();
    current_->yields = false;
  }

  void pause() {
    const uint64_t turn = num_turns_;
    block_until([this, turn] { return num_turns_ != turn; }, time_ + std::chrono::microseconds(1));
  }

  int spawn(std::function<void()> body) {
    Thread& thread = *threads_.emplace_back(std::make_unique<Thread>());
    thread.body = std::move(body);
    thread.stack = std::make_unique_for_overwrite<std::byte[]>(kStackBytes);
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.get();
    thread.context.uc_stack.ss_size = kStackBytes;
    makecontext(&thread.context, &Run::begin, 0);
    return static_cast<int>(threads_.size()) - 1;
  }

  void fail(std::string why) {
    if (failure_.empty()) failure_ = std::move(why);
    leave();  // does not return: objects on the threads' stacks are not destroyed
  }

  Duration tick() { return time_ += std::chrono::microseconds(1); }
  bool has_ended(int thread) const { return threads_[static_cast<size_t>(thread)]->ended; }
  const std::string& failure() const noexcept { return failure_; }
  const std::vector<Decision>& decisions() const noexcept { return decisions_; }

  static Run* active;

 private:
  static void begin() {
    Run& run = *active;
    Thread& self = *run.current_;
    self.body();
    self.ended = true;
    run.leave();
  }

  static bool can_run(const Thread& thread, Duration time) {
    return !thread.ended && (!thread.condition || thread.deadline <= time || thread.condition());
  }

  // Returns the running thread first, then the others by how long they have rested. Yielding threads are left out,
  // unless all threads yield.
  std::vector<Thread*> runnable() const {
    std::vector<Thread*> found;
    for (const auto& thread : threads_) {
      if (can_run(*thread, time_)) found.push_back(thread.get());
    }
    const auto gives_way = [](const Thread* thread) { return thread->yields; };
    if (!std::ranges::all_of(found, gives_way)) std::erase_if(found, gives_way);
    std::ranges::sort(found, {}, [this](const Thread* thread) {
      return thread == current_ && !thread->yields ? 0 : thread->ran_at + 1;
    });
    return found;
  }

  Thread* choose(const std::vector<Thread*>& choices) {
    if (choices.size() == 1) return choices[0];
    if (num_decided_ == decisions_.size()) decisions_.push_back({0, static_cast<int>(choices.size())});
    return choices[static_cast<size_t>(decisions_[num_decided_++].chosen)];
  }

  // Returns null at the end.
  Thread* decide() {
    if (chosen_ != nullptr) return std::exchange(chosen_, nullptr);
    std::vector<Thread*> choices = runnable();
    if (choices.empty()) {
      Duration next = kNever;
      for (const auto& thread : threads_) {
        if (!thread->ended) next = std::min(next, thread->deadline);
      }
      const bool all_ended = std::ranges::all_of(threads_, [](const auto& thread) { return thread->ended; });
      if (!all_ended) failure_ = next == kNever ? "all threads wait for each other" : failure_;
      if (all_ended || next == kNever) return nullptr;
      time_ = next;
      choices = runnable();
    }
    if (time_ > limits_.most_time) failure_ = "it ends too late: a wake-up is lost";
    return choose(choices);
  }

  std::vector<Decision> decisions_;
  const Limits limits_;
  std::vector<std::unique_ptr<Thread>> threads_;
  ucontext_t scheduler_{};
  Thread* current_ = nullptr;
  Thread* chosen_ = nullptr;
  size_t num_decided_ = 0;
  size_t num_points_ = 0;
  uint64_t num_turns_ = 0;
  Duration time_{0};
  std::string failure_;
};

Run* Run::active = nullptr;

// Changes the last decision that has another choice, and drops the decisions after it. Returns false if there is none.
bool advance(std::vector<Run::Decision>& decisions, int most_deviations) {
  auto num_deviations = std::ranges::count_if(decisions, [](const Run::Decision& each) { return each.chosen != 0; });
  while (!decisions.empty()) {
    Run::Decision& last = decisions.back();
    num_deviations -= last.chosen != 0;
    if (last.chosen + 1 < last.num_choices && num_deviations < most_deviations) {
      ++last.chosen;
      return true;
    }
    decisions.pop_back();
  }
  return false;
}

}  // namespace

Report explore(const Limits& limits, const std::function<void()>& program) {
  Report report;
  std::vector<Run::Decision> decisions;
  do {
    Run run(std::move(decisions), limits);
    Run::active = &run;
    run.execute(program);
    Run::active = nullptr;
    ++report.num_schedules;
    decisions = run.decisions();
    report.failure = run.failure();
  } while (report.failure.empty() && advance(decisions, limits.most_deviations));
  for (const Run::Decision& decision : decisions) report.schedule.push_back(decision.chosen);
  return report;
}

void point() {
  Run::active->point();
}

void yield() {
  Run::active->yield();
}

void pause() {
  Run::active->pause();
}

bool block_until(const std::function<bool()>& condition, Duration deadline) {
  return Run::active->block_until(condition, deadline);
}

Duration now() {
  return Run::active->tick();
}

int spawn(std::function<void()> body) {
  return Run::active->spawn(std::move(body));
}

void join(int thread) {
  point();
  block_until([thread] { return Run::active->has_ended(thread); }, kNever);
}

void check(bool condition, const char* expectation) {
  if (!condition) Run::active->fail(std::string("not true: ") + expectation);
}

}  // namespace axon::model
