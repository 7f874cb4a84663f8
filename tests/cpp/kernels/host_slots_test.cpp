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

  std::atomic<uint32_t>& flag(size_t index) { return reinterpret_cast<std::atomic<uint32_t>*>(pinned_->data())[index]; }
  uint32_t* word(size_t index) { return reinterpret_cast<uint32_t*>(pinned_->data()) + index; }
  std::byte* slot() { return pinned_->data() + kFlagBytes; }
  void synchronize() { require(stream_->view().synchronize()); }

  static constexpr size_t kFlagBytes = 64;
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
      flag(0).store(0);
      const kernels::SlotCopy out{begin, source.data(), num_bytes};
      require(kernels::move_slot({.copies = {&out, 1}, .flag = word(0), .value = 7}, *stream_));
      while (flag(0).load(std::memory_order_acquire) != 7) std::this_thread::yield();
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
  flag(0).store(0);
  require(kernels::move_slot({.copies = copies, .flag = word(0), .value = 1}, *stream_));
  synchronize();
  EXPECT_EQ(flag(0).load(), 1u);
  EXPECT_TRUE(std::equal(data.begin(), data.end(), slot()));
}

TEST_F(HostSlots, waits_until_the_host_returns_the_slot) {
  const DeviceBuffer target(1024);
  for (const uint32_t returned : {3u, 4u, kernels::kSlotFailed}) {
    std::fill_n(slot(), 1024, std::byte{0});
    target.upload(Bytes(1024, std::byte{1}));
    flag(0).store(2);
    flag(1).store(0);
    const kernels::SlotCopy in{target.data(), slot(), 1024};
    require(kernels::move_slot({.copies = {&in, 1},
                                .awaited_flag = word(0),
                                .awaited = 3,
                                .has_expired = word(1),
                                .longest_wait_ns = 60'000'000'000},
                               *stream_));
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(cudaStreamQuery(stream_->view().get()), cudaErrorNotReady) << "it has not waited";
    std::fill_n(slot(), 1024, std::byte{9});
    flag(0).store(returned, std::memory_order_release);
    synchronize();
    const auto expected = static_cast<std::byte>(returned == kernels::kSlotFailed ? 1 : 9);
    target.expect_contents(Bytes(1024, expected), "returned as " + std::to_string(returned));
    EXPECT_EQ(flag(1).load(), 0u);
  }
}

TEST_F(HostSlots, a_wait_ends_at_its_deadline_without_copying) {
  const DeviceBuffer target(64);
  target.upload(Bytes(64, std::byte{1}));
  flag(0).store(0);
  flag(1).store(0);
  const kernels::SlotCopy in{target.data(), slot(), 64};
  require(kernels::move_slot(
      {.copies = {&in, 1}, .awaited_flag = word(0), .awaited = 1, .has_expired = word(1), .longest_wait_ns = 1'000'000},
      *stream_));
  synchronize();
  EXPECT_EQ(flag(1).load(), 1u);
  target.expect_contents(Bytes(64, std::byte{1}), "expired");
}

}  // namespace
}  // namespace axon::testing
