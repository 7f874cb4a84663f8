// The grants that this process has given to a peer: which memory each of them allows it to use, and how.
//
//   Result<Given> given = grants.open(handle);           // the peer shows a handle; the answer is given.value().info
//   Result<std::byte*> place = grants.find(block, num_bytes, Access::kWrite);
//
// A grant is valid on its connection only. Every request is checked against the grant that it names, and against the
// region as it is by then.
//
// Owned by Target; progress owner only.
#pragma once

#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "rpc/core/one_sided/exposed.hpp"
#include "rpc/core/one_sided/local_grant.hpp"
#include "rpc/core/one_sided/messages.hpp"

namespace axon::rpc {

class Connection;

class GivenGrants {
 public:
  static constexpr size_t kMost = 65'536;

  // `exposed` outlives this.
  GivenGrants(const Connection& connection, transport::PeerId peer, Exposed& exposed) noexcept
      : connection_(connection), peer_(peer), regions_(exposed.regions), ended_grants_(exposed.ended_grants) {}
  GivenGrants(const GivenGrants&) = delete;
  GivenGrants& operator=(const GivenGrants&) = delete;

  struct Given {
    uint32_t grant = 0;
    GrantInfo info;  // for the peer
  };
  // Gives a grant to the holder of a handle, or says why not.
  Result<Given> open(std::span<const std::byte> handle);
  // The peer no longer uses a grant.
  void release(uint32_t grant) noexcept;

  // Returns where the bytes of a block are, if the peer may access them. They must lie within one extent. If the region
  // is memory of a device, only the device may use the address.
  Result<std::byte*> find(const ListEntry& block, uint64_t num_bytes, Access wanted) const;
  // The region of a grant that find() has accepted.
  const std::shared_ptr<Region>& region_of(uint32_t grant) const noexcept { return grants_.find(grant)->second.region; }

  // Returns the grants by which the peer may read a region directly, or any region.
  std::vector<uint32_t> direct_grants_of(const Region* region) const;
  bool has_direct() const noexcept { return num_direct_ != 0; }

  // Denies all requests from now on.
  void close() noexcept { is_closed_ = true; }
  bool is_closed() const noexcept { return is_closed_; }
  // The connection has ended; `is_gone`: the peer uses nothing any more. Otherwise it may: the memory is held until the
  // peer confirms that it does not, if it has been asked to (is_closed()), or else until its process ends.
  void fail(bool is_gone) noexcept;

 private:
  struct Grant {
    std::shared_ptr<Region> region;  // shared with the runtime
    uint64_t offset = 0;
    uint64_t num_bytes = 0;
    Access access = Access::kNone;
    bool is_direct = false;             // the peer may use the memory without this process
    std::unique_ptr<LocalGrant> local;  // null unless the peer is a runtime of this process
  };

  Result<std::shared_ptr<Region>> region_for(const RegionHandle& handle, std::span<const std::byte> bytes) const;
  GrantInfo describe(Grant& grant) const;
  bool is_of_this_process() const noexcept;

  const Connection& connection_;
  const transport::PeerId peer_;
  Regions& regions_;
  EndedGrants& ended_grants_;
  std::unordered_map<uint32_t, Grant> grants_;
  uint32_t num_given_ = 0;
  size_t num_direct_ = 0;
  bool is_closed_ = false;
};

}  // namespace axon::rpc
