// Helpers that tests of a group's GPU side share: tensors of int32, and operations that are launched and awaited.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <thread>
#include <vector>

#include "gpu_comm/device_processes.hpp"

namespace axon::testing {
using Words = std::vector<int32_t>;

inline Bytes bytes_of(const Words& words) {
  Bytes bytes(words.size() * 4);
  if (!bytes.empty()) std::memcpy(bytes.data(), words.data(), bytes.size());
  return bytes;
}

// Returns the input of rank `rank`: it differs by rank, position and round.
inline Words contribution(int rank, size_t length, int round = 0) {
  Words words(length);
  std::iota(words.begin(), words.end(), 1000 * (rank + 1) + 7 * round);
  return words;
}

inline Words sum_of_contributions(int num_ranks, size_t length, int round = 0) {
  Words sum(length);
  for (int rank = 0; rank < num_ranks; ++rank) {
    const Words words = contribution(rank, length, round);
    for (size_t i = 0; i < length; ++i) sum[i] += words[i];
  }
  return sum;
}

// A tensor of int32 on the device.
struct Tensor : DeviceBuffer {
  explicit Tensor(size_t length) : DeviceBuffer(4 * length, 4) {}
  explicit Tensor(const Words& words) : Tensor(words.size()) { upload(bytes_of(words)); }
};

class DeviceGroupTest : public ForkedLayoutTest {
 protected:
  void on_ranks(const std::function<void(DeviceProcess& self)>& body) { on_devices(GetParam(), body); }
};

// Waits for a stream with a deadline; after it, the group is aborted, and its fault says what happened.
inline void finish(Party& party, cuda::StreamView stream) {
  const cuda::Event done = require(cuda::Event::create_untimed());
  require(stream.record(done));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!done.view().has_passed() && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  const bool late = !done.view().has_passed();
  if (late) party.group->abort();
  require(stream.synchronize());
  require(party.group->fault());
  if (late) throw std::runtime_error("a kernel did not end within 30 s");
}

inline void meet_all(Party& party) {
  if (!require(party.group->has_all_links()))
    throw std::runtime_error("some GPUs do not reach each other (AXON_LOG=info)");
}

inline void launch(Party& party, const engine::Operation& call, cuda::StreamView stream) {
  if (!party.group->serves(call)) throw std::runtime_error(call.describe() + " is not served");
  require(party.group->launch(call, stream));
}

inline void all_reduce(DeviceProcess& self, Party& party, size_t length, int round = 0) {
  const Tensor tensor(contribution(self.rank(), length, round));
  auto call = DeviceCall::collective(transport::OperationKind::kAllReduce, DataType::kInt32, length);
  call->reduce_with(Reduction::kSum).write(tensor.data(), tensor.num_bytes());
  launch(party, *call, self.stream());
  finish(party, self.stream());
  tensor.expect_contents(bytes_of(sum_of_contributions(self.size(), length, round)),
                         "all_reduce of " + std::to_string(length) + " on rank " + std::to_string(self.rank()));
}

}  // namespace axon::testing
