// Groups that span hosts, as far as the ranks' addresses claim: kernels work among the ranks of each.
#include "gpu_comm/device_calls.hpp"

namespace axon::testing {
namespace {

using namespace std::chrono_literals;

class DeviceGroupHostsTest : public DeviceGroupTest {};

// With three ranks, rank 1 is alone on its host.
INSTANTIATE_TEST_SUITE_P(Layouts, DeviceGroupHostsTest,
                         ::testing::Values(Layout{Placement::kOneGpu, 4, 2}, Layout{Placement::kOneGpu, 3, 2},
                                           Layout{Placement::kGpuEach, 4, 2}, Layout{Placement::kGpuEach, 3, 2}),
                         name_of);

std::vector<int> neighbours_of(const DeviceProcess& self) {
  std::vector<int> ranks;
  for (int rank = 0; rank < self.size(); ++rank) {
    if (self.host_of(rank) == self.host_of(self.rank())) ranks.push_back(rank);
  }
  return ranks;
}

void meet_neighbours(Party& party) {
  if (!require(party.group->has_local_links()))
    throw std::runtime_error("some GPUs do not reach each other (AXON_LOG=info)");
}

void run_locally(DeviceProcess& self, Party& party, const engine::Operation& call) {
  if (!party.group->serves_local(call)) throw std::runtime_error(call.describe() + " is not served");
  require(party.group->launch_local(call, self.stream()));
  finish(party, self.stream());
}

void all_reduce_locally(DeviceProcess& self, Party& party, size_t length) {
  Words sum(length);
  for (const int rank : neighbours_of(self)) {
    const Words words = contribution(rank, length);
    for (size_t i = 0; i < length; ++i) sum[i] += words[i];
  }
  const Tensor tensor(contribution(self.rank(), length));
  auto call = DeviceCall::collective(transport::OperationKind::kAllReduce, DataType::kInt32, length);
  call->reduce_with(Reduction::kSum).write(tensor.data(), tensor.num_bytes());
  run_locally(self, party, *call);
  tensor.expect_contents(bytes_of(sum), "all_reduce of " + std::to_string(length));
}

void all_gather_locally(DeviceProcess& self, Party& party, size_t length) {
  const std::vector<int> ranks = neighbours_of(self);
  const Tensor mine(contribution(self.rank(), length));
  const Tensor gathered(length * ranks.size());
  auto call = DeviceCall::collective(transport::OperationKind::kAllGather, DataType::kInt32, length * ranks.size());
  call->read(mine.data(), mine.num_bytes());
  Words everything;
  for (size_t index = 0; index < ranks.size(); ++index) {
    call->write(gathered.data() + index * mine.num_bytes(), mine.num_bytes());
    const Words words = contribution(ranks[index], length);
    everything.insert(everything.end(), words.begin(), words.end());
  }
  run_locally(self, party, *call);
  gathered.expect_contents(bytes_of(everything), "all_gather of " + std::to_string(length));
}

void broadcast_locally(DeviceProcess& self, Party& party, size_t length) {
  const std::vector<int> ranks = neighbours_of(self);
  const int root = static_cast<int>(ranks.size()) - 1;
  const Tensor tensor(contribution(self.rank(), length));
  auto call = DeviceCall::collective(transport::OperationKind::kBroadcast, DataType::kInt32, length);
  call->rooted_at(root).write(tensor.data(), tensor.num_bytes());
  run_locally(self, party, *call);
  tensor.expect_contents(bytes_of(contribution(ranks.back(), length)), "broadcast of " + std::to_string(length));
}

TEST_P(DeviceGroupHostsTest, collectives_run_within_each_host) {
  on_ranks([](DeviceProcess& self) {
    Party party = self.form("hosts");
    EXPECT_FALSE(require(party.group->has_all_links()));
    meet_neighbours(party);
    EXPECT_FALSE(require(party.group->has_all_links()));
    const std::vector<int> ranks = neighbours_of(self);
    EXPECT_EQ(party.group->num_local(), static_cast<int>(ranks.size()));
    EXPECT_EQ(ranks[static_cast<size_t>(party.group->local_index())], self.rank());
    for (const size_t length : {size_t{0}, size_t{3}, size_t{100'000}, size_t{3'000'001}}) {
      all_reduce_locally(self, party, length);
      all_gather_locally(self, party, length);
      broadcast_locally(self, party, length);
    }
  });
}

TEST_P(DeviceGroupHostsTest, all_ranks_decide_alike) {
  on_ranks([](DeviceProcess& self) {
    Party party = self.form("alike");
    auto call = DeviceCall::collective(transport::OperationKind::kAllReduce, DataType::kFloat32, 1000);
    call->reduce_with(Reduction::kSum);
    EXPECT_FALSE(party.group->serves_local(*call));  // not before the ranks have agreed
    meet_neighbours(party);
    EXPECT_TRUE(party.group->serves_local(*call));
    EXPECT_FALSE(party.group->serves(*call));
    EXPECT_FALSE(party.group->launch(*call, self.stream()).ok());
    call->reduce_with(Reduction::kPremulSum);
    EXPECT_EQ(party.group->serves_local(*call), self.size() == 4) << "a rank alone has no kernel for a factor";
  });
}

TEST_P(DeviceGroupHostsTest, messages_between_neighbours_take_kernels) {
  on_ranks([](DeviceProcess& self) {
    Party party = self.form("messages");
    const std::vector<int> ranks = neighbours_of(self);
    for (int rank = 0; rank < self.size(); ++rank) {
      const bool is_near = self.host_of(rank) == self.host_of(self.rank());
      EXPECT_EQ(require(party.group->has_link(rank)), is_near && rank != self.rank()) << "rank " << rank;
      if (is_near) continue;
      EXPECT_EQ(party.group->obstacle_to(rank).message(), "its process runs on another host");
    }
    if (ranks.size() < 2) return;
    const int peer = ranks[0] == self.rank() ? ranks[1] : ranks[0];
    for (const size_t length : {size_t{9}, size_t{3'000'000}}) {
      const Tensor sent(contribution(self.rank(), length));
      const Tensor received(length);
      const auto send = DeviceCall::message(engine::Direction::kSend, peer, sent, 0);
      const auto receive = DeviceCall::message(engine::Direction::kReceive, peer, received, 0);
      EXPECT_TRUE(party.group->serves(*send));
      const engine::Operation* const batch[] = {send.get(), receive.get()};
      require(party.group->launch_batch(batch, self.stream()));
      finish(party, self.stream());
      received.expect_contents(bytes_of(contribution(peer, length)), "message of " + std::to_string(length));
    }
  });
}

// Drives the engine until the group's kernels report a fault.
Status await_fault(Party& party) {
  const auto deadline = std::chrono::steady_clock::now() + 30s;
  Status fault = party.group->fault();
  while (fault.ok() && std::chrono::steady_clock::now() < deadline) {
    (void)party.communicator->failure();
    fault = party.group->fault();
  }
  return fault;
}

// The last rank dies, and its neighbour waits for it. The other host's kernels are not concerned.
TEST_P(DeviceGroupHostsTest, a_rank_that_dies_is_named_as_in_the_group) {
  on_ranks([](DeviceProcess& self) {
    Party party = self.form("death");
    meet_neighbours(party);
    all_reduce_locally(self, party, 1000);
    const int victim = self.size() - 1;
    const int witness = neighbours_of(self).front();
    const bool is_near = self.host_of(victim) == self.host_of(self.rank());
    self.barrier();
    if (is_near && self.rank() == witness) self.kill(victim);
    self.barrier();
    if (!is_near) all_reduce_locally(self, party, 1000);
    self.barrier();
    if (!is_near) return;
    const auto call = DeviceCall::collective(transport::OperationKind::kBarrier, DataType::kByte, 0);
    require(party.group->launch_local(*call, self.stream()));
    const Status fault = await_fault(party);
    require(self.stream().synchronize());
    ASSERT_FALSE(fault.ok());
    EXPECT_EQ(fault.code(), ErrorCode::kPeerLost) << fault.message();
    const std::string name = "rank " + std::to_string(victim);
    EXPECT_NE(fault.message().find(name + " is gone"), std::string::npos) << fault.message();
    EXPECT_NE(fault.message().find("barrier was waiting for " + name), std::string::npos) << fault.message();
  });
}

}  // namespace
}  // namespace axon::testing
