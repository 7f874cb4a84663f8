// What a process lets its peers read at any time: a few bytes in its memory that change as one.
//
//   ExportTable export_table(incarnation);   export_table.publish(bytes);                        // the owner
//   Result<uint64_t> version = version_of(memory, {address, incarnation});     // a reader: cheap, to see a change
//   Result<std::optional<ExportTableContent>> content = read_export_table(memory, …); // none: it is being written
//
// A sequence lock over processes: the version is odd while the owner writes. A reader takes what it has read if the
// version before and after is the same even one, so it never waits for a writer, who may have died at it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/status.hpp"
#include "ipc/registrations/registration_record.hpp"

namespace axon::ipc {

// Another process's memory, or what stands for it in tests.
class PeerMemory {
 public:
  virtual ~PeerMemory() = default;
  // All of `bytes` or an error.
  virtual Status read(uint64_t address, std::span<std::byte> bytes) const = 0;
};

// In the owner's memory.
struct ExportTableHeader {
  uint64_t incarnation = 0;  // of the owner's arena: that this is the export table that is looked for
  uint64_t version = 0;
  uint64_t num_bytes = 0;  // of the content, which follows
};

// One writer at a time. To be read until the process ends, so it must live as long.
class ExportTable {
 public:
  explicit ExportTable(uint64_t incarnation);

  // At most kMostRecordBytes.
  void publish(std::span<const std::byte> content) noexcept;

  uint64_t address() const noexcept { return reinterpret_cast<uint64_t>(memory_.get()); }

 private:
  struct Memory {
    ExportTableHeader header;
    std::byte content[kMostRecordBytes];
  };

  const std::unique_ptr<Memory> memory_;
};

// Of whom it is, in which process's memory where.
struct ExportTableLocation {
  uint64_t address = 0;
  uint64_t incarnation = 0;

  bool operator==(const ExportTableLocation&) const noexcept = default;
};

struct ExportTableContent {
  uint64_t version = 0;
  std::vector<std::byte> bytes;
};

Result<uint64_t> version_of(const PeerMemory& memory, const ExportTableLocation& location);
Result<std::optional<ExportTableContent>> read_export_table(const PeerMemory& memory,
                                                            const ExportTableLocation& location);

}  // namespace axon::ipc
