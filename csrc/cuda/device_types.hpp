// What host and kernels share: plain structs, no CUDA header, so that code built without CUDA can include it.
//
// A team meets in *packets*: 16 bytes that carry 8 bytes of data and the epoch twice, once in each half, because 8
// bytes is what the hardware stores as one. A receiver polls the packet itself, so data needs no flag and no fence.
//
// Each rank owns a packet area: two regions of `region_packets`, used in turn by the parity of the epoch. A rank enters
// epoch e + 1 only after every peer has entered e, so nobody still reads what e + 1 overwrites.
// Packets 0 … num_ranks−1 of a region hold the peers' descriptors; the rest is laid out by each operation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/data_type.hpp"

namespace axon {

inline constexpr int kMaxTeamRanks = 16;
inline constexpr int kMaxBlocks = 64;  // blocks of a launch; each advances its own copy of the epoch

struct alignas(16) Packet {
  uint32_t low;
  uint32_t low_epoch;
  uint32_t high;
  uint32_t high_epoch;
};

enum class DeviceOperation : uint32_t { kAllReduceOneShot = 1, kAllReduceTwoShot = 2, kAllGather = 3 };

// What all ranks of one epoch must agree on; travels as one packet, so that a mismatch is seen at no extra exchange.
struct PacketDescriptor {
  DeviceOperation operation : 8;
  uint32_t dtype : 8;
  uint32_t reduction : 8;
  uint32_t root : 8;
  uint32_t num_elements;
};

enum class FaultCode : uint32_t { kNone = 0, kTimeout = 1, kAborted = 2, kMismatch = 3 };

// The first fault of a team; `code` is written last, with release order.
struct FaultReport {
  FaultCode code;
  int32_t peer;  // the rank that was missing or disagreed
  uint32_t epoch;
  PacketDescriptor theirs;  // for a mismatch
};

// Pinned host memory, one a team: the host's word to the kernels, and theirs to the host.
struct TeamMailbox {
  uint32_t abort;  // host → device: nonzero ends every wait
  FaultReport report;
};

// Device memory of the rank's own GPU, one a team. After a launch all epochs are equal again.
struct TeamState {
  uint32_t fault;  // a FaultCode; first writer wins; ends every wait of this rank, now and in later launches
  uint32_t epochs[kMaxBlocks];
};

// A rank's view of its team, passed to every kernel. Nothing in it changes while the team lives, so graphs may bake it.
struct DeviceTeam {
  int32_t rank;
  int32_t num_ranks;
  uint32_t region_packets;
  uint64_t timeout_ns;  // longest wait of one kernel for its peers
  TeamState* state;
  TeamMailbox* mailbox;            // as this GPU sees it
  Packet* packets[kMaxTeamRanks];  // every rank's packet area, as mapped on this GPU; the own one included
};

constexpr size_t packet_area_bytes(uint32_t region_packets) {
  return size_t{2} * region_packets * sizeof(Packet);
}

static_assert(sizeof(PacketDescriptor) == 8 && std::is_trivially_copyable_v<PacketDescriptor>);
static_assert(std::is_trivially_copyable_v<DeviceTeam> && std::is_trivially_copyable_v<TeamMailbox>);

}  // namespace axon
