// A few bytes in a process's memory that peers may read at any time and that change atomically.
//
//   ExportTable export_table(incarnation);   // the owner
//   export_table.publish(bytes);
//   Result<uint64_t> version = version_of(memory, {address, incarnation});  // a reader's cheap check for changes
//   auto content = read_export_table(memory, {address, incarnation});       // nullopt while the owner writes
//
// The table is a sequence lock across processes: the version is odd while the owner writes. A reader accepts what it
// has read if the version before and after is the same even number. It never waits for a writer, which may have died
// while writing.
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

// Memory of another process, or a substitute in tests.
class PeerMemory {
 public:
  virtual ~PeerMemory() = default;
  // Reads all of `bytes`, or fails.
  virtual Status read(uint64_t address, std::span<std::byte> bytes) const = 0;
};

// Lies in the owner's memory.
struct ExportTableHeader {
  uint64_t incarnation = 0;  // of the owner's arena: identifies the export table
  uint64_t version = 0;
  uint64_t num_bytes = 0;  // of the content, which follows the header
};

// Allows one writer at a time. Peers may read it until the process ends, so it must live as long.
class ExportTable {
 public:
  explicit ExportTable(uint64_t incarnation);

  // Publishes at most kMostRecordBytes.
  void publish(std::span<const std::byte> content) noexcept;

  uint64_t address() const noexcept { return reinterpret_cast<uint64_t>(memory_.get()); }

 private:
  struct Memory {
    ExportTableHeader header;
    std::byte content[kMostRecordBytes];
  };

  const std::unique_ptr<Memory> memory_;
};

// The owner of an export table, and its address in that process's memory.
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
