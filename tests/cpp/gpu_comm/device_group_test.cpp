// Every operation as a kernel, between processes.
#include "gpu_comm/device_calls.hpp"

namespace axon::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(Layouts, DeviceGroupTest,
                         ::testing::Values(Layout{Placement::kOneGpu, 2}, Layout{Placement::kGpuEach, 2},
                                           Layout{Placement::kGpuEach, 4}),
                         name_of);

void all_gather(DeviceProcess& self, Party& party, const Tensor& gathered, size_t length) {
  const size_t num_bytes = 4 * length;
  const Tensor mine(contribution(self.rank(), length));
  auto call = DeviceCall::collective(transport::OperationKind::kAllGather, DataType::kInt32, length * self.size());
  call->read(mine.data(), num_bytes);
  for (int rank = 0; rank < self.size(); ++rank) call->write(gathered.data() + rank * num_bytes, num_bytes);
  launch(party, *call, self.stream());
  finish(party, self.stream());
  Words everything;
  for (int rank = 0; rank < self.size(); ++rank) {
    const Words words = contribution(rank, length);
    everything.insert(everything.end(), words.begin(), words.end());
  }
  gathered.expect_contents(bytes_of(everything), "all_gather of " + std::to_string(length));
}

// Reduces the output of all_gather, which is the same on all ranks.
void reduce_scatter(DeviceProcess& self, Party& party, const Tensor& gathered, size_t length) {
  const size_t num_bytes = 4 * length;
  const Tensor reduced(length);
  auto call = DeviceCall::collective(transport::OperationKind::kReduceScatter, DataType::kInt32, length * self.size());
  call->reduce_with(Reduction::kSum).write(reduced.data(), num_bytes);
  for (int rank = 0; rank < self.size(); ++rank) call->read(gathered.data() + rank * num_bytes, num_bytes);
  launch(party, *call, self.stream());
  finish(party, self.stream());
  Words sum = contribution(self.rank(), length);
  for (int32_t& word : sum) word *= self.size();
  reduced.expect_contents(bytes_of(sum), "reduce_scatter of " + std::to_string(length));
}

void broadcast_and_reduce(DeviceProcess& self, Party& party, int root, size_t length) {
  const Tensor shared(contribution(self.rank(), length));
  auto broadcast = DeviceCall::collective(transport::OperationKind::kBroadcast, DataType::kInt32, length);
  broadcast->rooted_at(root).write(shared.data(), shared.num_bytes());
  launch(party, *broadcast, self.stream());
  finish(party, self.stream());
  shared.expect_contents(bytes_of(contribution(root, length)), "broadcast of " + std::to_string(length));

  const Tensor tensor(contribution(self.rank(), length));
  auto reduce = DeviceCall::collective(transport::OperationKind::kReduce, DataType::kInt32, length);
  reduce->reduce_with(Reduction::kSum).rooted_at(root);
  reduce->read(tensor.data(), tensor.num_bytes()).write(tensor.data(), tensor.num_bytes());
  launch(party, *reduce, self.stream());
  finish(party, self.stream());
  const bool is_root = self.rank() == root;
  tensor.expect_contents(
      bytes_of(is_root ? sum_of_contributions(self.size(), length) : contribution(self.rank(), length)),
      "reduce of " + std::to_string(length));
}

// Messages have rank + 1 and more elements, to show their source and destination.
void all_to_all(DeviceProcess& self, Party& party) {
  std::vector<Tensor> sent;
  std::vector<Tensor> received;
  auto call = DeviceCall::collective(transport::OperationKind::kAllToAll, DataType::kInt32, 0);
  for (int peer = 0; peer < self.size(); ++peer) {
    sent.emplace_back(contribution(self.rank(), static_cast<size_t>(100 * peer + self.rank() + 1)));
    received.emplace_back(static_cast<size_t>(100 * self.rank() + peer + 1));
    call->read(sent.back().data(), sent.back().num_bytes());
    call->write(received.back().data(), received.back().num_bytes());
  }
  launch(party, *call, self.stream());
  finish(party, self.stream());
  for (int peer = 0; peer < self.size(); ++peer) {
    const Tensor& block = received[static_cast<size_t>(peer)];
    block.expect_contents(bytes_of(contribution(peer, block.num_bytes() / 4)), "block of rank " + std::to_string(peer));
  }
}

// Tensors are not adjacent in memory, and each rank has the shards in another order.
void gather_scatter_apart(DeviceProcess& self, Party& party, int root) {
  constexpr size_t kLength = 77;
  const Tensor mine(contribution(self.rank(), kLength));
  std::vector<Tensor> blocks;
  for (int rank = 0; rank < self.size(); ++rank) blocks.emplace_back(kLength);
  const auto expect_blocks = [&](const std::string& what) {
    for (int rank = 0; rank < self.size(); ++rank) {
      blocks[static_cast<size_t>(rank)].expect_contents(bytes_of(contribution(rank, kLength)),
                                                        what + ", block of rank " + std::to_string(rank));
    }
  };
  for (const transport::OperationKind kind :
       {transport::OperationKind::kAllGather, transport::OperationKind::kGather}) {
    auto call = DeviceCall::collective(kind, DataType::kInt32,
                                       kind == transport::OperationKind::kGather ? kLength : kLength * blocks.size());
    call->read(mine.data(), mine.num_bytes());
    if (kind == transport::OperationKind::kGather) call->rooted_at(root);
    const bool receives = kind == transport::OperationKind::kAllGather || self.rank() == root;
    for (const Tensor& block : blocks) {
      if (receives) call->write(block.data(), block.num_bytes());
    }
    launch(party, *call, self.stream());
    finish(party, self.stream());
    if (receives) expect_blocks(name_of(kind));
  }
  const Tensor scattered(kLength);
  auto scatter = DeviceCall::collective(transport::OperationKind::kScatter, DataType::kInt32, kLength);
  scatter->rooted_at(root).write(scattered.data(), scattered.num_bytes());
  for (const Tensor& block : blocks) {
    if (self.rank() == root) scatter->read(block.data(), block.num_bytes());
  }
  launch(party, *scatter, self.stream());
  finish(party, self.stream());
  scattered.expect_contents(bytes_of(contribution(self.rank(), kLength)), "scatter");
}

TEST_P(DeviceGroupTest, every_collective_of_every_size) {
  on_ranks([](DeviceProcess& self) {
    Party party = self.form("collectives");
    meet_all(party);
    const int root = self.size() - 1;
    for (const size_t length : {size_t{0}, size_t{1}, size_t{3}, size_t{1000}, size_t{100'000}, size_t{3'000'001}}) {
      all_reduce(self, party, length);
    }
    for (const size_t length : {size_t{5}, size_t{300'000}}) {
      const Tensor gathered(length * static_cast<size_t>(self.size()));
      all_gather(self, party, gathered, length);
      reduce_scatter(self, party, gathered, length);
      broadcast_and_reduce(self, party, root, length);
    }
    all_to_all(self, party);
    gather_scatter_apart(self, party, root);
    launch(party, *DeviceCall::collective(transport::OperationKind::kBarrier, DataType::kByte, 0), self.stream());
    finish(party, self.stream());
  });
}

// Messages go around the ring, with both directions in one launch and several messages to the same rank; and between
// pairs without a prior collective.
TEST_P(DeviceGroupTest, messages_go_around_the_ring) {
  on_ranks([](DeviceProcess& self) {
    Party party = self.form("ring");
    const int next = (self.rank() + 1) % self.size();
    const int previous = (self.rank() + self.size() - 1) % self.size();
    EXPECT_TRUE(require(party.group->has_link(next)));
    EXPECT_TRUE(require(party.group->has_link(previous)));
    EXPECT_FALSE(require(party.group->has_link(self.rank())));
    for (const size_t length : {size_t{0}, size_t{9}, size_t{2'000'000}, size_t{3'000'000}}) {
      std::vector<Tensor> sent;
      std::vector<Tensor> received;
      std::vector<std::unique_ptr<DeviceCall>> calls;
      for (int round = 0; round < 3; ++round) {
        sent.emplace_back(contribution(self.rank(), length, round));
        received.emplace_back(length);
        const auto tag = static_cast<uint32_t>(round);
        calls.push_back(DeviceCall::message(engine::Direction::kSend, next, sent.back(), tag));
        calls.push_back(DeviceCall::message(engine::Direction::kReceive, previous, received.back(), tag));
      }
      std::vector<const engine::Operation*> batch;
      for (const auto& call : calls) batch.push_back(call.get());
      require(party.group->launch_batch(batch, self.stream()));
      finish(party, self.stream());
      for (int round = 0; round < 3; ++round) {
        received[static_cast<size_t>(round)].expect_contents(bytes_of(contribution(previous, length, round)),
                                                             "message " + std::to_string(round));
      }
    }
  });
}

}  // namespace
}  // namespace axon::testing
