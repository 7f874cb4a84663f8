// Tests that kernels wait for slots of host memory, copy to and from them, and hand them over.
#include "kernels/host_slots.hpp"

#include <atomic>
#include <optional>
#include <thread>

#include "cuda/memory.hpp"
#include "kernels/device_buffer.hpp"

namespace axon::testing {
namespace {

using namespace std::chrono_literals;

class HostSlots : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda::num_devices() == 0) GTEST_SKIP() << "needs a GPU";
    guard_.emplace(0);
    stream_.emplace(require(cuda::Stream::create()));
    pinned_.emplace(require(cuda::PinnedMemory::allocate(kFlagBytes + kSlotBytes)));
  }

  using State = kernels::SlotState;
  std::atomic<uint32_t>& flag(size_t index) { return reinterpret_cast<std::atomic<uint32_t>*>(pinned_->data())[index]; }
  std::atomic<uint32_t>& turn() { return flag(0); }
  std::atomic<uint32_t>& has_failed() { return flag(1); }
  std::atomic<uint32_t>& has_expired() { return flag(2); }
  State* state() { return reinterpret_cast<State*>(pinned_->data()); }
  uint32_t* word(size_t index) { return reinterpret_cast<uint32_t*>(pinned_->data()) + index; }
  std::byte* slot() { return pinned_->data() + kFlagBytes; }
  void synchronize() { require(stream_->view().synchronize()); }

  static constexpr size_t kFlagBytes = 4 * (64 + kernels::kNumTriggers);
  static constexpr size_t kSlotBytes = size_t{3} << 20;

  std::optional<cuda::DeviceGuard> guard_;
  std::optional<cuda::Stream> stream_;
  std::optional<cuda::PinnedMemory> pinned_;
  std::mt19937 random_{20261127};
};

TEST_F(HostSlots, copies_any_length_at_any_offset_and_nothing_more) {
  const auto is_margin = [](std::byte byte) { return byte == std::byte{0x5A}; };
  for (const size_t num_bytes : {0, 1, 15, 16, 17, 1000, 65'535, 65'536, 1'000'003, 2'500'000}) {
    for (const size_t offset : {0, 1, 8, 15}) {
      const Bytes data = random_bytes(num_bytes, random_);
      const DeviceBuffer source(num_bytes, offset);
      const DeviceBuffer target(num_bytes, offset);
      source.upload(data);
      std::byte* const begin = slot() + offset;
      std::fill_n(slot(), offset + num_bytes + 16, std::byte{0x5A});
      turn().store(State::kDevicesTurn);
      const kernels::SlotCopy out{begin, source.data(), num_bytes};
      require(kernels::move_slot({.copies = {&out, 1}, .handed_over = state()}, *stream_));
      while (turn().load(std::memory_order_acquire) != State::kHostsTurn) std::this_thread::yield();
      EXPECT_TRUE(std::equal(data.begin(), data.end(), begin)) << num_bytes << " at " << offset;
      EXPECT_TRUE(std::all_of(slot(), begin, is_margin));
      EXPECT_TRUE(std::all_of(begin + num_bytes, begin + num_bytes + 16, is_margin));
      const kernels::SlotCopy in{target.data(), begin, num_bytes};
      require(kernels::move_slot({.copies = {&in, 1}}, *stream_));
      synchronize();
      target.expect_contents(data, std::to_string(num_bytes) + " at " + std::to_string(offset));
    }
  }
}

TEST_F(HostSlots, more_copies_than_a_launch_takes) {
  constexpr size_t kCount = 200;
  const Bytes data = random_bytes(kCount * 160, random_);
  const DeviceBuffer source(data.size());
  source.upload(data);
  std::vector<kernels::SlotCopy> copies;
  for (size_t i = 0; i < kCount; ++i) copies.push_back({slot() + i * 160, source.data() + i * 160, 160});
  turn().store(State::kDevicesTurn);
  require(kernels::move_slot({.copies = copies, .handed_over = state()}, *stream_));
  synchronize();
  EXPECT_EQ(turn().load(), State::kHostsTurn);
  EXPECT_TRUE(std::equal(data.begin(), data.end(), slot()));
}

TEST_F(HostSlots, waits_until_the_host_returns_the_slot) {
  const DeviceBuffer target(1024);
  for (const bool fails : {false, true}) {
    std::fill_n(slot(), 1024, std::byte{0});
    target.upload(Bytes(1024, std::byte{1}));
    turn().store(State::kHostsTurn);
    has_failed().store(0);
    has_expired().store(0);
    const kernels::SlotCopy in{target.data(), slot(), 1024};
    require(kernels::move_slot(
        {.copies = {&in, 1}, .awaited = state(), .has_expired = word(2), .longest_wait_ns = 60'000'000'000}, *stream_));
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(cudaStreamQuery(stream_->view().get()), cudaErrorNotReady) << "it has not waited";
    std::fill_n(slot(), 1024, std::byte{9});
    if (fails) {
      has_failed().store(1, std::memory_order_release);
    } else {
      turn().store(State::kDevicesTurn, std::memory_order_release);
    }
    synchronize();
    target.expect_contents(Bytes(1024, static_cast<std::byte>(fails ? 1 : 9)), fails ? "failed" : "returned");
    EXPECT_EQ(has_expired().load(), 0u);
  }
}

TEST_F(HostSlots, a_wait_ends_at_its_deadline_without_copying) {
  const DeviceBuffer target(64);
  target.upload(Bytes(64, std::byte{1}));
  turn().store(State::kHostsTurn);
  has_failed().store(0);
  has_expired().store(0);
  const kernels::SlotCopy in{target.data(), slot(), 64};
  require(kernels::move_slot(
      {.copies = {&in, 1}, .awaited = state(), .has_expired = word(2), .longest_wait_ns = 1'000'000}, *stream_));
  synchronize();
  EXPECT_EQ(has_expired().load(), 1u);
  target.expect_contents(Bytes(64, std::byte{1}), "expired");
}

// One test, since the device counts its triggers as long as the process runs.
TEST_F(HostSlots, triggers_fill_the_ring_in_order_and_failed_operations_leave_no_hole) {
  std::fill_n(word(0), 64 + kernels::kNumTriggers, 0u);
  std::atomic<uint32_t>* const entries = &flag(64);
  std::atomic<uint32_t>& num_taken = flag(32);
  const kernels::SlotCall call{.has_expired = word(2),
                               .longest_wait_ns = 60'000'000'000,
                               .trigger = {.id = 7, .entries = word(64), .num_taken = word(32), .has_failed = word(1)}};
  uint32_t taken = 0;
  const auto take = [&](uint32_t count) {
    for (const uint32_t end = taken + count; taken != end;) {
      std::atomic<uint32_t>& entry = entries[taken % kernels::kNumTriggers];
      while (entry.load(std::memory_order_acquire) == 0) std::this_thread::yield();
      EXPECT_EQ(entry.load(), 7u);
      entry.store(0);
      num_taken.store(++taken);
    }
  };
  const auto send = [&](cuda::StreamView stream, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) require(kernels::move_slot(call, stream));
  };
  // More than the ring holds, from two streams.
  constexpr uint32_t kMany = 3 * kernels::kNumTriggers / 2;
  const cuda::Stream other = require(cuda::Stream::create());
  std::thread sending([&] { send(*stream_, kMany); });
  std::thread also_sending([&] { send(other, kMany); });
  while (entries[kernels::kNumTriggers - 1].load() == 0) std::this_thread::yield();
  take(2 * kMany);
  sending.join();
  also_sending.join();
  synchronize();
  // Those of a failed operation that find the ring full are dropped.
  has_failed().store(1);
  send(*stream_, kernels::kNumTriggers + 10);
  synchronize();
  take(kernels::kNumTriggers);
  has_failed().store(0);
  send(*stream_, 3);
  take(3);
  synchronize();
  EXPECT_EQ(has_expired().load(), 0u);
}

}  // namespace
}  // namespace axon::testing
