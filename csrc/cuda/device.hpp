// Devices of this process: their number, the current one, and peer access.
//
// The runtime is linked statically and opens the driver at its first call. So this code links and loads on a machine
// without CUDA, where num_devices() is 0. Stateless; the current device belongs to the calling thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/status.hpp"

namespace axon::cuda {

int num_devices() noexcept;
// The current device of this thread, or 0 if there is none.
int current_device() noexcept;

Result<int> num_multiprocessors_of(int device);
// Returns the most shared memory that a block of a kernel can have.
Result<size_t> shared_bytes_per_block_of(int device);

// Says that this build has no code for the GPU, and what to do.
Status no_code_for(int device);

// Returns whether kernels and copies on `device` can use memory of `peer`, a different device.
bool can_access(int device, int peer) noexcept;
// Enables kernels on `device` to use memory of `peer`. May be repeated, and may be called with one device twice.
Status enable_peer_access(int device, int peer);

// The same in all processes and containers, whatever CUDA_VISIBLE_DEVICES is.
using DeviceUuid = std::array<uint8_t, 16>;
Result<DeviceUuid> uuid_of(int device);
// "0000:1b:00.0"
Result<std::string> pci_bus_id_of(int device);

// Makes `device` and its context current for this thread, and restores the former device at the end of the scope. It
// does not restore a device on which the process has no context, since that would create one.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) noexcept;
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  const int former_;
  const bool changed_;
};

}  // namespace axon::cuda
