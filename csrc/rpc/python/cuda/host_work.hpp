// Copies between host memory of this process and memory of a peer's GPU that is mapped here, in segments. A thread
// copies between the host memory and pinned memory, and a GPU between that and the peer. Several segments are under
// way.
//
//   transfer.add(std::make_unique<HostWork>(transfer, HostWork::Parts{.blocks = …, …}, std::move(owner)), …);
//
// Progress owner only, except for the constructor.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "rpc/core/one_sided/device_memory.hpp"
#include "rpc/python/cuda/cuda_device.hpp"
#include "rpc/python/cuda/gpu_blocks.hpp"

namespace axon::rpc_python {

class HostWork final : public rpc::DeviceWork, private engine::FlagWaiter {
 public:
  static constexpr size_t kMostSegments = 4;  // under way

  struct Parts {
    CudaDevice* device = nullptr;
    int gpu = 0;
    std::vector<GpuBlock> blocks;
    std::vector<std::shared_ptr<rpc::RemoteMemory>> remotes;  // of the blocks; shared with the transfer and others
  };

  // `owner` keeps the local memory.
  HostWork(rpc::Transfer& transfer, Parts parts, Owner owner);

  void begin() noexcept override;
  void stop() noexcept override { job_->is_stopped.store(true, std::memory_order_relaxed); }

 private:
  // Shared with the thread that copies: it may go on after the engine has ended, and this is destroyed.
  struct Job {
    Parts parts;
    rpc::Transfer::Kind kind{};
    std::atomic<bool> is_stopped{false};  // no further segment begins; relaxed: only a hint
    Status status;                        // before is_done
    std::atomic<uint32_t> is_done{0};     // release: pairs with the engine's acquire load
    Owner late_owner;                     // of the local memory, if the engine has ended before the thread
    void run() noexcept;
    Status move() noexcept;
  };
  class Segments;

  void on_flag_set() noexcept override;

  const std::shared_ptr<Job> job_;
  Owner owner_;
  GpuUses uses_;
};

}  // namespace axon::rpc_python
