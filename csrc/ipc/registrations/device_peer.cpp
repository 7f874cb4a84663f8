#include "ipc/registrations/device_peer.hpp"

#include <type_traits>
#include <utility>

#include "cuda/allocation.hpp"
#include "cuda/shared_memory.hpp"

namespace axon::ipc {

static constexpr size_t kMostRetired = 256;

namespace {

template <typename Memory>
class Mapped final : public MappedRegistration {
 public:
  explicit Mapped(Memory memory) noexcept : memory_(std::move(memory)) {}
  std::byte* data() const noexcept override { return memory_.data(); }
  bool waits_for_device() const noexcept override { return std::is_same_v<Memory, cuda::LegacyMemory>; }

 private:
  Memory memory_;
};

template <typename Memory>
std::unique_ptr<MappedRegistration> mapped(Memory memory) {
  return std::make_unique<Mapped<Memory>>(std::move(memory));
}

}  // namespace

Result<std::unique_ptr<MappedRegistration>> DevicePeer::map(const RegistrationRecord& record) const {
  return record.extents.empty() ? open_legacy(record) : map_run(record);
}

// A mapping keeps memory that its owner has freed, and it may be long before the mapping can be closed.
Result<std::unique_ptr<MappedRegistration>> DevicePeer::open_legacy(const RegistrationRecord& record) const {
  if (parts_.num_retired.load(std::memory_order_relaxed) >= kMostRetired) {
    return Status(ErrorCode::kResourceExhausted, "too many freed registrations are still mapped");
  }
  Result<cuda::LegacyMemory> memory = cuda::LegacyMemory::open(parts_.device, record.legacy);
  if (!memory.ok()) return std::move(memory.status());
  return mapped(std::move(memory).value());
}

// Only one descriptor is open at a time.
Result<std::unique_ptr<MappedRegistration>> DevicePeer::map_run(const RegistrationRecord& record) const {
  Result<cuda::SharedRun> run = cuda::SharedRun::reserve(record.num_bytes);
  if (!run.ok()) return std::move(run.status());
  for (const RegistrationExtent& extent : record.extents) {
    Result<FileDescriptor> descriptor = parts_.process.fetch(extent.descriptor);
    if (!descriptor.ok()) return std::move(descriptor.status());
    AXON_TRY(run.value().append(descriptor.value(), extent.num_bytes));
  }
  AXON_TRY(run.value().grant(parts_.device));
  return mapped(std::move(run).value());
}

}  // namespace axon::ipc
