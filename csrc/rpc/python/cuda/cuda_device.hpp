// A GPU of this process as one-sided transfers use it. It copies blocks in the background, and has slots of pinned
// memory for what it cannot exchange with a peer directly.
//
//   Result<CudaDevice*> device = CudaDevice::of(gpu);   // allocates the slots for peers, once for the process
//
// Lives as long as the process. Thread-safe, except for the slots.
#pragma once

#include "base/status.hpp"
#include "rpc/core/one_sided/device_memory.hpp"
#include "rpc/core/one_sided/staging_slots.hpp"
#include "rpc/python/cuda/worker_thread.hpp"

namespace axon::rpc_python {

class CudaDevice final : public rpc::Device {
 public:
  // Slots of each of the two kinds, without those that StagingSlots adds. Requests of peers have slots of their own, so
  // that transfers of two processes, each of which waits for the other's slots, go on.
  static constexpr size_t kNumSlots = 8;

  static Result<CudaDevice*> of(int gpu);
  // Slots for transfers that this process begins, of all GPUs. Allocated by the first call.
  static Result<rpc::StagingSlots*> slots_for_transfers(int gpu);

  void start(rpc::DeviceCopy& copy) noexcept override;
  void allocate(rpc::NewSlot& slot) noexcept override;
  rpc::StagingSlots& slots_for_peers() noexcept override { return slots_for_peers_; }
  // The thread that copies between host memory and mapped memory of peers.
  WorkerThread& copier() noexcept { return copier_; }
  // At the exit of the process.
  void stop() noexcept;

 private:
  CudaDevice(int gpu, rpc::StagingSlots& slots_for_peers) noexcept : gpu_(gpu), slots_for_peers_(slots_for_peers) {}
  void launch(rpc::DeviceCopy& copy) const noexcept;

  const int gpu_;
  rpc::StagingSlots& slots_for_peers_;
  WorkerThread launcher_{"axon-gpu-launch"};
  WorkerThread copier_{"axon-gpu-copy"};
  WorkerThread allocator_{"axon-gpu-alloc"};  // apart from the launcher: an allocation may wait for a busy GPU
};

}  // namespace axon::rpc_python
