// Types shared by host and kernels: plain structs without CUDA headers, so that code built without CUDA can include
// them.
//
// Each rank of a team owns a *slice* of device memory that all ranks map. Its layout is a pure function of the number
// of ranks and the size, the same on all ranks. So a peer's ring or packet is at `slices[peer]` + offset. A slice is
// zero-initialised before its first use. There are two protocols, both with readiness flags in the data and without
// fences:
//
// The *LL protocol* is for small messages. An LL packet has 16 bytes: 8 bytes of data and the epoch twice, once in each
// half, because the hardware stores 8 bytes atomically. There are two regions of `region_packets`, selected by the
// parity of the epoch. A rank enters epoch e + 1 only after every peer has entered e, so no rank still reads what e + 1
// overwrites. Packets 0 … num_ranks−1 of a region hold the peers' descriptors, also for collectives over LL128. Each
// operation defines the layout of the rest.
//
// The *LL128 protocol* is for other messages. An LL128 line has 128 bytes: 120 of data and the sequence number, stored
// atomically by 8 threads of a warp. A warp stores 8 lines at a time, a *warp chunk*. A directed link has *LL128
// channels*. A channel is a ring of chunks in the receiver's slice and a credit flag in the sender's. The flag holds
// the number of chunks that the receiver has taken since the team was formed.
//
// *Zero-copy* kernels, for large collectives, read and write the peers' tensors directly. A tensor lies in a
// *registration*, memory that its process allocated as one and that the peers map in the background. The ranks send
// each other their tensors' locations in packets and vote whether all of them can access all that they need. If not,
// the kernel does nothing, and the LL128 kernel launched after it does the work. The two ranks of a large
// point-to-point message agree on it alone, in the kernel that moves it by either way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/data_type.hpp"

namespace axon::cuda {

inline constexpr int kMaxTeamRanks = 16;
inline constexpr int kMaxBlocks = 64;  // of an LL or zero-copy launch; each reads its own copy of the epoch
inline constexpr int kNumTrafficClasses = 2;
inline constexpr int kNoRoot = 31;
inline constexpr size_t kWarpChunkBytes = 1024;        // in a ring
inline constexpr size_t kWarpChunkPayloadBytes = 960;  // of a message

struct alignas(16) LlPacket {
  uint32_t low;
  uint32_t low_epoch;
  uint32_t high;
  uint32_t high_epoch;
};

enum class DeviceOperation : uint8_t {
  kNone = 0,
  kAllReduceOneShot = 1,
  kAllReduceTwoShot = 2,
  kAllReduce = 3,  // over LL128 or zero-copy; the operations below use any protocol
  kAllGather = 4,
  kReduceScatter = 5,
  kReduce = 6,
  kBroadcast = 7,
  kGather = 8,
  kScatter = 9,
  kAllToAll = 10,
  kBarrier = 11,
  kPointToPoint = 12,
  kAllGatherMatmul = 13,  // here and below: a barrier before copy engines move data
  kMatmulReduceScatter = 14,
  kPreparedTransfer = 15,
};

// What the two ends of a link must agree on. It is sent in one packet, or at the head of a point-to-point message, so a
// mismatch is detected without an extra exchange.
struct DeviceDescriptor {
  uint64_t operation : 6;  // DeviceOperation
  uint64_t dtype : 4;
  uint64_t reduction : 4;
  uint64_t root : 5;        // or kNoRoot
  uint64_t num_bytes : 45;  // of the message on this link; of the input where elements are reduced;
                            // before copy engines move data, what all ranks announce (gpu_comm/barrier_descriptor.hpp)
};

// The location of a tensor, as its process sends it to the other ranks: a registration's number and the offset in it.
struct IpcLocation {
  uint64_t offset : 40;
  uint64_t registration : 24;  // from 1, of the process that allocated it; 0: peers cannot map it
};

// The mapping of a peer's registration. There are kRegistrationSlots entries per peer; a registration uses the one with
// its number modulo kRegistrationSlots. Entries are written while kernels run, `base` first. An entry is removed only
// when no operation uses the registration any more, or when its process has ended.
struct RegistrationEntry {
  uint64_t registration;  // 0: none
  std::byte* base;
};

inline constexpr uint32_t kRegistrationSlots = 1024;

enum class FaultCode : uint32_t { kNone = 0, kTimeout = 1, kAborted = 2, kMismatch = 3, kGone = 4, kMisuse = 5 };

// The first fault of a team. `code` is written last, with release order.
struct FaultReport {
  FaultCode code;
  int32_t peer;             // the rank that is missing, disagrees or has ended
  uint64_t sequence;        // collectives: the epoch; point to point: chunks that the channel had moved; prepared
                            // transfers: the partition
  DeviceDescriptor ours;    // what this rank was doing
  DeviceDescriptor theirs;  // for a mismatch
  uint32_t our_tag;         // of a point-to-point message
  uint32_t their_tag;       // of one, too; for a misuse, which it is (kernels/device.cuh)
};

// Pinned host memory, one per team, for flags from the host to the kernels and fault reports from the kernels to the
// host.
struct TeamControl {
  uint32_t abort;  // host → device: nonzero ends every wait
  uint32_t gone;   // host → device: bit r: rank r's process has ended and writes nothing more
  FaultReport report;
};

// At the beginning of the rank's own slice. Between launches all epochs are equal.
struct TeamState {
  uint32_t fault;  // a FaultCode; the first writer wins; ends all waits of this rank, now and in later launches
  uint32_t must_fall_back;          // set by a zero-copy kernel: whether the LL128 kernel after it has work
  uint32_t num_zero_copy;           // statistic: operations that zero-copy kernels have done
  uint32_t num_zero_copy_messages;  // statistic of this rank: point to point, sent or received
  uint32_t num_turns_taken;         // of the kernel that deals turns to its blocks; 0 between kernels
  uint32_t epochs[kMaxBlocks];      // the last finished one
};

// Collectives and point-to-point messages have separate channels, so their kernels may run at the same time.
enum class TrafficClass : uint8_t { kCollective = 0, kPointToPoint = 1 };

// The channels of one traffic class in a rank's slice: those of all links from and to its num_ranks − 1 peers. Offsets
// are in bytes.
struct TrafficLayout {
  uint32_t num_channels;  // per directed link
  uint32_t ring_chunks;   // per channel; a power of two
  uint64_t rings;         // [peer][channel]: chunks from that peer
  uint64_t credits;       // [peer][channel] ChannelCredit: written by the peer
  uint64_t counters;      // [peer][channel] ChannelCounters: used only by the slice's rank
};

// Number of our chunks that a peer has taken since the team was formed. It has its own sector, since another GPU writes
// it.
struct alignas(32) ChannelCredit {
  uint64_t chunks_taken;
};

struct ChannelCounters {
  uint64_t chunks_sent;
  uint64_t chunks_received;
};

// Counts the large point-to-point messages of a directed link, from 1.
struct MessageCount {
  uint32_t number;     // of the last finished message
  uint32_t num_left;   // warps that have finished their work on the next message
  uint32_t num_taken;  // chunks of the next message that the sender's warps have taken; more than it has at the end
};

// What a rank and one of its peers send each other about these messages, in the rank's slice. The packets carry the
// message's number as epoch. What the peer writes is in other sectors than what only this rank writes.
struct alignas(128) Rendezvous {
  // For a message to the peer:
  LlPacket offer[3];            // by the peer: its tensor's location, the descriptor and the tag that it expects
  alignas(32) uint64_t claim;   // by the side that first decides if the offer is valid: number and decision
  alignas(32) LlPacket target;  // by this rank's leading warp for its other warps: where to write
  // For a message from the peer:
  alignas(32) LlPacket outcome;  // by the peer, once it has written everything or has fallen back
  alignas(32) MessageCount sent;
  MessageCount received;
};

struct TeamLayout {
  uint64_t slice_bytes;
  uint64_t rendezvous;  // [rank] Rendezvous; the own one is unused
  uint64_t packets;     // two regions
  uint32_t region_packets;
  TrafficLayout traffic[kNumTrafficClasses];
};

// A rank's view of its team, passed to every kernel. It never changes during the team's life, so graphs may capture it.
struct DeviceTeam {
  int32_t rank;
  int32_t num_ranks;
  TeamLayout layout;
  uint64_t timeout_ns;               // longest wait of one kernel for its peers
  TeamState* state;                  // slices[rank]
  TeamControl* control;              // as this GPU sees it
  std::byte* slices[kMaxTeamRanks];  // every rank's slice as mapped on this GPU, including the own one
  const RegistrationEntry* registrations[kMaxTeamRanks];  // of every other rank's process, on this GPU
};

static_assert(sizeof(IpcLocation) == 8 && sizeof(RegistrationEntry) == 16);
static_assert(sizeof(DeviceDescriptor) == 8 && std::is_trivially_copyable_v<DeviceDescriptor>);
static_assert(std::is_trivially_copyable_v<DeviceTeam> && std::is_trivially_copyable_v<TeamControl>);

}  // namespace axon::cuda
