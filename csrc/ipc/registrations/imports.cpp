#include "ipc/registrations/imports.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "base/log.hpp"

namespace axon::ipc {

// Limit of readings per look: an export table that changes faster is looked at again next time.
static constexpr int kMostReadings = 4;

Imports::Imports(std::unique_ptr<RegistrationPeer> peer, ExportTableLocation export_table,
                 Clock::duration linger) noexcept
    : peer_(std::move(peer)), export_table_(export_table), linger_(linger) {}

bool Imports::look() {
  if (is_over_) return true;
  if (peer_->has_ended()) return end();
  let_go();
  for (int reading = 0; reading < kMostReadings; ++reading) {
    Result<bool> done = catch_up();
    if (peer_->has_ended()) return end();  // the bytes may be those of a new process with the same id
    if (!done.ok()) note("a peer's export table cannot be read", done.status());
    if (!done.ok() || done.value()) return true;
  }
  return false;
}

// Returns nullopt while the export table is being written.
Result<std::optional<Imports::Publication>> Imports::read() const {
  Result<std::optional<ExportTableContent>> content = read_export_table(*peer_, export_table_);
  if (!content.ok()) return std::move(content.status());
  if (!content.value()) return std::optional<Publication>();
  Result<std::vector<RegistrationRecord>> records = decode_records(content.value()->bytes);
  if (!records.ok()) return std::move(records.status());
  return std::optional(Publication{content.value()->version, std::move(records).value()});
}

// Returns whether the mappings matched the publication already.
Result<bool> Imports::catch_up() {
  Result<uint64_t> version = version_of(*peer_, export_table_);
  if (!version.ok()) return std::move(version.status());
  if (version.value() == seen_) return true;
  Result<std::optional<Publication>> published = read();
  if (!published.ok()) return std::move(published.status());
  if (!published.value()) return false;
  const auto& [read_version, records] = *published.value();
  forget_all_but(records);
  for (const RegistrationRecord& record : records) {
    if (mapped_.contains(record.number) || failed_.contains(record.number)) continue;
    AXON_TRY(import(record, read_version));
  }
  seen_ = read_version;
  return false;
}

void Imports::forget_all_but(const std::vector<RegistrationRecord>& records) {
  std::set<uint32_t> published;
  for (const RegistrationRecord& record : records) published.insert(record.number);
  std::erase_if(failed_, [&](uint32_t number) { return !published.contains(number); });
  for (auto registration = mapped_.begin(); registration != mapped_.end();) {
    const auto next = std::next(registration);
    if (!published.contains(registration->first)) drop(registration);
    registration = next;
  }
}

// Kernels must not find the registration any more before it is unmapped.
void Imports::drop(std::map<uint32_t, Mapping>::iterator dropped) {
  const Status removed = peer_->remove(dropped->first);
  Mapping mapping = std::move(dropped->second);
  mapped_.erase(dropped);
  if (!removed.ok()) note("a peer's registration cannot be removed", removed);
  if (!removed.ok() || is_over_ || mapping->waits_for_device()) {
    retired_.push_back(std::move(mapping));
  } else {
    leaving_.push_back({std::move(mapping), Clock::now()});
  }
}

void Imports::let_go() {
  const Clock::time_point latest = Clock::now() - linger_;
  std::erase_if(leaving_, [&](const Leaving& registration) { return registration.since <= latest; });
}

// A descriptor or handle is valid only as long as the export table names it. The table is therefore read again before
// kernels see the mapping.
Status Imports::import(const RegistrationRecord& record, uint64_t version) {
  Result<Mapping> mapping = peer_->map(record);
  Result<bool> valid = is_published(record, version);
  if (!valid.ok() || !valid.value()) {
    if (mapping.ok() && mapping.value()->waits_for_device()) retired_.push_back(std::move(mapping).value());
    return valid.ok() ? Status() : std::move(valid.status());
  }
  const Status entered = mapping.ok() ? peer_->enter(record.number, {mapping.value()->data(), record.num_bytes})
                                      : mapping.status().clone();
  if (entered.ok()) {
    mapped_.emplace(record.number, std::move(mapping).value());
    return Status();
  }
  failed_.insert(record.number);
  note("a peer's registration cannot be mapped", entered);
  if (mapping.ok()) retired_.push_back(std::move(mapping).value());  // kernels may find it nevertheless
  return Status();
}

// Returns whether the record is still published, although the export table may have changed since that version.
Result<bool> Imports::is_published(const RegistrationRecord& record, uint64_t version) const {
  Result<uint64_t> current = version_of(*peer_, export_table_);
  if (!current.ok()) return std::move(current.status());
  if (current.value() == version) return true;
  Result<std::optional<Publication>> published = read();
  if (!published.ok()) return std::move(published.status());
  return published.value() && std::ranges::find(published.value()->records, record) != published.value()->records.end();
}

void Imports::note(const std::string& what, const Status& status) {
  if (obstacle_.empty()) log::info(what + ", so its tensors go through the arena: " + status.message());
  obstacle_ = what + ": " + status.message();
}

void Imports::retry() noexcept {
  if (failed_.empty()) return;
  failed_.clear();
  seen_.reset();
}

bool Imports::end() {
  is_over_ = true;
  obstacle_ = "the peer's process has ended";
  while (!mapped_.empty()) drop(mapped_.begin());
  for (Leaving& registration : leaving_) retired_.push_back(std::move(registration.mapping));
  leaving_.clear();
  return true;
}

}  // namespace axon::ipc
