// Bells, by which processes of a host call each other, and the reading of one another's memory.
#include "transport/rings/doorbell.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "transport/node.hpp"
#include "transport/rings/process_memory.hpp"

namespace axon {
namespace {

class Bells : public testing::Test {
 protected:
  static constexpr uint64_t kKey = 0x5EED;

  RingAddress address() const {
    return {.key = kKey, .identity = 0, .pid = getpid(), .page = bell.page(), .pipe = bell.pipe()};
  }

  Bell bell = Bell::make(kKey).value();
  BellPull pull = BellPull::open(address()).value();
  using Refused = BellPull::Refused;

  RingCall call;
  bool finds_foreign = false;
};

TEST_F(Bells, bring_each_call_once_in_order) {
  EXPECT_FALSE(bell.has_calls());
  for (int32_t number = 0; number < 100; ++number) {
    ASSERT_TRUE(pull.call({.key = kKey, .caller = {}, .kind = RingCall::Kind::kRing, .descriptor = number}));
  }
  EXPECT_TRUE(bell.has_calls());
  for (int32_t number = 0; number < 100; ++number) {
    ASSERT_TRUE(bell.next(call, finds_foreign));
    EXPECT_EQ(call.descriptor, number);
  }
  EXPECT_FALSE(bell.next(call, finds_foreign));
  EXPECT_FALSE(bell.has_calls());
  EXPECT_FALSE(finds_foreign);
}

TEST_F(Bells, turn_away_calls_when_nobody_reads_and_lose_none_that_they_took) {
  int32_t num_taken = 0;
  while (pull.call({.key = kKey, .caller = {}, .descriptor = num_taken})) ++num_taken;
  EXPECT_GT(num_taken, 100);
  for (int32_t number = 0; number < num_taken; ++number) {
    ASSERT_TRUE(bell.next(call, finds_foreign));
    ASSERT_EQ(call.descriptor, number);
  }
  EXPECT_FALSE(bell.next(call, finds_foreign));
  EXPECT_TRUE(pull.call({.key = kKey, .caller = {}}));
}

TEST_F(Bells, find_calls_among_foreign_bytes) {
  const std::string path = "/proc/self/fd/" + std::to_string(bell.pipe());
  const FileDescriptor raw(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  const Bytes noise = pattern(1001, 3);
  ASSERT_EQ(write(raw.get(), noise.data(), noise.size()), static_cast<ssize_t>(noise.size()));
  ASSERT_TRUE(pull.call({.key = kKey + 1, .caller = {}, .descriptor = 1}));
  ASSERT_TRUE(pull.call({.key = kKey, .caller = {}, .descriptor = 2}));
  ASSERT_TRUE(bell.next(call, finds_foreign));
  EXPECT_EQ(call.descriptor, 2);
  EXPECT_TRUE(finds_foreign);
}

TEST_F(Bells, tell_callers_that_they_are_refused) {
  EXPECT_EQ(pull.has_refused(7), Refused::kNo);
  for (uint64_t other = 100; other < 130; ++other) bell.refuse(other);
  EXPECT_EQ(pull.has_refused(7), Refused::kNo);
  bell.refuse(7);
  EXPECT_EQ(pull.has_refused(7), Refused::kYes);
  EXPECT_EQ(pull.has_refused(7), Refused::kNo) << "nothing since";
  bell.refuse(8 | RingCall::kForWant);
  EXPECT_EQ(pull.has_refused(8), Refused::kForWant);
}

TEST_F(Bells, leave_no_caller_waiting_whose_refusal_they_do_not_hold_any_more) {
  bell.refuse(7);
  for (uint64_t other = 100; other < 100 + BellPage::kNumRefusals; ++other) bell.refuse(other);
  EXPECT_EQ(pull.has_refused(7), Refused::kMaybe);
  EXPECT_EQ(BellPull::open(address()).value().has_refused(7), Refused::kNo) << "of before";
}

TEST_F(Bells, tell_callers_that_nobody_hears) {
  EXPECT_FALSE(pull.is_closed());
  bell.close();
  EXPECT_TRUE(pull.is_closed());
}

TEST_F(Bells, are_opened_of_the_process_that_was_met_alone) {
  RingAddress other = address();
  other.key = kKey + 1;
  EXPECT_FALSE(BellPull::open(other).ok()) << "another one";
  other = address();
  std::swap(other.page, other.pipe);
  EXPECT_FALSE(BellPull::open(other).ok());
  other = address();
  other.pid = INT32_MAX;
  EXPECT_FALSE(BellPull::open(other).ok());
}

TEST_F(Bells, do_not_end_who_calls_at_one_that_is_gone) {
  {
    const Bell gone = std::move(bell);
  }
  while (pull.call({.key = kKey, .caller = {}})) continue;
}

TEST(ProcessMemory, is_read_of_who_has_the_key_alone) {
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
}  // namespace axon
