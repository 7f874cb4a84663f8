// An arena as the kernels of one device see it: imported from a peer, or an arena of this process. An ArenaView owns
// its mapping. Arena guards all changes with its lock; kernels keep a view alive with a shared_ptr.
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
  // Maps the arena at this address, of another process on this host, for `device`. It replaces an earlier edition,
  // whose groups have all been destroyed.
  Status import(const DeviceAddress& address, int device);
  // Does the same for an arena of this process.
  void show(std::byte* data, const DeviceAddress& address) noexcept;
  // Unmaps the arena until the next import(). No group may use it.
  void unmap() noexcept;

  bool shows(const DeviceAddress& address) const noexcept { return data_ != nullptr && edition_ == address.edition; }
  std::byte* data() const noexcept { return data_; }
  // Returns the table in device memory of where registrations of that device and process are mapped for our kernels.
  const cuda::RegistrationEntry* registrations() const noexcept { return owner_->table; }
  // Returns the owner of these registrations.
  const RegistrationOwner& owner() const noexcept { return *owner_; }
  // Returns whether the arena is that of another process, whose tensors have other addresses here.
  bool is_imported() const noexcept { return process_ != nullptr; }
  // Starts to import that process's registrations.
  void follow(Registrations& registrations, const DeviceAddress& address) {
    owner_ = registrations.follow({.address = address.export_table, .incarnation = address.incarnation}, process_);
  }
  // Returns whether its process has ended, and with it the kernels that the process launched.
  bool is_gone() const noexcept { return process_ && process_->has_ended(); }

 private:
  std::byte* data_ = nullptr;
  uint64_t edition_ = 0;
  std::shared_ptr<const RegistrationOwner> owner_;  // shared with other users of the owner's registrations
  std::optional<cuda::SharedMemory> memory_;        // of another process
  std::shared_ptr<const PeerProcess> process_;  // null for this process; shared with the import of its registrations
};

}  // namespace axon::ipc
