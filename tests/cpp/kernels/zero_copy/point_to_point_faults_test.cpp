// Both ends of zero-copy messages return with a report, and write nothing, if an end is missing, aborts, or disagrees.
// No receiver ends while a sender may still write to its tensor.
#include <atomic>
#include <chrono>
#include <thread>

#include "kernels/load.hpp"
#include "kernels/zero_copy/point_to_point.hpp"
#include "kernels/zero_copy/zero_copy_test.hpp"

namespace axon::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kShortTimeoutNs = 50'000'000;
constexpr size_t kBytes = 3'000'000;
constexpr uint32_t kTag = 7;
constexpr auto kLongestGuard = std::chrono::seconds(10);  // as in point_to_point.cuh

// The arguments of one end's call.
struct End {
  size_t num_bytes = kBytes;
  uint32_t tag = kTag;
  bool is_zero_copy = true;
};

// Rank 0 sends, rank 1 receives.
class MessageFaults : public LayoutTest {
 protected:
  // Allocate tensors before any kernel: allocation waits for the device.
  void SetUp() override {
    LayoutTest::SetUp();
    if (IsSkipped()) return;
    std::mt19937 random(20261123);
    contents_ = random_bytes(kBytes, random);
    for (const int device : GetParam().devices()) {
      cuda::DeviceGuard guard(device);
      require(kernels::load_kernels(GetParam().num_ranks));
      tensors_.emplace_back(kBytes);
    }
    tensors_[0].upload(contents_);
    words_ = std::make_unique<cuda::PinnedMemory>(require(cuda::PinnedMemory::allocate(sizeof(cuda::LlPacket))));
    set_up_ranks(5'000'000'000);
  }

  void set_up_ranks(uint64_t timeout_ns) {
    ranks_ = std::make_unique<DeviceRanks>(
        GetParam().devices(), TeamOptions{.slice_bytes = GetParam().slice_bytes(), .timeout_ns = timeout_ns});
    location_ = ranks_->publish(1, tensors_[1].data());
    cuda::DeviceGuard guard(ranks_->device(1));
    beside_ = std::make_unique<cuda::Stream>(require(cuda::Stream::create()));
  }

  void send(End end = {}) {
    cuda::DeviceGuard guard(ranks_->device(0));
    kernels::ExchangeCall call{.traffic = cuda::TrafficClass::kPointToPoint,
                               .operation = cuda::DeviceOperation::kPointToPoint,
                               .sends_to = 1u << 1};
    call.sends[1] = {tensors_[0].data(), end.num_bytes, end.tag};
    require(kernels::zero_copy::exchange_messages(ranks_->team(0), call, {.sends_to = end.is_zero_copy ? 1u << 1 : 0},
                                                  ranks_->stream(0)));
  }

  void receive(End end = {}) {
    cuda::DeviceGuard guard(ranks_->device(1));
    kernels::ExchangeCall call{.traffic = cuda::TrafficClass::kPointToPoint,
                               .operation = cuda::DeviceOperation::kPointToPoint,
                               .receives_from = 1u << 0};
    call.receives[0] = {tensors_[1].data(), end.num_bytes, end.tag};
    kernels::zero_copy::MessageLocations zero_copy{.receives_from = end.is_zero_copy ? 1u << 0 : 0};
    zero_copy.receives[0] = location_;
    require(kernels::zero_copy::exchange_messages(ranks_->team(1), call, zero_copy, ranks_->stream(1)));
    began_ = Clock::now();
  }

  cuda::FaultCode code(int rank) { return code_of(ranks_->control(rank)); }
  const cuda::FaultReport& report(int rank) { return ranks_->control(rank).report; }

  void expect_mismatch(int rank, End ours, End theirs) {
    ASSERT_EQ(code(rank), cuda::FaultCode::kMismatch) << "rank " << rank;
    EXPECT_EQ(report(rank).peer, 1 - rank);
    EXPECT_EQ(report(rank).ours.num_bytes, ours.num_bytes);
    EXPECT_EQ(report(rank).theirs.num_bytes, theirs.num_bytes);
    EXPECT_EQ(report(rank).our_tag, ours.tag);
    EXPECT_EQ(report(rank).their_tag, theirs.tag);
  }

  void expect_untouched() {
    cuda::DeviceGuard guard(ranks_->device(1));
    tensors_[1].expect_contents(Bytes(kBytes, std::byte{0xA5}), "receiver");
    for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks_->state(rank).num_zero_copy_messages, 0u);
  }

  void expect_usable() {
    set_up_ranks(5'000'000'000);
    send();
    receive();
    ranks_->synchronize();
    ranks_->expect_no_faults();
    for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks_->state(rank).num_zero_copy_messages, 1u);
    cuda::DeviceGuard guard(ranks_->device(1));
    tensors_[1].expect_contents(contents_, "receiver");
  }

  // Writes into the rendezvous that rank `owner` keeps for its peer, as the peer's GPU would.
  template <typename Member, typename Value>
  void write(int owner, Member member, const Value& value) {
    const cuda::DeviceTeam& team = ranks_->team(owner);
    auto* rendezvous = reinterpret_cast<cuda::Rendezvous*>(team.slices[owner] + team.layout.rendezvous) + (1 - owner);
    static_assert(sizeof(Value) <= sizeof(cuda::LlPacket));
    std::memcpy(words_->data(), &value, sizeof value);
    cuda::DeviceGuard guard(ranks_->device(1));
    require(copy_async(&(rendezvous->*member), words_->data(), sizeof value, *beside_));
    require(beside_->view().synchronize());
  }

  // Acts as a sender that has claimed the first RTS and is writing.
  void claim() {
    write(0, &cuda::Rendezvous::claim, uint64_t{1} << 32 | static_cast<uint32_t>(kernels::zero_copy::Claim::kClaimed));
  }
  void finish() {
    write(1, &cuda::Rendezvous::outcome,
          cuda::LlPacket{static_cast<uint32_t>(kernels::zero_copy::Outcome::kWritten), 1, 0, 1});
  }

  void await_report_of_receiver() {
    while (code(1) == cuda::FaultCode::kNone && Clock::now() - began_ < kLongestGuard) std::this_thread::yield();
    EXPECT_EQ(code(1), cuda::FaultCode::kTimeout);
  }

  void expect_end_before_the_guard_gives_up(cuda::FaultCode fault = cuda::FaultCode::kTimeout) {
    require(ranks_->stream(1).synchronize());
    EXPECT_LT(Clock::now() - began_, kLongestGuard);
    EXPECT_EQ(code(1), fault);
    EXPECT_EQ(report(1).peer, 0);
  }

  std::vector<DeviceBuffer> tensors_;
  Bytes contents_;
  std::unique_ptr<cuda::PinnedMemory> words_;
  std::unique_ptr<DeviceRanks> ranks_;
  std::unique_ptr<cuda::Stream> beside_;
  cuda::IpcLocation location_{};
  Clock::time_point began_;
};

TEST_P(MessageFaults, a_missing_receiver_is_named) {
  set_up_ranks(kShortTimeoutNs);
  send();
  ranks_->synchronize();
  EXPECT_EQ(code(0), cuda::FaultCode::kTimeout);
  EXPECT_EQ(report(0).peer, 1);
  EXPECT_EQ(report(0).ours.num_bytes, kBytes);
  EXPECT_EQ(report(0).our_tag, kTag);
  expect_untouched();
  expect_usable();
}

// A sender that arrives later finds the RTS withdrawn: the tensor may already be in use for something else.
TEST_P(MessageFaults, a_receiver_that_has_given_up_is_not_written_to) {
  set_up_ranks(kShortTimeoutNs);
  receive();
  expect_end_before_the_guard_gives_up();
  send();
  ranks_->synchronize();
  EXPECT_EQ(code(0), cuda::FaultCode::kTimeout);
  EXPECT_EQ(report(0).peer, 1);
  expect_untouched();
  expect_usable();
}

TEST_P(MessageFaults, abort_ends_the_wait_and_all_later_launches) {
  set_up_ranks(60'000'000'000);
  for (int operation = 0; operation < 100; ++operation) receive();
  std::atomic_ref(ranks_->control(1).abort).store(1, std::memory_order_release);
  require(ranks_->stream(1).synchronize());
  EXPECT_EQ(code(1), cuda::FaultCode::kAborted);
  for (int operation = 0; operation < 100; ++operation) send();
  std::atomic_ref(ranks_->control(0).abort).store(1, std::memory_order_release);
  ranks_->synchronize();
  EXPECT_EQ(code(0), cuda::FaultCode::kAborted);
  expect_untouched();
  expect_usable();
}

TEST_P(MessageFaults, mismatches_are_seen_by_both_sides) {
  for (const End& odd : {End{.num_bytes = kBytes - 1}, End{.tag = 8}}) {
    set_up_ranks(5'000'000'000);
    send();
    receive(odd);
    ranks_->synchronize();
    expect_mismatch(0, {}, odd);
    expect_mismatch(1, odd, {});
    expect_untouched();
  }
  expect_usable();
}

// One side's message is small. The other side's host learns of the mismatch and ends its kernel.
TEST_P(MessageFaults, mismatch_between_zero_copy_messages_and_ll128) {
  const End small{.num_bytes = 1000, .is_zero_copy = false};
  set_up_ranks(kShortTimeoutNs);
  send();
  receive(small);
  ranks_->synchronize();
  expect_mismatch(1, small, {});
  EXPECT_EQ(code(0), cuda::FaultCode::kTimeout);
  expect_untouched();
  set_up_ranks(kShortTimeoutNs);
  send(small);
  receive();
  ranks_->synchronize();
  expect_mismatch(1, {}, small);
  expect_untouched();
  expect_usable();
}

// A zero-copy receive matches the wrong send: the receiver reports that, although its tensor was written.
TEST_P(MessageFaults, a_small_message_before_a_zero_copy_one_is_not_lost_sight_of) {
  const End small{.num_bytes = 900, .is_zero_copy = false};
  set_up_ranks(kShortTimeoutNs);
  send(small);
  send();
  receive();
  ranks_->synchronize();
  expect_mismatch(1, {}, small);
}

// The host knows of the failure while the kernel still runs.
TEST_P(MessageFaults, a_sender_that_is_late_to_end_is_waited_for) {
  set_up_ranks(kShortTimeoutNs);
  claim();
  receive();
  await_report_of_receiver();
  EXPECT_EQ(cudaStreamQuery(ranks_->stream(1).get()), cudaErrorNotReady);
  finish();
  expect_end_before_the_guard_gives_up();
}

TEST_P(MessageFaults, a_process_that_has_ended_is_not_waited_for) {
  set_up_ranks(kShortTimeoutNs);
  std::atomic_ref(ranks_->control(1).gone).store(1u << 0, std::memory_order_release);
  claim();
  receive();
  expect_end_before_the_guard_gives_up(cuda::FaultCode::kGone);
}

TEST_P(MessageFaults, the_guard_gives_up) {
  set_up_ranks(kShortTimeoutNs);
  claim();
  receive();
  require(ranks_->stream(1).synchronize());
  EXPECT_GE(Clock::now() - began_, kLongestGuard);
  EXPECT_EQ(code(1), cuda::FaultCode::kTimeout);
}

INSTANTIATE_TEST_SUITE_P(layouts, MessageFaults,
                         ::testing::Values(Layout{Placement::kOneGpu, 2}, Layout{Placement::kGpuEach, 2}), name_of);

}  // namespace
}  // namespace axon::testing
