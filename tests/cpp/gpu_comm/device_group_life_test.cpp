// Groups between processes run many operations, are created and destroyed, fill the arena, and fail.
#include "gpu_comm/device_calls.hpp"

namespace axon::testing {
namespace {

using namespace std::chrono_literals;

class DeviceGroupLifeTest : public DeviceGroupTest {};

INSTANTIATE_TEST_SUITE_P(Layouts, DeviceGroupLifeTest,
                         ::testing::Values(Layout{Placement::kOneGpu, 2}, Layout{Placement::kGpuEach, 2},
                                           Layout{Placement::kGpuEach, 4}),
                         name_of);

// The host does not synchronise in between, and the streams alternate: their kernels share rings and epochs.
TEST_P(DeviceGroupLifeTest, a_thousand_small_operations_on_changing_streams) {
  on_ranks([](DeviceProcess& self) {
    const std::vector<cuda::Stream> streams = [] {
      std::vector<cuda::Stream> made;
      for (int i = 0; i < 3; ++i) made.push_back(require(cuda::Stream::create()));
      return made;
    }();
    Party party = self.form("thousand");  // dies before its streams
    meet_all(party);
    constexpr size_t kLength = 256;
    constexpr int kNumCalls = 1000;
    const Tensor tensor(Words(kLength, 1));
    auto call = DeviceCall::collective(transport::OperationKind::kAllReduce, DataType::kInt32, kLength);
    call->reduce_with(Reduction::kMax).write(tensor.data(), tensor.num_bytes());
    auto barrier = DeviceCall::collective(transport::OperationKind::kBarrier, DataType::kByte, 0);
    for (int i = 0; i < kNumCalls; ++i) {
      const cuda::StreamView stream = streams[static_cast<size_t>(i * i % 7 % 3)];
      launch(party, i % 10 == 9 ? *barrier : *call, stream);
    }
    for (const cuda::Stream& stream : streams) finish(party, stream);
    tensor.expect_contents(bytes_of(Words(kLength, 1)), "after " + std::to_string(kNumCalls) + " operations");
    all_reduce(self, party, kLength);
  });
}

TEST_P(DeviceGroupLifeTest, graphs_are_replayed_between_eager_operations) {
  on_ranks([](DeviceProcess& self) {
    Party party = self.form("graph");
    meet_all(party);
    constexpr size_t kLength = 4096;
    const Tensor tensor(kLength);
    auto call = DeviceCall::collective(transport::OperationKind::kAllReduce, DataType::kInt32, kLength);
    call->reduce_with(Reduction::kSum).write(tensor.data(), tensor.num_bytes());
    const Graph graph(self.stream(), [&] { launch(party, *call, self.stream()); });
    for (int round = 0; round < 20; ++round) {
      tensor.upload(bytes_of(contribution(self.rank(), kLength, round)));
      graph.launch(self.stream());
      finish(party, self.stream());
      tensor.expect_contents(bytes_of(sum_of_contributions(self.size(), kLength, round)),
                             "replay " + std::to_string(round));
      all_reduce(self, party, 100, round);
    }
  });
}

// An arena has room for 33 groups at a time. Slices must be freed without any thread waiting for that, and graphs must
// not keep them beyond their own lifetime.
TEST_P(DeviceGroupLifeTest, a_hundred_groups_come_and_go) {
  on_ranks([](DeviceProcess& self) {
    std::optional<Graph> graph;
    auto barrier = DeviceCall::collective(transport::OperationKind::kBarrier, DataType::kByte, 0);
    for (int i = 0; i < 100; ++i) {
      Party party = self.form("group " + std::to_string(i));
      meet_all(party);
      all_reduce(self, party, 1000, i);
      if (i % 2 == 0) continue;
      graph.reset();  // the graph of a destroyed group
      graph.emplace(self.stream(), [&] { launch(party, *barrier, self.stream()); });
      graph->launch(self.stream());
      finish(party, self.stream());
    }
  });
}

// Every group that finds the arena full works through the host; after other groups are destroyed, new ones have room
// again.
TEST_P(DeviceGroupLifeTest, a_full_arena_is_no_error) {
  on_ranks([](DeviceProcess& self) {
    constexpr int kRoom = 33;
    std::vector<Party> parties;
    for (int i = 0; i < kRoom; ++i) {
      parties.push_back(self.form("peer_slice " + std::to_string(i)));
      meet_all(parties.back());
    }
    {
      Party late = self.form("late");
      EXPECT_FALSE(require(late.group->has_all_links()));
      EXPECT_FALSE(require(late.group->has_link((self.rank() + 1) % self.size())));
    }
    for (Party& party : parties) all_reduce(self, party, 10);
    parties.clear();
    self.barrier();
    Party again = self.form("again");
    meet_all(again);
    all_reduce(self, again, 1'000'000);
  });
}

// The next group gets other memory, which its peers map in place of the former, whether or not they have freed theirs.
TEST_P(DeviceGroupLifeTest, an_unused_arena_is_given_back_and_made_anew) {
  on_ranks([](DeviceProcess& self) {
    for (int i = 0; i < 6; ++i) {
      {
        Party party = self.form("edition " + std::to_string(i));
        meet_all(party);
        all_reduce(self, party, 1'000'000, i);
        ipc::Arena::give_back_unused();  // it is in use
        all_reduce(self, party, 1000, i);
      }
      self.barrier();
      if (i < 3 || self.rank() % 2 == 0) ipc::Arena::give_back_unused();
    }
  });
}

void expect_mismatch(DeviceProcess& self, Party& party) {
  const Tensor tensor(contribution(self.rank(), 64));
  auto call = DeviceCall::collective(
      self.rank() == 0 ? transport::OperationKind::kAllReduce : transport::OperationKind::kBarrier, DataType::kInt32,
      64);
  if (self.rank() == 0) call->reduce_with(Reduction::kSum).write(tensor.data(), tensor.num_bytes());
  launch(party, *call, self.stream());
  require(self.stream().synchronize());
  const Status fault = party.group->fault();
  ASSERT_FALSE(fault.ok());
  EXPECT_EQ(fault.code(), ErrorCode::kMismatch) << fault.message();
  EXPECT_NE(fault.message().find("all_reduce"), std::string::npos) << fault.message();
  EXPECT_NE(fault.message().find("barrier"), std::string::npos) << fault.message();
}

// Only rank 0 calls this.
void expect_timeout(DeviceProcess& self, Party& party) {
  auto call = DeviceCall::collective(transport::OperationKind::kBarrier, DataType::kByte, 0);
  call->timeout = 300ms;
  launch(party, *call, self.stream());
  require(self.stream().synchronize());
  const Status fault = party.group->fault();
  ASSERT_FALSE(fault.ok());
  EXPECT_EQ(fault.code(), ErrorCode::kTimeout) << fault.message();
  EXPECT_NE(fault.message().find("barrier: Timed out"), std::string::npos) << fault.message();
}

void expect_abort(DeviceProcess& self, Party& party) {
  launch(party, *DeviceCall::collective(transport::OperationKind::kBarrier, DataType::kByte, 0), self.stream());
  party.communicator->abort("enough");
  require(self.stream().synchronize());
  const Status fault = party.group->fault();
  ASSERT_FALSE(fault.ok());
  EXPECT_EQ(fault.code(), ErrorCode::kAborted) << fault.message();
  EXPECT_NE(fault.message().find("enough"), std::string::npos) << fault.message();
}

// Each fault ends its own group; the device and the next group work as before.
TEST_P(DeviceGroupLifeTest, what_goes_wrong_is_named_and_the_next_group_works) {
  on_ranks([](DeviceProcess& self) {
    for (const auto expect : {expect_mismatch, expect_timeout, expect_abort}) {
      Party party = self.form("unlucky");
      meet_all(party);
      if (self.rank() == 0 || expect == expect_mismatch) expect(self, party);
      self.barrier();
    }
    Party party = self.form("lucky");
    meet_all(party);
    all_reduce(self, party, 1000);
  });
}

}  // namespace
}  // namespace axon::testing
