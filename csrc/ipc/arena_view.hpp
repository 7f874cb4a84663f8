// An arena as the kernels of one device see it: a peer's, imported, or one of this process.
#pragma once

#include <memory>
#include <optional>

#include "cuda/shared_memory.hpp"
#include "ipc/device_address.hpp"
#include "ipc/peer_process.hpp"
#include "ipc/registrations/registrations.hpp"

namespace axon::ipc {

class ArenaView {
 public:
  // Maps the arena that the address is about, of another process of this host, for `device`: in the place of a former
  // edition, whose groups have all been left.
  Status import(const DeviceAddress& address, int device);
  // The same for one of this process.
  void show(std::byte* data, const DeviceAddress& address) noexcept;
  // Until the next import(), once no group uses it.
  void unmap() noexcept;

  bool shows(const DeviceAddress& address) const noexcept { return data_ != nullptr && edition_ == address.edition; }
  std::byte* data() const noexcept { return data_; }
  // Where the segments of its device and process are mapped for kernels of ours: device memory.
  const cuda::RegistrationEntry* registrations() const noexcept { return owner_->table; }
  // Looks for them from now on.
  void follow(Registrations& registrations, const DeviceAddress& address) {
    owner_ = registrations.follow({.address = address.export_table, .incarnation = address.incarnation}, process_);
  }
  // Its process has ended, and with it the kernels that it had launched.
  bool is_gone() const noexcept { return process_ && process_->has_ended(); }

 private:
  std::byte* data_ = nullptr;
  uint64_t edition_ = 0;
  std::shared_ptr<const RegistrationOwner> owner_;  // shared with others who read what it has
  std::optional<cuda::SharedMemory> memory_;        // of another process
  std::shared_ptr<const PeerProcess> process_;      // if another one; shared with those who look for its segments
};

}  // namespace axon::ipc
