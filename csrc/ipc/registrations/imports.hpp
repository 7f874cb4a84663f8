// The registrations of one peer process that are mapped for kernels of one device.
//
//   Imports imports(peer, {address, incarnation});
//   imports.look();                                   // from time to time: maps new registrations, drops removed ones
//   for (auto& mapping : imports.take_retired()) …    // mappings that must not be unmapped yet
//
// An owner removes a registration from its export table only after its memory is freed. No operation of the owner uses
// that memory any more. However, a kernel here that does not know yet of the owner's failure may just have looked the
// registration up. It may then read the memory, and discards what it reads (kernels/zero_copy/handshake.cuh). Mappings
// made from descriptors are therefore unmapped kLinger later. That is about a thousand times what such a kernel takes
// from the lookup to the read. Two kinds of mappings are retired instead: those that CUDA unmaps only when the device
// is idle, and all those of a peer that has ended. Such a peer may have ended in the middle of an operation.
//
// Only the cache thread uses this class.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "ipc/registrations/export_table.hpp"
#include "ipc/registrations/registration_record.hpp"

namespace axon::ipc {

// A registration mapped into this process's addresses. Its destruction unmaps it.
class MappedRegistration {
 public:
  virtual ~MappedRegistration() = default;
  virtual std::byte* data() const noexcept = 0;
  // Returns whether unmapping waits for the device.
  virtual bool waits_for_device() const noexcept = 0;
};

// The peer's process and this device, or substitutes in tests.
class RegistrationPeer : public PeerMemory {
 public:
  virtual bool has_ended() const noexcept = 0;
  virtual Result<std::unique_ptr<MappedRegistration>> map(const RegistrationRecord& record) const = 0;
  // Publishes a registration to kernels, or removes it.
  virtual Status enter(uint32_t number, std::span<std::byte> memory) = 0;
  virtual Status remove(uint32_t number) = 0;
};

class Imports {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr std::chrono::milliseconds kLinger{100};

  Imports(std::unique_ptr<RegistrationPeer> peer, ExportTableLocation export_table,
          Clock::duration linger = kLinger) noexcept;

  // Returns whether the look is complete; false means that the export table has changed meanwhile and may have more
  // next time. Takes no longer than its CUDA calls.
  bool look();

  std::vector<std::unique_ptr<MappedRegistration>> take_retired() noexcept { return std::exchange(retired_, {}); }
  // Call this after something that may have prevented a mapping is gone.
  void retry() noexcept;

  size_t num_mapped() const noexcept { return mapped_.size() + leaving_.size(); }
  // Returns whether the peer has ended, so that no registrations follow.
  bool is_over() const noexcept { return is_over_; }
  // The last failure, or an empty string.
  const std::string& obstacle() const noexcept { return obstacle_; }

 private:
  using Mapping = std::unique_ptr<MappedRegistration>;

  struct Leaving {
    Mapping mapping;
    Clock::time_point since;
  };

  struct Publication {
    uint64_t version;
    std::vector<RegistrationRecord> records;
  };

  Result<std::optional<Publication>> read() const;
  Result<bool> catch_up();
  void forget_all_but(const std::vector<RegistrationRecord>& records);
  void drop(std::map<uint32_t, Mapping>::iterator dropped);
  Status import(const RegistrationRecord& record, uint64_t version);
  Result<bool> is_published(const RegistrationRecord& record, uint64_t version) const;
  void note(const std::string& what, const Status& status);
  void let_go();
  bool end();

  const std::unique_ptr<RegistrationPeer> peer_;
  const ExportTableLocation export_table_;
  const Clock::duration linger_;
  std::optional<uint64_t> seen_;        // the version that is mapped
  std::map<uint32_t, Mapping> mapped_;  // by number
  std::set<uint32_t> failed_;           // registrations that cannot be mapped
  std::vector<Leaving> leaving_;
  std::vector<Mapping> retired_;
  bool is_over_ = false;
  std::string obstacle_;  // only the first one is logged
};

}  // namespace axon::ipc
