// Runs a program of several threads under every schedule, one after the other: stateless model checking.
//
//   Report report = explore({.most_deviations = 2}, [] {
//     sync::atomic<int> count{0};                        // each operation on such an object is a decision point
//     sync::thread other([&] { count.fetch_add(1); });
//     other.join();
//     check(count.load() == 1, "the other thread counts");
//   });
//   EXPECT_EQ(report.failure, "");                       // otherwise report.schedule repeats the failure
//
// Threads are contexts of one thread, of which one runs at a time: under sequential consistency, without spurious
// wake-ups. By default the running thread goes on until it blocks or yields, and then the thread that has rested
// longest runs. Each other choice is a deviation. All schedules with up to `most_deviations` deviations are run in
// turn.
//
// The clock advances by a microsecond each time that it is read, and jumps to the next deadline when no thread can run.
// So a lost wake-up shows as a program that ends too late, or never.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace axon::model {

using Duration = std::chrono::nanoseconds;

struct Limits {
  int most_deviations = 2;
  Duration most_time = std::chrono::seconds(100);  // on the program's own clock
};

struct Report {
  uint64_t num_schedules = 0;
  std::string failure;        // empty: no schedule failed
  std::vector<int> schedule;  // of the failure: the choice at each decision, by index
};

Report explore(const Limits& limits, const std::function<void()>& program);

// The functions below may be called only within a program.

// A decision point: another thread may run here.
void point();
// Lets the other threads run first, until they block or yield.
void yield();
// Lets another thread run first, up to its next decision point, or a microsecond pass if none can run.
void pause();
// Blocks until the condition holds or the program's clock has reached the deadline; returns whether it holds. The
// condition may read plain memory only.
bool block_until(const std::function<bool()>& condition, Duration deadline);
inline constexpr Duration kNever = Duration::max();

Duration now();
int spawn(std::function<void()> body);
void join(int thread);
// Ends the exploration with this failure if the condition does not hold.
void check(bool condition, const char* expectation);

}  // namespace axon::model
