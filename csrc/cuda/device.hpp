// Devices of this process: how many, which is current, who can reach whom.
//
// The runtime is linked statically and opens the driver when first called, so all this links and loads on a machine
// without CUDA, where num_devices() is 0.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/status.hpp"

namespace axon::cuda {

int num_devices() noexcept;
// Of this thread; 0 where there is none.
int current_device() noexcept;

// Whether kernels and copies on `device` can use memory of `peer`, another one.
bool can_access(int device, int peer) noexcept;
// Lets kernels on `device` use memory of `peer`; fine to repeat, and for a device and itself.
Status enable_peer_access(int device, int peer);

// The same in all processes and containers, whatever CUDA_VISIBLE_DEVICES says.
using DeviceUuid = std::array<uint8_t, 16>;
Result<DeviceUuid> uuid_of(int device);
// "0000:1b:00.0"
Result<std::string> pci_bus_id_of(int device);

// Makes `device` and its context current for this thread, and the former device again at the end of the scope: unless
// the process has no context there, since that would make one.
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
