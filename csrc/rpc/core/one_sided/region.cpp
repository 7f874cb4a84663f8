#include "rpc/core/one_sided/region.hpp"

#include <algorithm>
#include <utility>

#include "base/config.hpp"
#include "rpc/core/one_sided/denials.hpp"

namespace axon::rpc {

namespace {

// Releases memory without the token, since that may run users' code.
class OwnerRelease final : public engine::Submission {
 public:
  explicit OwnerRelease(Owner owner) noexcept : owner_(std::move(owner)) {}
  void begin() noexcept override {}
  void complete() noexcept override { delete this; }

 private:
  Owner owner_;
};

// Returns the entry of a reader whose connection lives, or of one that only the end of its process removes.
auto reader_of(std::vector<Region::Reader>& readers, const Region::Reader& wanted) {
  return std::ranges::find_if(readers, [&](const Region::Reader& reader) {
    return reader.peer == wanted.peer && reader.is_gone_with_process == wanted.is_gone_with_process &&
           reader.name == wanted.name;
  });
}

}  // namespace

// Returns the mappable memory that contains all extents, or null.
static std::shared_ptr<MappableMemory> mappable_around(const std::vector<Extent>& extents) {
  if (!config::has_transport("rings")) return nullptr;
  std::shared_ptr<MappableMemory> memory;
  for (const Extent& extent : extents) {
    std::shared_ptr<MappableMemory> of_extent = MappableMemory::around(extent.address, extent.num_bytes);
    if (!of_extent || (memory && memory != of_extent)) return nullptr;
    memory = std::move(of_extent);
  }
  return memory;
}

Region::Region(RegionSpecification specification, Owner owner)
    : name_(std::move(specification.name)),
      access_(specification.access),
      extents_(std::move(specification.extents)),
      device_(std::move(specification.device)),
      ends_(ends_of(extents_)),
      num_bytes_(ends_.empty() ? 0 : ends_.back()),
      generation_flag_(is_device() ? nullptr : mappable_around(extents_)),
      owner_(std::move(owner)) {}

std::byte* Region::find(uint64_t offset, uint64_t num_bytes) const noexcept {
  const auto end = std::ranges::upper_bound(ends_, offset);
  if (end == ends_.end() || num_bytes > *end - offset) return nullptr;
  const Extent& extent = extents_[static_cast<size_t>(end - ends_.begin())];
  return reinterpret_cast<std::byte*>(extent.address + extent.num_bytes - (*end - offset));
}

static std::vector<Extent> cut_to(const std::vector<Extent>& extents, uint64_t offset, uint64_t num_bytes) {
  std::vector<Extent> cut;
  for (const Extent& extent : extents) {
    if (num_bytes == 0) break;
    if (offset >= extent.num_bytes) {
      offset -= extent.num_bytes;
      continue;
    }
    const uint64_t length = std::min(num_bytes, extent.num_bytes - offset);
    cut.push_back({.address = extent.address + offset, .num_bytes = length});
    num_bytes -= length;
    offset = 0;
  }
  return cut;
}

std::vector<Extent> Region::extents_of(uint64_t offset, uint64_t num_bytes) const {
  return cut_to(extents_, offset, num_bytes);
}

std::vector<Extent> Region::mapped_extents_of(uint64_t offset, uint64_t num_bytes) const {
  std::vector<Extent> mapped = extents_;
  for (size_t i = 0; i < mapped.size(); ++i) mapped[i].address = device_.mapped_addresses[i];
  return cut_to(mapped, offset, num_bytes);
}

// Peers may still be reading the memory of regions that are left, so it is leaked.
Regions::~Regions() {
  for (auto& [number, region] : regions_) {
    region->generation_flag_.clear();
    if (!region->at_rest()) [[maybe_unused]]
      auto* const leaked = new Owner(std::move(region->owner_));
  }
}

std::shared_ptr<Region> Regions::expose(RegionSpecification specification, Owner owner) {
  auto region = std::make_shared<Region>(std::move(specification), std::move(owner));
  region->number_ = numbers_.add(*region);
  regions_.emplace(region->number_, region);
  return region;
}

Result<EncodedHandle> Regions::handle(const Region& region, const Range& range) const {
  if (range.offset > region.num_bytes() || range.num_bytes > region.num_bytes() - range.offset) {
    return Status(ErrorCode::kInvalidArgument,
                  "handle: offset " + std::to_string(range.offset) + " and nbytes " + std::to_string(range.num_bytes) +
                      " exceed the region '" + region.name() + "' of " + std::to_string(region.num_bytes()) + " bytes");
  }
  if (range.access == Access::kNone || !allows(region.access(), range.access)) {
    return Status(ErrorCode::kInvalidArgument, std::string("handle: access is '") + name_of(range.access) +
                                                   "'; allowed by the region '" + region.name() + "': '" +
                                                   name_of(region.access()) + "'");
  }
  return RegionHandle{.access = range.access,
                      .region = static_cast<uint32_t>(region.number()),
                      .generation = static_cast<uint32_t>(region.number() >> 32),
                      .offset = range.offset,
                      .num_bytes = range.num_bytes,
                      .owner = incarnation_,
                      .peer = range.peer}
      .encode(region.key());
}

Result<std::shared_ptr<Region>> Regions::find(const RegionHandle& handle, std::span<const std::byte> bytes,
                                              uint64_t peer) const {
  if (handle.owner != incarnation_) return access_denied("the handle is of another runtime, or of an earlier one");
  const auto found = regions_.find(uint64_t{handle.generation} << 32 | handle.region);
  if (found == regions_.end() || found->second->is_revoked())
    return access_denied("its region is closed, or never existed");
  const Region& region = *found->second;
  if (!handle.is_sealed_by(region.key(), bytes)) return access_denied("the handle is not genuine");
  if (handle.peer != 0 && handle.peer != peer) return access_denied("the handle is for another peer");
  return found->second;
}

void Regions::add_reader(Region& region, transport::PeerId peer, const std::string& name) {
  const Region::Reader reader{.name = name, .peer = peer};
  const auto found = reader_of(region.readers_, reader);
  found == region.readers_.end() ? region.readers_.push_back(reader) : void(++found->num_grants);
}

void Regions::remove_reader(Region& region, transport::PeerId peer, const std::string& name) noexcept {
  const auto found = reader_of(region.readers_, {.name = name, .peer = peer});
  if (found != region.readers_.end() && --found->num_grants == 0) region.readers_.erase(found);
  if (region.at_rest()) release_rested();
}

void Regions::leave_to_process(Region& region, transport::PeerId peer, const std::string& name) noexcept {
  const Region::Reader left{.name = name, .peer = peer, .is_gone_with_process = true};
  if (reader_of(region.readers_, left) == region.readers_.end()) region.readers_.push_back(left);
  remove_reader(region, peer, name);
}

void Regions::on_peer_lost(transport::PeerId peer) noexcept {
  const bool may_live = engine_.peers().is_neighbour(peer) && !has_ended(peer);
  forget_readers(peer, may_live ? Of::kNotMapped : Of::kAll);
}

// A process that cannot be seen now may live: it is looked for again.
bool Regions::has_ended(transport::PeerId peer) noexcept {
  Result<engine::PolledProcess> found = engine::PolledProcess::find(engine_.peers().pid_of(peer), peer);
  if (!found.ok() && found.status().code() == ErrorCode::kPeerLost) return true;
  if (found.ok()) {
    lost_.push_back(std::move(found).value());
  } else {
    unseen_.push_back(peer);
  }
  return false;
}

void Regions::look_after_lost() noexcept {
  for (const transport::PeerId peer : std::exchange(unseen_, {})) {
    if (has_ended(peer)) forget_readers(peer, Of::kAll);
  }
  std::erase_if(lost_, [&](const engine::PolledProcess& process) {
    if (!process.has_ended()) return false;
    forget_readers(process.peer(), Of::kAll);
    return true;
  });
}

void Regions::forget_readers(transport::PeerId peer, Of regions) noexcept {
  for (auto& [number, region] : regions_) {
    if (regions == Of::kNotMapped && region->is_mappable()) continue;
    std::erase_if(region->readers_, [&](const Region::Reader& reader) { return reader.peer == peer; });
  }
  release_rested();
}

// The flag is cleared before anything else may happen to the memory.
void Regions::revoke(Region& region) noexcept {
  region.is_revoked_ = true;
  region.generation_flag_.clear();
  (void)region.local_uses_.close();  // at_rest() asks whether uses are left
}

void Regions::revoke_all() noexcept {
  for (auto& [number, region] : regions_) revoke(*region);
}

void Regions::release_rested() noexcept {
  std::erase_if(regions_, [&](auto& entry) {
    Region& region = *entry.second;
    if (!region.at_rest()) return false;
    numbers_.remove(region.number_);
    region.generation_flag_.forget_memory();  // users may keep the region for long
    if (region.owner_.get() != nullptr) engine_.post(*new OwnerRelease(std::move(region.owner_)));
    return true;
  });
}

std::vector<std::string> Regions::readers(const Region& region) {
  std::vector<std::string> names;
  for (const Region::Reader& reader : region.readers_) {
    if (std::ranges::find(names, reader.name) == names.end()) names.push_back(reader.name);
  }
  return names;
}

}  // namespace axon::rpc
