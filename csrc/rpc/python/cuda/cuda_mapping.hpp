// Memory of a peer's GPU as GPUs of this process use it: mapped by CUDA IPC, or at its own address within a process.
//
//   auto mapping = std::make_unique<CudaMapping>(remote, gpu);
//   if (mapping->is_usable_from(gpu)) remote.attach(std::move(mapping));
//   … mapping->find(copier, extent) …       // within BlockCopier::Request::fill
//
// Any thread, without the GIL: mapping takes up to some milliseconds for the first time.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "ipc/block_copier.hpp"
#include "rpc/core/one_sided/remote_memory.hpp"

namespace axon::rpc_python {

class CudaMapping final : public rpc::DeviceMapping {
 public:
  // `remote` owns this later. `home` copies between the memory and this host's.
  CudaMapping(const rpc::RemoteMemory& remote, int home);

  // Maps the memory for this GPU, if it is not mapped yet.
  bool is_usable_from(int gpu);
  int home() const noexcept { return home_; }
  // Returns where an extent begins, for this GPU.
  Result<std::byte*> find(ipc::BlockCopier& copier, size_t extent) const;
  ipc::BlockCopier::Method method_from(int gpu) const noexcept;

 private:
  ipc::ExposedLocation location_of(size_t extent) const noexcept;
  bool map_for(int gpu) const;

  const rpc::RemoteMemory& remote_;
  const int home_;
  const int32_t pid_;

  std::mutex mutex_;            // guards the following member
  std::map<int, bool> usable_;  // by GPU
};

}  // namespace axon::rpc_python
