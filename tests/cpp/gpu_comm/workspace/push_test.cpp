// Copy engines push data between processes, after a barrier of their streams.
#include "cuda/memory.hpp"
#include "gpu_comm/device_calls.hpp"
#include "gpu_comm/workspace/workspace.hpp"

namespace axon::testing {
namespace {

class DeviceGroupPushTest : public DeviceGroupTest {};

INSTANTIATE_TEST_SUITE_P(Layouts, DeviceGroupPushTest,
                         ::testing::Values(Layout{Placement::kOneGpu, 2}, Layout{Placement::kGpuEach, 2},
                                           Layout{Placement::kGpuEach, 4}),
                         name_of);

constexpr size_t kLength = 1 << 20;
constexpr size_t kNumBytes = 4 * kLength;
constexpr int kNumTiles = 4;

gpu_comm::StreamBarrier barrier_of(size_t num_bytes) {
  return {.operation = cuda::DeviceOperation::kAllGatherMatmul,
          .dtype = DataType::kInt32,
          .descriptor = gpu_comm::BarrierDescriptor::of(num_bytes, {})};
}

std::unique_ptr<gpu_comm::Workspace> make_workspace(DeviceProcess& self, Party& party) {
  auto made = require(gpu_comm::Workspace::make(
      *party.communicator,
      {.device = self.device(), .num_bytes = kNumBytes * self.size(), .timeout = std::chrono::seconds(20)}));
  if (made == nullptr) throw std::runtime_error("no workspace (AXON_LOG=info)");
  party.group->watch(made->arrivals());
  return made;
}

// Pushes `data` to this rank's range in every workspace, tile by tile.
void push(DeviceProcess& self, const gpu_comm::Workspace& workspace, const Tensor& data, cuda::StreamView stream) {
  constexpr size_t kPieceBytes = kNumBytes / kNumTiles;
  const size_t own_place = kNumBytes * static_cast<size_t>(self.rank());
  for (int tile = 0; tile < kNumTiles; ++tile) {
    const size_t begin = kPieceBytes * static_cast<size_t>(tile);
    for (int peer = 0; peer < self.size(); ++peer) {
      require(copy_async(workspace.at(peer) + own_place + begin, data.data() + begin, kPieceBytes, stream));
      if (peer != self.rank()) require(workspace.arrivals()->tell(peer, tile, stream));
    }
  }
}

// Each round pushes other data; after the barrier, no rank still reads the data of the last round.
TEST_P(DeviceGroupPushTest, what_all_ranks_have_told_of_is_there) {
  on_ranks([](DeviceProcess& self) {
    const cuda::Stream side = require(cuda::Stream::create());  // outlives the group
    Party party = self.form("pushing");
    meet_all(party);
    const std::unique_ptr<gpu_comm::Workspace> workspace = make_workspace(self, party);
    const cuda::Event begun = require(cuda::Event::create_untimed());
    const cuda::Event ended = require(cuda::Event::create_untimed());
    for (int round = 0; round < 20; ++round) {
      const Tensor own(contribution(self.rank(), kLength, round));
      const Tensor read(kLength * self.size());
      require(party.group->enqueue_barrier(barrier_of(kNumBytes), self.stream()));
      require(self.stream().record(begun));
      require(side.view().wait(begun));
      push(self, *workspace, own, side);
      for (int tile = 0; tile < kNumTiles; ++tile) require(party.group->await(*workspace->arrivals(), tile, side));
      require(side.view().record(ended));
      require(self.stream().wait(ended));
      require(copy_async(read.data(), workspace->at(self.rank()), read.num_bytes(), self.stream()));
      finish(party, self.stream());
      Words everything;
      for (int rank = 0; rank < self.size(); ++rank) {
        const Words words = contribution(rank, kLength, round);
        everything.insert(everything.end(), words.begin(), words.end());
      }
      read.expect_contents(bytes_of(everything), "round " + std::to_string(round));
    }
  });
}

// No rank signals any of these operations: each uses the flags of the one before.
TEST_P(DeviceGroupPushTest, a_group_that_ends_lets_its_streams_go_on) {
  on_ranks([](DeviceProcess& self) {
    Party party = self.form("ending");
    meet_all(party);
    const std::unique_ptr<gpu_comm::Workspace> workspace = make_workspace(self, party);
    require(party.group->enqueue_barrier(barrier_of(kNumBytes), self.stream()));
    for (int again = 0; again < 3; ++again) {
      for (int tile = 0; tile < kNumTiles; ++tile)
        require(party.group->await(*workspace->arrivals(), tile, self.stream()));
    }
    const cuda::Event passed = require(cuda::Event::create_untimed());
    require(self.stream().record(passed));
    self.barrier();
    EXPECT_FALSE(passed.view().has_passed());
    party.group->abort();
    require(self.stream().synchronize());
    self.barrier();
  });
}

TEST_P(DeviceGroupPushTest, ranks_that_meet_for_other_sizes_are_told_and_wait_for_nothing) {
  on_ranks([](DeviceProcess& self) {
    Party party = self.form("unlike");
    meet_all(party);
    const std::unique_ptr<gpu_comm::Workspace> workspace = make_workspace(self, party);
    require(party.group->enqueue_barrier(barrier_of(self.rank() == 0 ? 1 << 20 : 2 << 20), self.stream()));
    for (int tile = 0; tile < kNumTiles; ++tile)
      require(party.group->await(*workspace->arrivals(), tile, self.stream()));
    require(self.stream().synchronize());
    const Status fault = party.group->fault();
    ASSERT_FALSE(fault.ok());
    EXPECT_EQ(fault.code(), ErrorCode::kMismatch) << fault.message();
    for (const char* call : {"all_gather_matmul (int32, 1 MiB in all", "all_gather_matmul (int32, 2 MiB in all"}) {
      EXPECT_NE(fault.message().find(call), std::string::npos) << fault.message();
    }
    self.barrier();
  });
}

}  // namespace
}  // namespace axon::testing
