// The segments that this process offers of one device's memory.
//
//   Exports exports(memory, export_table, {.device = 0, .num_descriptors = 256});
//   Exports::Located located = exports.locate(address, num_bytes);   // offered from now on, if it was not
//   size_t num_freed = exports.sweep();                              // now and then
//
// An allocation is known by the driver's id for it, which is never used again: the address may be. A tensor is asked
// for by the ids of all allocations that it spans, so a place never leads to memory that only lies where the tensor's
// own does. A segment never changes. It is dropped with the first of its extents; descriptors, one an extent for all
// segments that hold it, are closed once the export table does not name them any more.
//
// Any thread.
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

// This process's memory as the driver tells of it, or what stands for it in tests.
class OwnMemory {
 public:
  virtual ~OwnMemory() = default;
  virtual Result<cuda::Allocation> allocation_at(uint64_t address) const = 0;
  virtual Result<FileDescriptor> share(const cuda::Allocation& allocation) const = 0;
  virtual Result<cuda::LegacyHandle> legacy_handle_of(const cuda::Allocation& allocation) const = 0;
};

struct ExportLimits {
  int device = 0;              // whose memory is offered
  size_t num_descriptors = 0;  // that may be open
};

class Exports {
 public:
  struct Located {
    cuda::IpcLocation location;
    bool is_news;  // nobody has asked for this memory before
  };

  // Both stay as long as this.
  Exports(const OwnMemory& memory, ExportTable& export_table, ExportLimits limits) noexcept;

  // Registration 0 where peers cannot map it.
  Located locate(uint64_t address, size_t num_bytes);

  // Drops what is freed; returns how many segments that were.
  size_t sweep();

  size_t num_registrations() const;

 private:
  struct Extent {
    cuda::Allocation allocation;
    FileDescriptor descriptor;  // none: it has a legacy handle
  };
  struct Registration {
    uint64_t base = 0;
    uint64_t num_bytes = 0;
    std::vector<uint64_t> ids;  // of its extents, in the order of their addresses
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

  mutable std::mutex mutex_;                           // guards all below
  std::map<uint32_t, Registration> registrations_;     // by number
  std::map<uint64_t, Extent> extents_;                 // by id, of all segments
  std::map<uint64_t, std::vector<uint32_t>> holders_;  // by extent: the segments with it
  std::set<uint64_t> refused_;                         // first extents of what cannot be offered
  uint32_t next_number_ = 1;
  size_t num_references_ = 0;  // of segments to extents
  Span span_;                  // of the tensor in question
  bool has_told_ = false;      // that something cannot be offered
};

}  // namespace axon::ipc
