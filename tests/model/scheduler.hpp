// Runs a program of several threads under every schedule, one after the other: stateless model checking.
//
//   Report report = explore({.most_deviations = 2}, [] {
//     sync::atomic<int> count{0};                     // each operation on such an object is a point of decision
//     sync::thread other([&] { count.fetch_add(1); });
//     other.join();
//     check(count.load() == 1, "the other thread counts");
//   });
//   EXPECT_EQ(report.failure, "");                    // else what went wrong; report.schedule repeats it
//
// Threads are contexts of one thread, of which one runs at a time: under sequential consistency, without spurious
// wake-ups. By itself the running thread goes on until it blocks or yields, then whoever has rested longest; each other
// choice is a deviation. All schedules of up to so many deviations are run, in turn. Time stands still but for a
// microsecond each time that it is asked for, and jumps to the next deadline when nobody can run: a wake-up that is
// lost shows as a program that ends too late, or never.
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
  Duration most_time = std::chrono::seconds(100);  // of the program's own
};

struct Report {
  uint64_t num_schedules = 0;
  std::string failure;        // empty: there is none
  std::vector<int> schedule;  // of the failure: which of those that could run were chosen
};

Report explore(const Limits& limits, const std::function<void()>& program);

// All below: within a program only.

// Another thread may be given the turn here.
void point();
// The others go first.
void yield();
// Until the condition holds or the program's time has come to the deadline; returns whether it holds. The condition
// looks at plain memory only.
bool block_until(const std::function<bool()>& condition, Duration deadline);
inline constexpr Duration kNever = Duration::max();

Duration now();
int spawn(std::function<void()> body);
void join(int thread);
// Ends the exploration with this failure, if the condition does not hold.
void check(bool condition, const char* expectation);

}  // namespace axon::model
