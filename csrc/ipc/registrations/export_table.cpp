#include "ipc/registrations/export_table.hpp"

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

namespace axon::ipc {

ExportTable::ExportTable(uint64_t incarnation) : memory_(std::make_unique<Memory>()) {
  memory_->header.incarnation = incarnation;
}

// Readers are other processes, so the bytes themselves need no atomics: only the order of the stores matters.
void ExportTable::publish(std::span<const std::byte> content) noexcept {
  const std::atomic_ref version(memory_->header.version);
  const uint64_t former = version.load(std::memory_order_relaxed);
  version.store(former + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);  // odd before any byte changes
  memory_->header.num_bytes = content.size();
  std::ranges::copy(content, memory_->content);
  version.store(former + 2, std::memory_order_release);  // even after all bytes have changed
}

static Result<ExportTableHeader> header_of(const PeerMemory& memory, const ExportTableLocation& location) {
  ExportTableHeader header;
  AXON_TRY(memory.read(location.address, std::as_writable_bytes(std::span(&header, 1))));
  if (header.incarnation != location.incarnation) {
    return Status(ErrorCode::kInvalidArgument, "the peer has no export table at the given address");
  }
  if (header.num_bytes > kMostRecordBytes) {
    return Status(ErrorCode::kInvalidArgument,
                  "the peer's export table has an invalid size of " + std::to_string(header.num_bytes) + " bytes");
  }
  return header;
}

Result<uint64_t> version_of(const PeerMemory& memory, const ExportTableLocation& location) {
  Result<ExportTableHeader> header = header_of(memory, location);
  if (!header.ok()) return std::move(header.status());
  return header.value().version;
}

// Reads three times, since a single read promises no order among its bytes.
Result<std::optional<ExportTableContent>> read_export_table(const PeerMemory& memory,
                                                            const ExportTableLocation& location) {
  Result<ExportTableHeader> before = header_of(memory, location);
  if (!before.ok()) return std::move(before.status());
  ExportTableContent content{.version = before.value().version, .bytes = {}};
  if (content.version % 2 != 0) return std::optional<ExportTableContent>();
  content.bytes.resize(before.value().num_bytes);
  if (!content.bytes.empty()) AXON_TRY(memory.read(location.address + sizeof(ExportTableHeader), content.bytes));
  Result<uint64_t> after = version_of(memory, location);
  if (!after.ok()) return std::move(after.status());
  if (after.value() != content.version) return std::optional<ExportTableContent>();
  return std::optional(std::move(content));
}

}  // namespace axon::ipc
