#include "ipc/registrations/exports.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "base/log.hpp"

namespace axon::ipc {

// Limit of remembered failures, which prevent that a tensor is tried again at each call.
static constexpr size_t kMostRefused = 4096;
static constexpr size_t kMostNoted = 4096;

static uint64_t end_of(const cuda::Allocation& allocation) noexcept {
  return allocation.base + allocation.num_bytes;
}

Exports::Exports(const OwnMemory& memory, ExportTable& export_table, ExportLimits limits) noexcept
    : memory_(memory), export_table_(export_table), limits_(limits) {}

// Sets span_ to the allocations below the tensor, and returns whether they cover it without a gap.
bool Exports::walk(uint64_t address, size_t num_bytes) {
  span_.clear();
  const uint64_t end = address + num_bytes;
  if (num_bytes == 0 || end < address) return false;
  for (uint64_t at = address; at < end; at = end_of(span_.back())) {
    const Result<cuda::Allocation> found = memory_.allocation_at(at);
    if (!found.ok() || found.value().id == 0 || span_.size() == kMostExtents) return false;
    const cuda::Allocation& allocation = found.value();
    if (allocation.base > at || end_of(allocation) <= at) return false;
    if (!span_.empty() && allocation.base != at) return false;
    span_.push_back(allocation);
  }
  return true;
}

// Consecutive ids in the registration are consecutive in memory, unless the process has mapped one extent twice.
bool Exports::spans(const Registration& registration) const noexcept {
  if (extents_.at(span_.front().id).allocation.base != span_.front().base) return false;
  const auto first = std::ranges::find(registration.ids, span_.front().id);
  return registration.ids.end() - first >= static_cast<std::ptrdiff_t>(span_.size()) &&
         std::equal(span_.begin(), span_.end(), first,
                    [](const cuda::Allocation& allocation, uint64_t id) { return allocation.id == id; });
}

cuda::IpcLocation Exports::find(uint64_t address) const noexcept {
  const auto holders = holders_.find(span_.front().id);
  if (holders == holders_.end()) return {};
  for (const uint32_t number : holders->second) {
    const Registration& registration = registrations_.at(number);
    if (spans(registration)) return {.offset = address - registration.base, .registration = number};
  }
  return {};
}

Exports::Located Exports::locate(uint64_t address, size_t num_bytes) {
  const std::lock_guard lock(mutex_);
  if (!walk(address, num_bytes)) {
    tell(num_bytes, "the driver does not know it as device memory");
    return {.location = {}, .is_news = false};
  }
  if (const cuda::IpcLocation known = find(address); known.registration != 0)
    return {.location = known, .is_news = false};
  if (refused_.contains(span_.front().id)) return {.location = {}, .is_news = false};
  if (const Status added = add(); !added.ok()) {
    if (refused_.size() >= kMostRefused) refused_.clear();
    refused_.insert(span_.front().id);
    tell(num_bytes, added.message());
  }
  return {.location = find(address), .is_news = true};
}

bool Exports::note(uint64_t address, size_t num_bytes) {
  const std::lock_guard lock(mutex_);
  if (!walk(address, num_bytes) || holders_.contains(span_.front().id)) return false;
  if (noted_.size() >= kMostNoted) noted_.clear();
  return noted_.insert(span_.front().id).second;
}

void Exports::tell(size_t num_bytes, const std::string& why) {
  if (std::exchange(has_told_, true)) return;
  log::info("a tensor of " + std::to_string(num_bytes) + " bytes on GPU " + std::to_string(limits_.device) +
            " cannot be mapped by peers; it and similar tensors go through the arena: " + why);
}

Status Exports::add() {
  drop(overlapped());
  const bool foreign =
      std::ranges::any_of(span_, [&](const cuda::Allocation& extent) { return extent.device != limits_.device; });
  if (foreign) return {ErrorCode::kInvalidArgument, "it is memory of another device"};
  if (num_references_ + span_.size() > kMostExtents) {
    return {ErrorCode::kResourceExhausted, std::to_string(kMostExtents) + " extents are exported already, the limit"};
  }
  Result<Registration> opened = open_span();
  Result<uint32_t> number = opened.ok() ? next_number() : opened.status().clone();
  if (!number.ok()) {
    close_unused();
    return std::move(number.status());
  }
  Registration& registration = opened.value();
  for (const uint64_t id : registration.ids) holders_[id].push_back(number.value());
  num_references_ += registration.ids.size();
  registrations_.emplace(number.value(), std::move(registration));
  publish();
  return Status();
}

// Returns the next number whose slot is free.
Result<uint32_t> Exports::next_number() {
  for (uint32_t tries = 0; tries < cuda::kRegistrationSlots && next_number_ <= kLastRegistration; ++tries) {
    const uint32_t number = next_number_++;
    const bool taken = std::ranges::any_of(registrations_, [&](const auto& other) {
      return other.first % cuda::kRegistrationSlots == number % cuda::kRegistrationSlots;
    });
    if (!taken) return number;
  }
  return Status(ErrorCode::kResourceExhausted,
                std::to_string(registrations_.size()) + " registrations are exported already, and no slot is free");
}

// Opens descriptors if all extents can be shared that way, or a legacy handle for a single extent.
Result<Exports::Registration> Exports::open_span() {
  Registration registration{
      .base = span_.front().base, .num_bytes = end_of(span_.back()) - span_.front().base, .ids = {}, .legacy = {}};
  Status opened;
  for (const cuda::Allocation& extent : span_) {
    registration.ids.push_back(extent.id);
    if (opened.ok()) opened = open_extent(extent);
  }
  if (opened.ok()) return registration;
  if (span_.size() != 1 || !span_.front().has_legacy_handle) return opened;
  Result<cuda::LegacyHandle> handle = memory_.legacy_handle_of(span_.front());
  if (!handle.ok()) return std::move(handle.status());
  registration.legacy = handle.value();
  extents_.emplace(span_.front().id, Extent{.allocation = span_.front(), .descriptor = FileDescriptor()});
  return registration;
}

Status Exports::open_extent(const cuda::Allocation& allocation) {
  const auto known = extents_.find(allocation.id);
  if (known != extents_.end() && known->second.allocation.base != allocation.base) {
    return {ErrorCode::kInvalidArgument, "it is mapped at two addresses"};
  }
  if (known != extents_.end() && known->second.descriptor.valid()) return Status();
  if (!allocation.has_descriptors) {
    return {ErrorCode::kInvalidArgument,
            "its allocation cannot be shared: it was made neither by cudaMalloc nor with file descriptors"};
  }
  const auto num_open = static_cast<size_t>(
      std::ranges::count_if(extents_, [](const auto& extent) { return extent.second.descriptor.valid(); }));
  if (num_open >= limits_.num_descriptors) {
    return {ErrorCode::kResourceExhausted,
            std::to_string(num_open) + " file descriptors are open for exports already, the limit"};
  }
  Result<FileDescriptor> shared = memory_.share(allocation);
  if (!shared.ok()) return std::move(shared.status());
  extents_.insert_or_assign(allocation.id, Extent{.allocation = allocation, .descriptor = std::move(shared).value()});
  return Status();
}

// Returns known extents that overlap the tensor's allocations: they have been freed, and importers cannot map both.
std::set<uint64_t> Exports::overlapped() const {
  std::set<uint64_t> freed;
  for (const auto& [id, extent] : extents_) {
    const bool apart =
        end_of(extent.allocation) <= span_.front().base || end_of(span_.back()) <= extent.allocation.base;
    const bool known = std::ranges::any_of(
        span_, [&, wanted = id](const cuda::Allocation& allocation) { return allocation.id == wanted; });
    if (!apart && !known) freed.insert(id);
  }
  return freed;
}

// If the driver cannot be queried, perhaps because the process exits, no memory counts as freed.
size_t Exports::sweep() {
  std::vector<cuda::Allocation> known;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [id, extent] : extents_) known.push_back(extent.allocation);
  }
  std::set<uint64_t> freed;
  for (const cuda::Allocation& allocation : known) {
    const Result<cuda::Allocation> found = memory_.allocation_at(allocation.base);
    if (found.ok() && found.value().id != allocation.id) freed.insert(allocation.id);
  }
  const std::lock_guard lock(mutex_);
  return drop(freed);
}

size_t Exports::drop(const std::set<uint64_t>& freed) {
  if (freed.empty()) return 0;
  const size_t num_dropped = std::erase_if(registrations_, [&](const auto& registration) {
    const bool gone = std::ranges::any_of(registration.second.ids, [&](uint64_t id) { return freed.contains(id); });
    if (!gone) return false;
    for (const uint64_t id : registration.second.ids) std::erase(holders_[id], registration.first);
    num_references_ -= registration.second.ids.size();
    return true;
  });
  refused_.clear();  // space may be available again
  if (num_dropped > 0) publish();
  close_unused();  // after publish(): a descriptor that the export table names must stay its extent's
  return num_dropped;
}

void Exports::close_unused() {
  std::erase_if(holders_, [](const auto& holders) { return holders.second.empty(); });
  std::erase_if(extents_, [&](const auto& extent) { return !holders_.contains(extent.first); });
}

void Exports::publish() {
  std::vector<RegistrationRecord> records;
  for (const auto& [number, registration] : registrations_) {
    RegistrationRecord record{
        .number = number, .num_bytes = registration.num_bytes, .extents = {}, .legacy = registration.legacy};
    for (const uint64_t id : registration.ids) {
      const Extent& extent = extents_.at(id);
      if (!extent.descriptor.valid()) continue;
      record.extents.push_back({.descriptor = extent.descriptor.get(), .num_bytes = extent.allocation.num_bytes});
    }
    records.push_back(std::move(record));
  }
  export_table_.publish(encode(records));
}

size_t Exports::num_registrations() const {
  const std::lock_guard lock(mutex_);
  return registrations_.size();
}

}  // namespace axon::ipc
