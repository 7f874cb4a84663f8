// Ranks as processes over UCX, which share one GPU or have a GPU each; every rank has an engine and a stream.
//
//     on_devices({Placement::kGpuEach, 2}, [](DeviceProcess& self) {
//       Party party = self.form("name");
//       EXPECT_OK(party.group->has_all_links()) …
//     });
//
// Processes are forked, and CUDA does not survive a fork: the parent must not call CUDA.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "engine/engine.hpp"
#include "gpu_comm/device_group.hpp"
#include "kernels/device_buffer.hpp"
#include "transport/process_group.hpp"

namespace axon::testing {

// Returns the number of GPUs that a child sees.
int count_devices();

// Runs once per layout, in processes that its tests fork; skips where the machine has too few GPUs.
class ForkedLayoutTest : public ::testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    const int needed = GetParam().placement == Placement::kGpuEach ? GetParam().num_ranks : 1;
    static const int found = count_devices();
    if (found < needed) GTEST_SKIP() << "needs " << needed << " GPUs, found " << found;
  }
};

// A group's two sides; the GPU's side is destroyed first.
struct Party {
  std::unique_ptr<engine::Communicator> communicator;
  std::unique_ptr<gpu_comm::DeviceGroup> group;
};

// Shared memory in which the processes exchange addresses.
class SharedAddresses;

class DeviceProcess {
 public:
  DeviceProcess(int rank, Layout layout, transport::ProcessGroup& processes, SharedAddresses& addresses);

  int rank() const { return rank_; }
  int size() const { return layout_.num_ranks; }
  int host_of(int rank) const { return rank % layout_.num_hosts; }
  int device() const { return layout_.devices()[static_cast<size_t>(rank_)]; }
  cuda::StreamView stream() const { return stream_; }

  // Forms a new group of all processes; all of them must call it. The GPU side exists, but has no peer links yet.
  Party form(const std::string& name, std::chrono::milliseconds timeout = std::chrono::seconds(20));
  // Waits until all ranks have called it.
  void barrier() { processes_.barrier(rank_); }
  // Returns when this rank's process has ended. A rank may end itself.
  void kill(int rank) { processes_.kill(rank); }

 private:
  const int rank_;
  const Layout layout_;
  transport::ProcessGroup& processes_;
  SharedAddresses& addresses_;
  cuda::Stream stream_;
  std::unique_ptr<engine::Engine> engine_;
};

// Runs the body on every rank, each a process. An exception there fails the test, with the rank and the reason.
void on_devices(Layout layout, const std::function<void(DeviceProcess& self)>& body);

// An operation that is launched as a kernel, never given to the engine.
class DeviceCall final : public engine::Operation {
 public:
  ~DeviceCall() override = default;

  static std::unique_ptr<DeviceCall> collective(transport::OperationKind kind, DataType dtype, uint64_t num_elements);
  static std::unique_ptr<DeviceCall> message(engine::Direction direction, int peer, const DeviceBuffer& buffer,
                                             uint32_t tag);

  DeviceCall& reduce_with(Reduction reduction);
  DeviceCall& rooted_at(int root);
  DeviceCall& read(const std::byte* data, size_t num_bytes);
  DeviceCall& write(std::byte* data, size_t num_bytes);

 private:
  void on_released() noexcept override {}

  std::vector<ConstBuffer> inputs_;
  std::vector<Buffer> outputs_;
};

}  // namespace axon::testing
