// The IPC registrations that this process exports from one device's memory.
//
//   Exports exports(memory, export_table, {.device = 0, .num_descriptors = 256});
//   Exports::Located located = exports.locate(address, num_bytes);   // exports the memory if necessary
//   size_t num_freed = exports.sweep();                              // call from time to time
//
// An allocation is identified by the driver's id for it, which is never used again; its address may be. A tensor is
// looked up by the ids of all allocations that it spans. A location therefore never refers to memory that merely has
// the same address as the tensor. A registration never changes. It is dropped when the first of its extents is freed.
// Each extent has one descriptor for all registrations that contain it. The descriptor is closed once the export table
// no longer names it.
//
// Thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/status.hpp"
#include "cuda/allocation.hpp"
#include "cuda/device_types.hpp"
#include "ipc/registrations/export_table.hpp"

namespace axon::ipc {

// This process's memory as the driver reports it, or a substitute in tests.
class OwnMemory {
 public:
  virtual ~OwnMemory() = default;
  virtual Result<cuda::Allocation> allocation_at(uint64_t address) const = 0;
  virtual Result<FileDescriptor> share(const cuda::Allocation& allocation) const = 0;
  virtual Result<cuda::LegacyHandle> legacy_handle_of(const cuda::Allocation& allocation) const = 0;
};

struct ExportLimits {
  int device = 0;              // of the memory that is exported
  size_t num_descriptors = 0;  // limit of open descriptors
};

class Exports {
 public:
  struct Located {
    cuda::IpcLocation location;
    bool is_news;  // no earlier call asked for this memory
  };

  // Both objects must outlive this one.
  Exports(const OwnMemory& memory, ExportTable& export_table, ExportLimits limits) noexcept;

  // Returns registration 0 if peers cannot map the memory.
  Located locate(uint64_t address, size_t num_bytes);

  // Returns whether this memory is new: neither an earlier call nor locate() asked for it. Exports nothing.
  bool note(uint64_t address, size_t num_bytes);

  // Drops freed registrations; returns their number.
  size_t sweep();

  size_t num_registrations() const;

 private:
  struct Extent {
    cuda::Allocation allocation;
    FileDescriptor descriptor;  // invalid if the extent has a legacy handle
  };
  struct Registration {
    uint64_t base = 0;
    uint64_t num_bytes = 0;
    std::vector<uint64_t> ids;  // of its extents, ordered by address
    cuda::LegacyHandle legacy{};
  };
  using Span = std::vector<cuda::Allocation>;

  bool walk(uint64_t address, size_t num_bytes);
  bool spans(const Registration& registration) const noexcept;
  cuda::IpcLocation find(uint64_t address) const noexcept;
  void tell(size_t num_bytes, const std::string& why);
  Status add();
  Result<uint32_t> next_number();
  Result<Registration> open_span();
  Status open_extent(const cuda::Allocation& allocation);
  std::set<uint64_t> overlapped() const;
  size_t drop(const std::set<uint64_t>& freed);
  void close_unused();
  void publish();

  const OwnMemory& memory_;
  ExportTable& export_table_;
  const ExportLimits limits_;

  mutable std::mutex mutex_;                           // guards all members below
  std::map<uint32_t, Registration> registrations_;     // by number
  std::map<uint64_t, Extent> extents_;                 // by id, of all registrations
  std::map<uint64_t, std::vector<uint32_t>> holders_;  // by extent: the registrations that contain it
  std::set<uint64_t> refused_;                         // first extents of memory that cannot be exported
  std::set<uint64_t> noted_;                           // first extents of what note() was called for
  uint32_t next_number_ = 1;
  size_t num_references_ = 0;  // from registrations to extents
  Span span_;                  // of the tensor being looked up
  bool has_told_ = false;      // whether a failed export has been logged
};

}  // namespace axon::ipc
