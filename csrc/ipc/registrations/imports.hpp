// The segments of one peer process that are mapped for kernels of one device.
//
//   Imports imports(peer, {address, incarnation});
//   imports.look();                                   // now and then: maps what is new, drops what is gone
//   for (auto& mapping : imports.take_retired()) …    // what must not be unmapped yet
//
// An owner takes a segment from its export table only once its memory is freed, when no operation on it runs any more
// there. A kernel here that has not heard of the owner's failure may just have looked it up, and read it for nothing
// (kernels/zero_copy/handshake.cuh): so what was mapped from descriptors is unmapped kLinger later, some thousand times
// what such a kernel takes from the look to the read. Retired is what CUDA unmaps only when the device is idle, and all
// of a peer that has ended, perhaps in the middle of an operation.
//
// One thread, the cache thread's.
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

// A segment in this process's addresses, unmapped by its destruction.
class MappedRegistration {
 public:
  virtual ~MappedRegistration() = default;
  virtual std::byte* data() const noexcept = 0;
  // To unmap it waits for the device.
  virtual bool waits_for_device() const noexcept = 0;
};

// The peer's process and this device, or what stands for them in tests.
class RegistrationPeer : public PeerMemory {
 public:
  virtual bool has_ended() const noexcept = 0;
  virtual Result<std::unique_ptr<MappedRegistration>> map(const RegistrationRecord& record) const = 0;
  // What kernels find: the segment, or no longer.
  virtual Status enter(uint32_t number, std::span<std::byte> memory) = 0;
  virtual Status remove(uint32_t number) = 0;
};

class Imports {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr std::chrono::milliseconds kLinger{100};

  Imports(std::unique_ptr<RegistrationPeer> peer, ExportTableLocation export_table,
          Clock::duration linger = kLinger) noexcept;

  // Takes no longer than the calls of CUDA's. False: the export table has changed meanwhile, and there may be more the
  // next time.
  bool look();

  std::vector<std::unique_ptr<MappedRegistration>> take_retired() noexcept { return std::exchange(retired_, {}); }
  // Something that may have been in the way of a mapping is gone.
  void retry() noexcept;

  size_t num_mapped() const noexcept { return mapped_.size() + leaving_.size(); }
  // The peer has ended: nothing more will come.
  bool is_over() const noexcept { return is_over_; }
  // What has failed last, if anything has.
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
  std::set<uint32_t> failed_;           // cannot be mapped
  std::vector<Leaving> leaving_;
  std::vector<Mapping> retired_;
  bool is_over_ = false;
  std::string obstacle_;  // the first has been told
};

}  // namespace axon::ipc
