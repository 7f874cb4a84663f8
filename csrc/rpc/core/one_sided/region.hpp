// Memory that a runtime exposes to its peers, and the memory's lease: which processes may still touch it.
//
//   Result<std::shared_ptr<Region>> region = regions.expose({.extents = {{data, n}}, .access = Access::kRead}, owner);
//   EncodedHandle handle = regions.handle(*region.value(), {.num_bytes = n, .access = Access::kRead}).value();
//   regions.revoke(*region.value());  // new requests are denied from now on
//   region.value()->at_rest();        // no process can touch the memory; its owner has been released, or soon is
//
// A region consists of one or more extents, whose bytes are numbered one after the other. The memory is kept until the
// region is revoked and at rest: no transfer of this process moves its bytes, and no neighbour can be reading them
// directly. A neighbour is asked to confirm that; until then, or until its process is known to have ended, it is a
// reader.
//
// Owned by RuntimeCore. Progress owner only, except where noted.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/numbered.hpp"
#include "engine/engine.hpp"
#include "engine/polled_process.hpp"
#include "memory/owner.hpp"
#include "rpc/core/one_sided/device_memory.hpp"
#include "rpc/core/one_sided/generation_flag.hpp"
#include "rpc/core/one_sided/region_handle.hpp"
#include "rpc/core/one_sided/use_gate.hpp"

namespace axon::rpc {

// Consecutive memory of a region.
struct Extent {
  uint64_t address = 0;
  uint64_t num_bytes = 0;
};

inline constexpr size_t kMostExtents = 2048;

// Returns where each extent, or part of local memory, ends if their bytes are numbered one after the other.
template <typename Part>
std::vector<uint64_t> ends_of(const std::vector<Part>& parts) {
  std::vector<uint64_t> ends;
  ends.reserve(parts.size());
  for (const Part& part : parts) ends.push_back((ends.empty() ? 0 : ends.back()) + part.num_bytes);
  return ends;
}

struct RegionSpecification {
  std::string name;
  Access access = Access::kRead;
  std::vector<Extent> extents;
  DeviceRegion device{};
};

class Region {
 public:
  // A neighbour that may be reading the memory directly.
  struct Reader {
    std::string name;
    transport::PeerId peer = 0;
    size_t num_grants = 1;              // by which it reads
    bool is_gone_with_process = false;  // its connection has ended, so that only the end of its process ends the lease
  };

  Region(RegionSpecification specification, Owner owner);

  // Constant; any thread.
  const std::string& name() const noexcept { return name_; }
  Access access() const noexcept { return access_; }
  uint64_t num_bytes() const noexcept { return num_bytes_; }
  const std::vector<Extent>& extents() const noexcept { return extents_; }
  // Device memory is never used by its addresses here; it is staged, or peers map it.
  bool is_device() const noexcept { return device_.device != nullptr; }
  Device& device() const noexcept { return *device_.device; }
  const DeviceLocation& device_location() const noexcept { return device_.location; }
  const Nonce& key() const noexcept { return key_; }
  const GenerationFlag& generation_flag() const noexcept { return generation_flag_; }
  // Returns whether peers map the memory, of a device or of the host, and may write it without this process.
  bool is_mappable() const noexcept {
    return device_.location.is_mappable() || generation_flag_.location().has_value();
  }
  uint64_t number() const noexcept { return number_; }

  bool is_revoked() const noexcept { return is_revoked_; }
  bool at_rest() const noexcept {
    return is_revoked_ && num_in_flight_ == 0 && readers_.empty() && local_uses_.is_empty();
  }
  // Returns where the bytes of a range are, or null unless they lie within one extent.
  std::byte* find(uint64_t offset, uint64_t num_bytes) const noexcept;
  // Returns the extents of a range, cut to it. The range lies within the region.
  std::vector<Extent> extents_of(uint64_t offset, uint64_t num_bytes) const;
  // The same, at the addresses by which peers find mapped device memory.
  std::vector<Extent> mapped_extents_of(uint64_t offset, uint64_t num_bytes) const;

  // Transfers of this process that use the memory as local memory; see region_use.hpp. Any thread. Closed by revoke().
  UseGate& local_uses() noexcept { return local_uses_; }
  void begin_in_flight() noexcept { ++num_in_flight_; }
  void end_in_flight() noexcept { --num_in_flight_; }

 private:
  friend class Regions;

  const std::string name_;
  const Access access_;
  const std::vector<Extent> extents_;
  const DeviceRegion device_;
  const std::vector<uint64_t> ends_;  // of the extents, in the region
  const uint64_t num_bytes_;
  const Nonce key_ = random_nonce();
  GenerationFlag generation_flag_;
  Owner owner_;
  uint64_t number_ = 0;
  bool is_revoked_ = false;
  size_t num_in_flight_ = 0;  // transfers by which this process sends or receives the memory
  std::vector<Reader> readers_;
  UseGate local_uses_;
};

class Regions {
 public:
  explicit Regions(engine::Engine& engine) noexcept : engine_(engine) {}
  ~Regions();
  Regions(const Regions&) = delete;
  Regions& operator=(const Regions&) = delete;

  // Set once, before the first handle.
  void set_incarnation(uint64_t incarnation) noexcept { incarnation_ = incarnation; }
  uint64_t incarnation() const noexcept { return incarnation_; }

  std::shared_ptr<Region> expose(RegionSpecification specification, Owner owner);

  struct Range {
    uint64_t offset = 0;
    uint64_t num_bytes = 0;
    Access access = Access::kRead;
    uint64_t peer = 0;  // an incarnation; 0: any
  };
  // Any thread: uses constants of the region only.
  Result<EncodedHandle> handle(const Region& region, const Range& range) const;
  // Returns the region that a handle names, if this process has made the handle for a runtime of this incarnation.
  Result<std::shared_ptr<Region>> find(const RegionHandle& handle, std::span<const std::byte> bytes,
                                       uint64_t peer) const;

  // Adds a grant by which a neighbour reads the region.
  void add_reader(Region& region, transport::PeerId peer, const std::string& name);
  // The reader has confirmed that it does not read the region by one of its grants any more.
  void remove_reader(Region& region, transport::PeerId peer, const std::string& name) noexcept;
  // The reader cannot confirm that any more, because the connection has ended while its process lives.
  void leave_to_process(Region& region, transport::PeerId peer, const std::string& name) noexcept;
  // Nothing arrives from the peer any more. If its process lives, it may still use memory that it has mapped: that is
  // kept until the process ends, which look_after_lost() finds.
  void on_peer_lost(transport::PeerId peer) noexcept;
  void look_after_lost() noexcept;

  // Denies new requests. The caller tells the readers.
  void revoke(Region& region) noexcept;
  void revoke_all() noexcept;
  // Releases the memory of regions at rest. Call it after a region may have reached rest.
  void release_rested() noexcept;
  bool at_rest() const noexcept { return regions_.empty(); }
  // Returns the names of the neighbours that may be reading the region directly.
  static std::vector<std::string> readers(const Region& region);

 private:
  enum class Of : uint8_t { kNotMapped, kAll };
  void forget_readers(transport::PeerId peer, Of regions) noexcept;
  // Returns false if its process lives, or may live, and looks after it from then on.
  bool has_ended(transport::PeerId peer) noexcept;

  engine::Engine& engine_;
  uint64_t incarnation_ = 0;
  Numbered<Region> numbers_;
  std::unordered_map<uint64_t, std::shared_ptr<Region>> regions_;  // shared with grants and users' handles
  std::vector<engine::PolledProcess> lost_;                        // peers that live
  std::vector<transport::PeerId> unseen_;                          // lost peers whose processes could not be seen
};

}  // namespace axon::rpc
