// Ranks of a team in one process: each has a slice, a stream and a team view. They share one GPU or have a GPU each.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/device.hpp"
#include "cuda/device_types.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"
#include "kernels/ll128/collectives.hpp"
#include "kernels/load.hpp"
#include "kernels/team_layout.hpp"

namespace axon::testing {

inline void require(Status status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

template <typename T>
T require(Result<T> result) {
  if (!result.ok()) throw std::runtime_error(result.status().message());
  return std::move(result).value();
}

inline void require(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

// Ranks that share a GPU need a hardware queue each: in a shared queue, a kernel that waits blocks all later work. This
// must be set before CUDA starts, unless the caller has set it.
inline const int kQueuesAreSet = setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);

inline std::string describe(const cuda::DeviceDescriptor& descriptor) {
  return "(operation " + std::to_string(descriptor.operation) + ", dtype " + std::to_string(descriptor.dtype) +
         ", reduction " + std::to_string(descriptor.reduction) + ", root " + std::to_string(descriptor.root) + ", " +
         std::to_string(descriptor.num_bytes) + " bytes)";
}

inline std::string describe(const cuda::FaultReport& report) {
  return "fault " + std::to_string(static_cast<int>(report.code)) + " with peer " + std::to_string(report.peer) +
         " at sequence " + std::to_string(report.sequence) + ": ours " + describe(report.ours) + " tag " +
         std::to_string(report.our_tag) + ", theirs " + describe(report.theirs) + " tag " +
         std::to_string(report.their_tag);
}

inline cuda::FaultCode code_of(cuda::TeamControl& control) {
  return std::atomic_ref(control.report.code).load(std::memory_order_acquire);  // pairs with report_fault
}

struct TeamOptions {
  size_t slice_bytes = size_t{4} << 20;
  uint32_t first_epoch = 1;
  uint64_t timeout_ns = 5'000'000'000;
};

// Returns a team of two ranks, for calls that are refused before they launch anything.
inline cuda::DeviceTeam team_without_memory() {
  return {.rank = 0,
          .num_ranks = 2,
          .layout = require(kernels::lay_out(2, kernels::kMinSliceBytes)),
          .timeout_ns = 1,
          .state = nullptr,
          .control = nullptr,
          .slices = {},
          .registrations = {}};
}

class DeviceRanks {
 public:
  // Rank r uses devices[r].
  explicit DeviceRanks(std::vector<int> devices, TeamOptions options = {}) : devices_(std::move(devices)) {
    const cuda::TeamLayout layout = require(kernels::lay_out(size(), options.slice_bytes));
    for (const int device : devices_) add_rank(device, options, layout);
    for (int rank = 0; rank < size(); ++rank) {
      ranks_[rank].team = {.rank = rank,
                           .num_ranks = size(),
                           .layout = layout,
                           .timeout_ns = options.timeout_ns,
                           .state = reinterpret_cast<cuda::TeamState*>(ranks_[rank].slice.data()),
                           .control = reinterpret_cast<cuda::TeamControl*>(ranks_[rank].control.data()),
                           .slices = {},
                           .registrations = {}};
      for (int peer = 0; peer < size(); ++peer) {
        ranks_[rank].team.slices[peer] = ranks_[peer].slice.data();
        ranks_[rank].team.registrations[peer] = table(rank, peer);
      }
    }
  }

  int size() const { return static_cast<int>(devices_.size()); }
  int device(int rank) const { return devices_[rank]; }
  const cuda::DeviceTeam& team(int rank) const { return ranks_[rank].team; }
  cuda::StreamView stream(int rank) const { return ranks_[rank].stream; }
  cuda::TeamControl& control(int rank) { return *ranks_[rank].team.control; }

  // Calls visit(rank) with the rank's device current.
  template <typename Visitor>
  void for_each(Visitor visit) const {
    for (int rank = 0; rank < size(); ++rank) {
      cuda::DeviceGuard guard(devices_[rank]);
      visit(rank);
    }
  }

  void synchronize() const {
    for_each([this](int rank) { require(stream(rank).synchronize()); });
  }

  // Registers the memory that begins 256 bytes before `data` for rank `owner`, mapped by all other ranks. Must not be
  // called during a kernel.
  cuda::IpcLocation publish(int owner, const std::byte* data) {
    const cuda::IpcLocation location{.offset = 256, .registration = ++ranks_[owner].num_registrations};
    for (int rank = 0; rank < size(); ++rank) {
      if (rank != owner) reveal(rank, owner, location, data);
    }
    return location;
  }

  // Maps the registration for one of the other ranks.
  void reveal(int rank, int owner, cuda::IpcLocation location, const std::byte* data) const {
    write_entry(rank, owner,
                {.registration = location.registration, .base = const_cast<std::byte*>(data) - location.offset});
  }

  // Unmaps that registration of `owner` for `rank` alone.
  void withdraw(int rank, int owner, cuda::IpcLocation location) const {
    write_entry(rank, owner,
                {.registration = uint64_t{location.registration} + cuda::kRegistrationSlots, .base = nullptr});
  }

  // Call this after synchronize().
  cuda::TeamState state(int rank) const {
    cuda::TeamState state{};
    require(cudaMemcpy(&state, ranks_[rank].team.state, sizeof state, cudaMemcpyDefault));
    return state;
  }

  // Call this after synchronize().
  void expect_no_faults() const {
    for (int rank = 0; rank < size(); ++rank) {
      const cuda::FaultReport& report = ranks_[rank].team.control->report;
      EXPECT_EQ(report.code, cuda::FaultCode::kNone) << "rank " << rank << " of " << size() << " " << describe(report);
    }
  }

 private:
  struct Rank {
    cuda::DeviceMemory slice;
    cuda::DeviceMemory tables;  // registration tables, one per peer
    cuda::PinnedMemory control;
    cuda::Stream stream;
    cuda::DeviceTeam team;
    uint64_t num_registrations = 0;
  };

  // All packets carry the epoch before the first, as if it had just passed. With a first epoch of 1, these are the
  // zeros with which a slice begins.
  void add_rank(int device, const TeamOptions& options, const cuda::TeamLayout& layout) {
    cuda::DeviceGuard guard(device);
    for (const int peer : devices_) require(cuda::enable_peer_access(device, peer));
    ranks_.push_back({require(cuda::DeviceMemory::allocate(options.slice_bytes)),
                      require(cuda::DeviceMemory::allocate(devices_.size() * cuda::kRegistrationSlots *
                                                           sizeof(cuda::RegistrationEntry))),
                      require(cuda::PinnedMemory::allocate(sizeof(cuda::TeamControl))),
                      require(cuda::Stream::create()),
                      {},
                      0});
    if (options.first_epoch == 1) return;
    std::byte* slice = ranks_.back().slice.data();
    const std::vector<uint32_t> words(size_t{2} * layout.region_packets * sizeof(cuda::LlPacket) / 4,
                                      options.first_epoch - 1);
    require(cudaMemcpy(slice + layout.packets, words.data(), words.size() * 4, cudaMemcpyHostToDevice));
    cuda::TeamState state{};
    for (uint32_t& epoch : state.epochs) epoch = options.first_epoch - 1;
    require(cudaMemcpy(slice, &state, sizeof state, cudaMemcpyHostToDevice));
  }

  cuda::RegistrationEntry* table(int rank, int peer) const {
    return reinterpret_cast<cuda::RegistrationEntry*>(ranks_[rank].tables.data()) + peer * cuda::kRegistrationSlots;
  }

  void write_entry(int rank, int owner, cuda::RegistrationEntry entry) const {
    require(cudaMemcpy(table(rank, owner) + entry.registration % cuda::kRegistrationSlots, &entry, sizeof entry,
                       cudaMemcpyDefault));
    require(cudaDeviceSynchronize());
  }

  std::vector<int> devices_;
  std::vector<Rank> ranks_;
};

// The number of ranks, and whether they share one GPU. Only tests of groups heed `num_hosts`: the ranks take turns on
// as many hosts, as far as they claim.
enum class Placement { kOneGpu, kGpuEach };

struct Layout {
  Placement placement;
  int num_ranks;
  int num_hosts = 1;

  std::vector<int> devices() const {
    std::vector<int> devices(num_ranks, 0);
    for (int rank = 0; rank < num_ranks; ++rank) devices[rank] = placement == Placement::kGpuEach ? rank : 0;
    return devices;
  }

  // All kernels of all ranks must fit on the GPU at once. Where many ranks share one, they use fewer channels, hence
  // smaller grids.
  size_t slice_bytes() const {
    return placement == Placement::kGpuEach ? size_t{16} << 20
           : num_ranks <= 3                 ? size_t{2} << 20
                                            : kernels::kMinSliceBytes;
  }
};

inline std::string name_of(const ::testing::TestParamInfo<Layout>& info) {
  const Layout& layout = info.param;
  return (layout.placement == Placement::kOneGpu ? "one_gpu_" : "gpu_each_") + std::to_string(layout.num_ranks) +
         (layout.num_hosts == 1 ? "" : "_on_" + std::to_string(layout.num_hosts) + "_hosts");
}

// Runs once per layout; skips where the machine has too few GPUs.
class LayoutTest : public ::testing::TestWithParam<Layout> {
 protected:
  void SetUp() override {
    const int needed = GetParam().placement == Placement::kGpuEach ? GetParam().num_ranks : 1;
    if (cuda::num_devices() < needed) GTEST_SKIP() << "needs " << needed << " GPUs, found " << cuda::num_devices();
  }
};

// Provides ranks whose kernels of every kind are loaded.
class RanksTest : public LayoutTest {
 protected:
  void SetUp() override {
    LayoutTest::SetUp();
    if (IsSkipped()) return;
    ranks_ = std::make_unique<DeviceRanks>(GetParam().devices(), TeamOptions{.slice_bytes = GetParam().slice_bytes()});
    ranks_->for_each([this](int) { require(kernels::load_kernels(ranks_->size())); });
  }

  std::unique_ptr<DeviceRanks> ranks_;
};

inline const auto kLayouts =
    ::testing::Values(Layout{Placement::kOneGpu, 2}, Layout{Placement::kOneGpu, 3}, Layout{Placement::kOneGpu, 5},
                      Layout{Placement::kOneGpu, 8}, Layout{Placement::kOneGpu, 10}, Layout{Placement::kGpuEach, 2},
                      Layout{Placement::kGpuEach, 3}, Layout{Placement::kGpuEach, 4});

// A captured stream that can be launched again and again.
class Graph {
 public:
  // `enqueue` puts the work on `stream`; the current device must be the stream's.
  template <typename Enqueue>
  Graph(cuda::StreamView stream, Enqueue enqueue) {
    require(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal));
    enqueue();
    cudaGraph_t graph = nullptr;
    require(cudaStreamEndCapture(stream.get(), &graph));
    const cudaError_t error = cudaGraphInstantiate(&executable_, graph, 0);
    require(cudaGraphDestroy(graph));
    require(error);
    require(cudaGraphUpload(executable_, stream.get()));
  }
  ~Graph() { (void)cudaGraphExecDestroy(executable_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void launch(cuda::StreamView stream) const { require(cudaGraphLaunch(executable_, stream.get())); }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace axon::testing
