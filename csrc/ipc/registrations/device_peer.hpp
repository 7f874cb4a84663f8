// A peer process whose registrations are mapped for one device.
#pragma once

#include <atomic>

#include "ipc/peer_process.hpp"
#include "ipc/registrations/imports.hpp"
#include "ipc/registrations/registration_tables.hpp"

namespace axon::ipc {

// All referenced objects must outlive the DevicePeer.
struct DevicePeerParts {
  int device;
  const PeerProcess& process;
  RegistrationTables& tables;
  cuda::RegistrationEntry* table;          // of this peer
  const std::atomic<size_t>& num_retired;  // of all peers
};

class DevicePeer final : public RegistrationPeer {
 public:
  explicit DevicePeer(const DevicePeerParts& parts) noexcept : parts_(parts) {}

  Status read(uint64_t address, std::span<std::byte> bytes) const override {
    return parts_.process.read(address, bytes);
  }
  bool has_ended() const noexcept override { return parts_.process.has_ended(); }
  Result<std::unique_ptr<MappedRegistration>> map(const RegistrationRecord& record) const override;
  Status enter(uint32_t number, std::span<std::byte> memory) override {
    return parts_.tables.enter(parts_.table, number, memory);
  }
  Status remove(uint32_t number) override { return parts_.tables.remove(parts_.table, number); }

 private:
  Result<std::unique_ptr<MappedRegistration>> open_legacy(const RegistrationRecord& record) const;
  Result<std::unique_ptr<MappedRegistration>> map_run(const RegistrationRecord& record) const;

  const DevicePeerParts parts_;
};

}  // namespace axon::ipc
