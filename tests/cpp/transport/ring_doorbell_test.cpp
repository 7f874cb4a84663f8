// Tests RingDoorbells, by which processes of one host call each other, and reading another process's memory.
#include "transport/rings/doorbell.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "transport/node.hpp"
#include "transport/rings/process_memory.hpp"

namespace axon::transport {
namespace {

class RingDoorbells : public testing::Test {
 protected:
  static constexpr uint64_t kKey = 0x5EED;

  RingAddress address() const {
    return {.key = kKey, .identity = 0, .pid = getpid(), .page = doorbell.page(), .pipe = doorbell.pipe()};
  }

  RingDoorbell doorbell = RingDoorbell::make(kKey).value();
  WakeUpPipe wake_up_pipe = WakeUpPipe::open(address()).value();
  using Refused = WakeUpPipe::Refused;

  RingCall call;
  bool finds_foreign = false;
};

TEST_F(RingDoorbells, bring_each_call_once_in_order) {
  EXPECT_FALSE(doorbell.has_calls());
  for (int32_t number = 0; number < 100; ++number) {
    ASSERT_TRUE(wake_up_pipe.call({.key = kKey, .caller = {}, .kind = RingCall::Kind::kRing, .descriptor = number}));
  }
  EXPECT_TRUE(doorbell.has_calls());
  for (int32_t number = 0; number < 100; ++number) {
    ASSERT_TRUE(doorbell.next(call, finds_foreign));
    EXPECT_EQ(call.descriptor, number);
  }
  EXPECT_FALSE(doorbell.next(call, finds_foreign));
  EXPECT_FALSE(doorbell.has_calls());
  EXPECT_FALSE(finds_foreign);
}

TEST_F(RingDoorbells, turn_away_calls_without_a_reader_and_lose_none_that_they_took) {
  int32_t num_taken = 0;
  while (wake_up_pipe.call({.key = kKey, .caller = {}, .descriptor = num_taken})) ++num_taken;
  EXPECT_GT(num_taken, 100);
  for (int32_t number = 0; number < num_taken; ++number) {
    ASSERT_TRUE(doorbell.next(call, finds_foreign));
    ASSERT_EQ(call.descriptor, number);
  }
  EXPECT_FALSE(doorbell.next(call, finds_foreign));
  EXPECT_TRUE(wake_up_pipe.call({.key = kKey, .caller = {}}));
}

TEST_F(RingDoorbells, find_calls_among_foreign_bytes) {
  const std::string path = "/proc/self/fd/" + std::to_string(doorbell.pipe());
  const FileDescriptor raw(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  const Bytes noise = pattern(1001, 3);
  ASSERT_EQ(write(raw.get(), noise.data(), noise.size()), static_cast<ssize_t>(noise.size()));
  ASSERT_TRUE(wake_up_pipe.call({.key = kKey + 1, .caller = {}, .descriptor = 1}));
  ASSERT_TRUE(wake_up_pipe.call({.key = kKey, .caller = {}, .descriptor = 2}));
  ASSERT_TRUE(doorbell.next(call, finds_foreign));
  EXPECT_EQ(call.descriptor, 2);
  EXPECT_TRUE(finds_foreign);
}

TEST_F(RingDoorbells, tell_callers_that_they_are_refused) {
  EXPECT_EQ(wake_up_pipe.has_refused(7), Refused::kNo);
  for (uint64_t other = 100; other < 130; ++other) doorbell.refuse(other);
  EXPECT_EQ(wake_up_pipe.has_refused(7), Refused::kNo);
  doorbell.refuse(7);
  EXPECT_EQ(wake_up_pipe.has_refused(7), Refused::kYes);
  EXPECT_EQ(wake_up_pipe.has_refused(7), Refused::kNo) << "no refusal since the last query";
  doorbell.refuse(8 | RingCall::kForWant);
  EXPECT_EQ(wake_up_pipe.has_refused(8), Refused::kForWant);
}

TEST_F(RingDoorbells, leave_no_caller_waiting_whose_refusal_they_do_not_hold_any_more) {
  doorbell.refuse(7);
  for (uint64_t other = 100; other < 100 + DoorbellPage::kNumRefusals; ++other) doorbell.refuse(other);
  EXPECT_EQ(wake_up_pipe.has_refused(7), Refused::kMaybe);
  EXPECT_EQ(WakeUpPipe::open(address()).value().has_refused(7), Refused::kNo) << "refused before the pipe was opened";
}

TEST_F(RingDoorbells, tell_callers_that_no_process_reads) {
  EXPECT_FALSE(wake_up_pipe.is_closed());
  doorbell.close();
  EXPECT_TRUE(wake_up_pipe.is_closed());
}

TEST_F(RingDoorbells, are_opened_of_the_process_that_was_met_alone) {
  RingAddress other = address();
  other.key = kKey + 1;
  EXPECT_FALSE(WakeUpPipe::open(other).ok()) << "the address of another process";
  other = address();
  std::swap(other.page, other.pipe);
  EXPECT_FALSE(WakeUpPipe::open(other).ok());
  other = address();
  other.pid = INT32_MAX;
  EXPECT_FALSE(WakeUpPipe::open(other).ok());
}

TEST_F(RingDoorbells, do_not_end_a_process_that_calls_at_one_that_is_gone) {
  {
    const RingDoorbell gone = std::move(doorbell);
  }
  while (wake_up_pipe.call({.key = kKey, .caller = {}})) continue;
}

TEST(ProcessMemory, is_read_only_of_a_process_with_the_key) {
  const uint64_t key = 0x5EED;
  const Bytes there = pattern(100'000, 1);
  Bytes here(there.size());
  RingAddress process{.key = key, .identity = reinterpret_cast<uint64_t>(&key), .pid = getpid()};
  const auto from = reinterpret_cast<uint64_t>(there.data());
  ASSERT_EQ(read_process(process, from, here.data(), here.size()), ReadOutcome::kRead);
  EXPECT_EQ(here, there);
  EXPECT_EQ(read_process(process, 4096, here.data(), 8), ReadOutcome::kUnreadable);
  process.key += 1;
  EXPECT_EQ(read_process(process, from, here.data(), here.size()), ReadOutcome::kGone);
  process.pid = INT32_MAX;
  EXPECT_EQ(read_process(process, from, here.data(), here.size()), ReadOutcome::kGone);
}

}  // namespace
}  // namespace axon::transport
