// Copies between memory of a local GPU and memory of a peer's GPU that is mapped for it. The thread that posts the
// transfer launches the copy; the engine only watches its flag.
//
//   auto work = std::make_unique<DirectWork>(transfer, std::move(parts));
//   work->launch(stream);                     // without the GIL
//   transfer.add(std::move(work), …);
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "rpc/core/one_sided/device_memory.hpp"
#include "rpc/python/cuda/gpu_blocks.hpp"

namespace axon::rpc_python {

class DirectWork final : public rpc::DeviceWork, private engine::FlagWaiter {
 public:
  struct Parts {
    int gpu = 0;
    // Returns the addresses of the blocks. Called by launch() only, perhaps more than once.
    std::function<Result<ipc::BlockCopier::Blocks>(ipc::BlockCopier&)> addresses;
    std::vector<std::shared_ptr<rpc::RemoteMemory>> remotes;  // of the blocks; shared with the transfer and others
    Owner owner;                                              // of the local memory
  };

  DirectWork(rpc::Transfer& transfer, Parts parts) noexcept;
  ~DirectWork() override;

  // Once, before the transfer starts. A failure is that of the transfer.
  void launch(std::optional<cuda::StreamView> after);

  void begin() noexcept override;
  void stop() noexcept override {}  // a copy that has been launched cannot be stopped

 private:
  void on_flag_set() noexcept override;
  Status copy(std::optional<cuda::StreamView> after);
  void finish() noexcept;

  Parts parts_;
  GpuUses uses_;
  Status status_;
  std::optional<ipc::BlockCopier::UnderWay> under_way_;
};

}  // namespace axon::rpc_python
