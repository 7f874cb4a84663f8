#include "rpc/core/one_sided/given_grants.hpp"

#include <utility>

#include "rpc/core/connection.hpp"
#include "rpc/core/one_sided/denials.hpp"

namespace axon::rpc {

static Status connection_closes() {
  return access_denied("the connection is being closed");
}

Result<std::shared_ptr<Region>> GivenGrants::region_for(const RegionHandle& handle,
                                                        std::span<const std::byte> bytes) const {
  if (is_closed_) return connection_closes();
  if (grants_.size() >= kMost) {
    return Status(ErrorCode::kResourceExhausted,
                  std::to_string(kMost) + " handles are open on this connection, the limit");
  }
  Result<std::shared_ptr<Region>> found = regions_.find(handle, bytes, connection_.identity().incarnation);
  if (!found.ok()) return found;
  const Region& region = *found.value();
  // Its seal is right, so this runtime has made it and it is within the region; checked nevertheless.
  const bool fits = handle.offset <= region.num_bytes() && handle.num_bytes <= region.num_bytes() - handle.offset;
  return fits ? std::move(found) : access_denied("the handle exceeds its region");
}

Result<GivenGrants::Given> GivenGrants::open(std::span<const std::byte> bytes) {
  const Result<RegionHandle> handle = RegionHandle::decode(bytes);
  if (!handle.ok()) return access_denied(handle.status().message());
  Result<std::shared_ptr<Region>> region = region_for(handle.value(), bytes);
  if (!region.ok()) return std::move(region.status());
  while (++num_given_ == 0 || grants_.contains(num_given_)) {
  }
  const bool is_direct = connection_.is_neighbour() ? !region.value()->is_device() || region.value()->is_mappable()
                                                    : region.value()->is_device() && is_of_this_process();
  Grant grant{.region = std::move(region).value(),
              .offset = handle.value().offset,
              .num_bytes = handle.value().num_bytes,
              .access = handle.value().access,
              .is_direct = is_direct,
              .local = nullptr};
  Given given{.grant = num_given_, .info = describe(grant)};
  if (grant.is_direct) {
    regions_.add_reader(*grant.region, peer_, connection_.identity().name);
    ++num_direct_;
  }
  grants_.emplace(given.grant, std::move(grant));
  return given;
}

bool GivenGrants::is_of_this_process() const noexcept {
  return connection_.identity().address.process == connection_.engine().peers().own_address().process;
}

// Only neighbours learn addresses, of which other processes have no use. For another runtime of this process, the
// message leads to the addresses.
GrantInfo GivenGrants::describe(Grant& grant) const {
  const Region& region = *grant.region;
  GrantInfo info{.prefix = {.num_bytes = grant.num_bytes,
                            .flag_value = region.generation_flag().value(),
                            .flag_address = region.generation_flag().address(),
                            .access = static_cast<uint32_t>(grant.access)},
                 .extents = region.extents_of(grant.offset, grant.num_bytes),
                 .name = region.name()};
  info.prefix.num_extents = static_cast<uint32_t>(info.extents.size());
  info.prefix.name_num_bytes = static_cast<uint32_t>(info.name.size());
  if (region.is_device()) {
    info.prefix.memory = GrantedMemory::kDevice;
    info.device = region.device_location();
  }
  const bool is_own = is_of_this_process();
  if (grant.is_direct && !is_own) {
    if (region.is_device()) {
      info.extents = region.mapped_extents_of(grant.offset, grant.num_bytes);
    } else if (const auto location = region.generation_flag().location()) {
      info.prefix.memory = GrantedMemory::kMappable;
      info.mappable = *location;
    }
    return info;
  }
  if (is_own) grant.local = std::make_unique<LocalGrant>(info);
  info.prefix.flag_value = is_own ? grant.local->proof() : 0;
  info.prefix.flag_address = 0;
  for (Extent& extent : info.extents) extent.address = 0;
  info.device = {};
  return info;
}

void GivenGrants::release(uint32_t grant) noexcept {
  const auto found = grants_.find(grant);
  if (found == grants_.end()) return;
  const std::shared_ptr<Region> region = found->second.region;
  const bool is_direct = found->second.is_direct;
  grants_.erase(found);
  if (!is_direct) return;
  --num_direct_;
  regions_.remove_reader(*region, peer_, connection_.identity().name);
}

Result<std::byte*> GivenGrants::find(const ListEntry& block, uint64_t num_bytes, Access wanted) const {
  const auto found = grants_.find(block.grant);
  if (found == grants_.end()) return access_denied("the grant is unknown, or has been released");
  const Grant& grant = found->second;
  const Region& region = *grant.region;
  if (region.is_revoked()) return region_is_closed(region.name());
  if (is_closed_) return connection_closes();
  if (!allows(grant.access, wanted)) return handle_allows_only(region.name(), grant.access);
  const auto beyond = [&] {
    return access_denied("offset " + std::to_string(block.offset) + " and " + std::to_string(num_bytes) +
                         " bytes exceed the " + std::to_string(grant.num_bytes) + " granted bytes of region '" +
                         region.name() + "', or one of its parts");
  };
  if (block.offset > grant.num_bytes || num_bytes > grant.num_bytes - block.offset) return beyond();
  std::byte* const place = region.find(grant.offset + block.offset, num_bytes);
  return place != nullptr ? Result<std::byte*>(place) : beyond();
}

std::vector<uint32_t> GivenGrants::direct_grants_of(const Region* region) const {
  std::vector<uint32_t> found;
  for (const auto& [number, grant] : grants_) {
    if (grant.is_direct && (region == nullptr || grant.region.get() == region)) found.push_back(number);
  }
  return found;
}

void GivenGrants::fail(bool is_gone) noexcept {
  const std::string& name = connection_.identity().name;
  const bool is_lost = connection_.engine().messenger().is_lost(peer_);
  EndedGrants::Grants unconfirmed;
  for (const auto& [number, grant] : grants_) {
    if (!grant.is_direct) continue;
    if (!is_gone && is_closed_) {
      unconfirmed.emplace(number, grant.region);
      continue;
    }
    // A lost peer may live, and go on with memory that it has mapped: Regions::on_peer_lost() finds out.
    const bool has_ended = is_gone && !(is_lost && grant.region->is_mappable());
    has_ended ? regions_.remove_reader(*grant.region, peer_, name)
              : regions_.leave_to_process(*grant.region, peer_, name);
  }
  grants_.clear();
  num_direct_ = 0;
  ended_grants_.add(
      {.key = connection_.identity().own_key, .peer = peer_, .name = name, .grants = std::move(unconfirmed)});
}

}  // namespace axon::rpc
