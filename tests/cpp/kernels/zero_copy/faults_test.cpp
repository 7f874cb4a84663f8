// Zero-copy kernels return with a report and write nothing if peers are missing, abort, or disagree. No kernel ends
// while a peer may still write to its rank.
#include <atomic>
#include <chrono>
#include <thread>

#include "kernels/ll/collectives.hpp"
#include "kernels/load.hpp"
#include "kernels/zero_copy/launch.hpp"
#include "kernels/zero_copy/zero_copy_test.hpp"

namespace axon::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kShortTimeoutNs = 50'000'000;
constexpr size_t kElements = 500'000;
constexpr auto kLongestGuard = std::chrono::seconds(10);  // as in handshake.cuh
const Bytes kUntouched(kElements * 4, std::byte{0xA5});

class ZeroCopyFaults : public LayoutTest {
 protected:
  // Allocate tensors before any kernel: allocation waits for the device.
  void SetUp() override {
    LayoutTest::SetUp();
    if (IsSkipped()) return;
    for (const int device : GetParam().devices()) {
      cuda::DeviceGuard guard(device);
      require(kernels::load_kernels(GetParam().num_ranks));
      inputs_.emplace_back(kElements * 4 + 16);
      outputs_.emplace_back(kElements * 4);
    }
  }

  DeviceRanks ranks(uint64_t timeout_ns = 5'000'000'000) {
    DeviceRanks ranks(GetParam().devices(), {.slice_bytes = GetParam().slice_bytes(), .timeout_ns = timeout_ns});
    locations_.clear();
    for (int rank = 0; rank < ranks.size(); ++rank) {
      cuda::DeviceGuard guard(ranks.device(rank));
      locations_.push_back({.input = ranks.publish(rank, inputs_[rank].data()),
                            .output = ranks.publish(rank, outputs_[rank].data()),
                            .num_blocks = num_zero_copy_blocks(GetParam())});
    }
    return ranks;
  }

  void all_reduce(const DeviceRanks& ranks, int rank, size_t num_elements = kElements) {
    cuda::DeviceGuard guard(ranks.device(rank));
    require(all_reduce_either_way(ranks.team(rank),
                                  {.input = inputs_[rank].data(),
                                   .output = outputs_[rank].data(),
                                   .num_elements = num_elements,
                                   .dtype = DataType::kFloat32,
                                   .reduction = Reduction::kSum},
                                  locations_[rank], ranks.stream(rank)));
  }

  void expect_untouched(const DeviceRanks& ranks) {
    ranks.for_each([&](int rank) { outputs_[rank].expect_contents(kUntouched, "rank " + std::to_string(rank)); });
    expect_states(ranks, 0, 0, "failed");
  }

  void expect_usable() {
    DeviceRanks fresh = ranks();
    for (int rank = 0; rank < fresh.size(); ++rank) all_reduce(fresh, rank);
    fresh.synchronize();
    fresh.expect_no_faults();
    expect_states(fresh, 1, 0, "usable");
  }

  std::vector<DeviceBuffer> inputs_, outputs_;
  std::vector<kernels::zero_copy::ReduceLocations> locations_;
};

TEST_P(ZeroCopyFaults, missing_rank_times_out_and_is_named) {
  DeviceRanks ranks = this->ranks(kShortTimeoutNs);
  for (int rank = 0; rank < ranks.size() - 1; ++rank) all_reduce(ranks, rank);
  ranks.synchronize();
  for (int rank = 0; rank < ranks.size() - 1; ++rank) {
    EXPECT_EQ(code_of(ranks.control(rank)), cuda::FaultCode::kTimeout);
    EXPECT_EQ(ranks.control(rank).report.peer, ranks.size() - 1);
    EXPECT_EQ(ranks.control(rank).report.ours.num_bytes, kElements * 4);
  }
  expect_untouched(ranks);
  expect_usable();
}

TEST_P(ZeroCopyFaults, abort_ends_the_wait_and_all_later_launches) {
  DeviceRanks ranks = this->ranks(60'000'000'000);
  for (int operation = 0; operation < 100; ++operation) {
    for (int rank = 0; rank < ranks.size() - 1; ++rank) all_reduce(ranks, rank);
  }
  for (int rank = 0; rank < ranks.size(); ++rank) {
    std::atomic_ref(ranks.control(rank).abort).store(1, std::memory_order_release);
  }
  ranks.synchronize();
  for (int rank = 0; rank < ranks.size() - 1; ++rank)
    EXPECT_EQ(code_of(ranks.control(rank)), cuda::FaultCode::kAborted);
  expect_untouched(ranks);
  expect_usable();
}

TEST_P(ZeroCopyFaults, mismatch_is_seen_by_both_sides) {
  DeviceRanks ranks = this->ranks();
  const int odd = ranks.size() - 1;
  for (int rank = 0; rank < ranks.size(); ++rank) all_reduce(ranks, rank, rank == odd ? kElements - 1 : kElements);
  ranks.synchronize();
  for (int rank = 0; rank < ranks.size(); ++rank) {
    ASSERT_EQ(code_of(ranks.control(rank)), cuda::FaultCode::kMismatch) << "rank " << rank;
    const cuda::FaultReport& report = ranks.control(rank).report;
    EXPECT_EQ(report.ours.num_bytes, 4 * (rank == odd ? kElements - 1 : kElements));
    EXPECT_EQ(report.theirs.num_bytes, 4 * (rank == odd ? kElements : kElements - 1));
  }
  expect_untouched(ranks);
  expect_usable();
}

TEST_P(ZeroCopyFaults, mismatch_between_ll_and_zero_copy_kernels) {
  DeviceRanks ranks = this->ranks();
  const int odd = ranks.size() - 1;
  const size_t num_elements = 2000;  // its packets overlap flags, votes and done flags
  for (int rank = 0; rank < odd; ++rank) all_reduce(ranks, rank);
  {
    cuda::DeviceGuard guard(ranks.device(odd));
    require(kernels::ll::all_reduce_one_shot(ranks.team(odd),
                                             {.input = inputs_[odd].data(),
                                              .output = inputs_[odd].data(),
                                              .num_elements = num_elements,
                                              .dtype = DataType::kFloat32,
                                              .reduction = Reduction::kSum},
                                             ranks.stream(odd)));
  }
  ranks.synchronize();
  for (int rank = 0; rank < ranks.size(); ++rank) {
    EXPECT_EQ(code_of(ranks.control(rank)), cuda::FaultCode::kMismatch) << "rank " << rank;
  }
  expect_untouched(ranks);
  expect_usable();
}

INSTANTIATE_TEST_SUITE_P(layouts, ZeroCopyFaults, kLayouts, name_of);

// Sends the packets of a peer of rank 0 in the first epoch, one by one as the test requires.
class Puppet {
 public:
  static constexpr uint32_t kNumBlocks = 5;  // more than rank 0 has

  Puppet(const DeviceRanks& ranks, int rank)
      : team_(ranks.team(0)),
        rank_(static_cast<uint32_t>(rank)),
        num_ranks_(static_cast<uint32_t>(ranks.size())),
        packet_(require(cuda::PinnedMemory::allocate(sizeof(cuda::LlPacket)))),
        stream_(require(cuda::Stream::create())) {}

  void announce(const cuda::DeviceDescriptor& descriptor, cuda::IpcLocation readable,
                cuda::IpcLocation writable) const {
    send(rank_, descriptor);
    send(num_ranks_ + 2 * rank_, readable);
    send(num_ranks_ + 2 * rank_ + 1, writable);
  }
  void agree() const {
    const uint32_t vote[2] = {static_cast<uint32_t>(kernels::zero_copy::Vote::kYes),
                              kernels::zero_copy::kVoteTag | kNumBlocks};
    send(3 * num_ranks_ + rank_, vote);
  }
  void tell_progress(uint32_t block, uint32_t count) const {
    const uint32_t progress[2] = {count, 0};
    send((4 + cuda::kMaxBlocks + block) * num_ranks_ + rank_, progress);
  }
  void leave(uint32_t done) const {
    for (uint32_t block = 0; block < kNumBlocks; ++block) leave_block(block, done);
  }
  void leave_block(uint32_t block, uint32_t done) const {
    const uint32_t exit[2] = {done, kNumBlocks};
    send((4 + block) * num_ranks_ + rank_, exit);
  }

 private:
  template <typename Payload>
  void send(uint32_t index, const Payload& payload) const {
    static_assert(sizeof payload == 8);
    constexpr uint32_t kEpoch = 1;
    uint32_t words[2];
    std::memcpy(words, &payload, 8);
    *reinterpret_cast<cuda::LlPacket*>(packet_.data()) = {words[0], kEpoch, words[1], kEpoch};
    const size_t begin =
        team_.layout.packets + (kEpoch * size_t{team_.layout.region_packets} + index) * sizeof(cuda::LlPacket);
    require(copy_async(team_.slices[0] + begin, packet_.data(), sizeof(cuda::LlPacket), stream_));
    require(stream_.view().synchronize());
  }

  const cuda::DeviceTeam& team_;
  uint32_t rank_, num_ranks_;
  cuda::PinnedMemory packet_;
  cuda::Stream stream_;
};

// Runs rank 0 alone; puppets act as its peers.
class ZeroCopyGuards : public ::testing::Test {
 protected:
  static constexpr int kNumBlocks = 2;
  static constexpr size_t kBytes = 100'000;

  void SetUp() override {
    if (cuda::num_devices() == 0) GTEST_SKIP() << "needs a GPU";
  }

  void set_up_ranks(int num_ranks) {
    ranks_ = std::make_unique<DeviceRanks>(std::vector<int>(num_ranks, 0), TeamOptions{.timeout_ns = kShortTimeoutNs});
    cuda::DeviceGuard guard(0);
    require(kernels::load_kernels(num_ranks));
    std::mt19937 random(20261122);
    contents_ = random_bytes(kBytes, random);
    source_ = std::make_unique<DeviceBuffer>(kBytes);
    source_->upload(contents_);
    for (int rank = 0; rank < num_ranks; ++rank) {
      targets_.emplace_back(kBytes);
      locations_.push_back(ranks_->publish(rank, targets_[rank].data()));
      puppets_.push_back(std::make_unique<Puppet>(*ranks_, rank));
    }
  }

  void announce(int rank) {
    const cuda::DeviceDescriptor descriptor{.operation = static_cast<uint64_t>(cuda::DeviceOperation::kAllGather),
                                            .dtype = static_cast<uint64_t>(DataType::kByte),
                                            .reduction = static_cast<uint64_t>(Reduction::kNone),
                                            .root = cuda::kNoRoot,
                                            .num_bytes = kBytes};
    puppets_[rank]->announce(descriptor, cuda::IpcLocation{}, locations_[rank]);
  }

  void announce_reduction(int rank) {
    const cuda::DeviceDescriptor descriptor{.operation = static_cast<uint64_t>(cuda::DeviceOperation::kAllReduce),
                                            .dtype = static_cast<uint64_t>(DataType::kFloat32),
                                            .reduction = static_cast<uint64_t>(Reduction::kSum),
                                            .root = cuda::kNoRoot,
                                            .num_bytes = kBytes};
    puppets_[rank]->announce(descriptor, locations_[rank], locations_[rank]);
  }

  // Announces a broadcast from rank 1 to ranks 0 and 2, each of which passes on part of one stretch.
  void announce_broadcast(int rank) {
    const cuda::DeviceDescriptor descriptor{.operation = static_cast<uint64_t>(cuda::DeviceOperation::kBroadcast),
                                            .dtype = static_cast<uint64_t>(DataType::kByte),
                                            .reduction = static_cast<uint64_t>(Reduction::kNone),
                                            .root = 1,
                                            .num_bytes = kBytes};
    puppets_[rank]->announce(descriptor, cuda::IpcLocation{}, rank == 1 ? cuda::IpcLocation{} : locations_[rank]);
  }

  void launch_broadcast() {
    cuda::DeviceGuard guard(0);
    targets_[0].upload(contents_);
    const kernels::zero_copy::BroadcastLocations locations{.data = locations_[0], .num_blocks = kNumBlocks};
    require(kernels::zero_copy::broadcast(ranks_->team(0), {.data = targets_[0].data(), .num_bytes = kBytes, .root = 1},
                                          locations, ranks_->stream(0)));
    began_ = Clock::now();
  }

  void launch() {
    cuda::DeviceGuard guard(0);
    kernels::ExchangeCall call{.operation = cuda::DeviceOperation::kAllGather};
    kernels::zero_copy::ExchangeLocations locations{.num_blocks = kNumBlocks};
    for (int rank = 0; rank < ranks_->size(); ++rank) {
      call.sends[rank] = {source_->data(), kBytes};
      call.receives[rank] = {targets_[0].data(), kBytes};
      locations.receives[rank] = locations_[0];
    }
    require(kernels::zero_copy::exchange(ranks_->team(0), call, locations, ranks_->stream(0)));
    began_ = Clock::now();
  }

  void launch_reduction() {
    cuda::DeviceGuard guard(0);
    const kernels::ReduceCall call{.input = source_->data(),
                                   .output = targets_[0].data(),
                                   .num_elements = kBytes / sizeof(float),
                                   .dtype = DataType::kFloat32,
                                   .reduction = Reduction::kSum};
    const kernels::zero_copy::ReduceLocations locations{.input = {}, .output = locations_[0], .num_blocks = kNumBlocks};
    require(kernels::zero_copy::all_reduce(ranks_->team(0), call, locations, ranks_->stream(0)));
    began_ = Clock::now();
  }

  // Waits until the host knows of the failure, while the kernel still runs.
  void await_report() {
    while (code_of(ranks_->control(0)) == cuda::FaultCode::kNone && Clock::now() - began_ < kLongestGuard) {
      std::this_thread::yield();
    }
    EXPECT_EQ(code_of(ranks_->control(0)), cuda::FaultCode::kTimeout);
    EXPECT_EQ(cudaStreamQuery(ranks_->stream(0).get()), cudaErrorNotReady);
  }

  void expect_end_before_the_guard_gives_up() {
    require(ranks_->stream(0).synchronize());
    EXPECT_LT(Clock::now() - began_, kLongestGuard);
  }

  std::unique_ptr<DeviceRanks> ranks_;
  Bytes contents_;
  std::unique_ptr<DeviceBuffer> source_;
  std::vector<DeviceBuffer> targets_;
  std::vector<cuda::IpcLocation> locations_;
  std::vector<std::unique_ptr<Puppet>> puppets_;
  Clock::time_point began_;
};

TEST_F(ZeroCopyGuards, a_puppet_can_play_along) {
  set_up_ranks(2);
  announce(1);
  puppets_[1]->agree();
  puppets_[1]->leave(kernels::zero_copy::kShareDone);
  launch();
  require(ranks_->stream(0).synchronize());
  ranks_->expect_no_faults();
  EXPECT_EQ(ranks_->state(0).num_zero_copy, 1u);
  targets_[1].expect_contents(contents_, "peer");
}

// The peer agreed and then failed: its part never arrives, and must not be taken for done.
TEST_F(ZeroCopyGuards, a_peer_that_has_not_done_its_part_is_missed) {
  set_up_ranks(2);
  announce(1);
  puppets_[1]->agree();
  puppets_[1]->leave(0);
  launch();
  expect_end_before_the_guard_gives_up();
  EXPECT_EQ(code_of(ranks_->control(0)), cuda::FaultCode::kTimeout);
  EXPECT_EQ(ranks_->control(0).report.peer, 1);
}

TEST_F(ZeroCopyGuards, a_peer_that_is_late_to_end_is_waited_for) {
  set_up_ranks(2);
  announce(1);
  puppets_[1]->agree();
  launch();
  await_report();
  puppets_[1]->leave(kernels::zero_copy::kShareDone);
  expect_end_before_the_guard_gives_up();
  targets_[1].expect_contents(contents_, "peer");
}

// Rank 0 waits for each block: the peer may still write from any.
TEST_F(ZeroCopyGuards, all_blocks_of_a_peer_are_waited_for) {
  set_up_ranks(2);
  announce(1);
  puppets_[1]->agree();
  for (uint32_t block = 0; block + 1 < Puppet::kNumBlocks; ++block)
    puppets_[1]->leave_block(block, kernels::zero_copy::kShareDone);
  launch();
  await_report();
  puppets_[1]->leave_block(Puppet::kNumBlocks - 1, kernels::zero_copy::kShareDone);
  expect_end_before_the_guard_gives_up();
}

TEST_F(ZeroCopyGuards, a_rank_that_has_agreed_waits_even_without_all_votes) {
  set_up_ranks(3);
  announce(1);
  announce(2);
  puppets_[1]->agree();
  launch();
  await_report();
  EXPECT_EQ(ranks_->control(0).report.peer, 2);
  puppets_[1]->leave(0);
  puppets_[2]->leave(0);
  expect_end_before_the_guard_gives_up();
  for (int rank = 0; rank < 3; ++rank) targets_[rank].expect_contents(Bytes(kBytes, std::byte{0xA5}), "target");
}

// The kernel discards what it has read from a peer that never agrees.
TEST_F(ZeroCopyGuards, a_reduction_that_has_begun_to_read_gives_up) {
  set_up_ranks(2);
  announce_reduction(1);
  launch_reduction();
  await_report();
  puppets_[1]->leave(0);
  expect_end_before_the_guard_gives_up();
  for (const DeviceBuffer& target : targets_) target.expect_contents(Bytes(kBytes, std::byte{0xA5}), "target");
}

TEST_F(ZeroCopyGuards, a_part_is_passed_on_once_the_root_has_told) {
  set_up_ranks(3);
  for (const int rank : {1, 2}) {
    announce_broadcast(rank);
    puppets_[rank]->agree();
    puppets_[rank]->leave(kernels::zero_copy::kShareDone);
  }
  puppets_[1]->tell_progress(0, 1);
  launch_broadcast();
  require(ranks_->stream(0).synchronize());
  ranks_->expect_no_faults();
  Bytes expected(kBytes, std::byte{0xA5});
  std::copy_n(contents_.begin(), (kBytes / 2 + 127) / 128 * 128, expected.begin());
  targets_[2].expect_contents(expected, "peer");
}

// The root's progress report for rank 0's own stretch never arrives; the other peer may still write here.
TEST_F(ZeroCopyGuards, a_root_that_falls_silent_is_missed) {
  set_up_ranks(3);
  for (const int rank : {1, 2}) {
    announce_broadcast(rank);
    puppets_[rank]->agree();
  }
  launch_broadcast();
  await_report();
  EXPECT_EQ(ranks_->control(0).report.peer, 1);
  for (const int rank : {1, 2}) puppets_[rank]->leave(0);
  expect_end_before_the_guard_gives_up();
  targets_[2].expect_contents(Bytes(kBytes, std::byte{0xA5}), "peer");
}

TEST_F(ZeroCopyGuards, a_process_that_has_ended_is_not_waited_for) {
  set_up_ranks(2);
  std::atomic_ref(ranks_->control(0).gone).store(1u << 1, std::memory_order_release);
  announce(1);
  puppets_[1]->agree();
  launch();
  expect_end_before_the_guard_gives_up();
  EXPECT_EQ(code_of(ranks_->control(0)), cuda::FaultCode::kGone);
}

TEST_F(ZeroCopyGuards, the_guard_gives_up) {
  set_up_ranks(2);
  announce(1);
  puppets_[1]->agree();
  launch();
  require(ranks_->stream(0).synchronize());
  EXPECT_GE(Clock::now() - began_, kLongestGuard);
  EXPECT_EQ(code_of(ranks_->control(0)), cuda::FaultCode::kTimeout);
}

TEST_F(ZeroCopyGuards, a_rank_that_has_not_agreed_does_not_wait) {
  set_up_ranks(3);
  announce(1);  // rank 2 never agrees
  launch();
  expect_end_before_the_guard_gives_up();
  EXPECT_EQ(code_of(ranks_->control(0)), cuda::FaultCode::kTimeout);
  EXPECT_EQ(ranks_->control(0).report.peer, 2);
}

}  // namespace
}  // namespace axon::testing
