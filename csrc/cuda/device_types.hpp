// What host and kernels share: plain structs, no CUDA header, so that code built without CUDA can include it.
//
// Each rank of a team owns a *slice* of device memory that all ranks map. Its layout is a pure function of the number
// of ranks and the size, the same everywhere, so a peer's ring or packet is at `slices[peer]` + offset. A slice is all
// zeros before its first use. Two protocols, both with the readiness in the data, without fences:
//
// *Packets*, for small messages: 16 bytes that carry 8 bytes of data and the epoch twice, once in each half, because 8
// bytes is what the hardware stores as one. There are two regions of `region_packets`, used in turn by the parity of
// the epoch. A rank enters epoch e + 1 only after every peer has entered e, so nobody still reads what e + 1
// overwrites. Packets 0 … num_ranks−1 of a region hold the peers' descriptors, for collectives over LL128 too; the rest
// is laid out by each operation.
//
// *Lines*, for the others: 128 bytes, 120 of data and the sequence number, stored as one by 8 threads of a warp. A warp
// stores 8 lines, a *warp chunk*, at a time. A directed link has *channels*; a channel is a ring of chunks in the
// receiver's slice and a credit word in the sender's, which tells how many chunks the receiver has taken since the team
// began.
//
// *Zero-copy* kernels, for large collectives, read and write the peers' tensors themselves. A tensor lies in a
// *segment*, what its process allocated as one, which the peers map in the background. The ranks tell each other in
// packets where their tensors are, vote whether all of them can reach all that they need, and do nothing if not: an
// LL128 kernel that is launched behind then does the work. A large point-to-point message is agreed on by its two ranks
// alone, in the kernel that moves it one way or the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/data_type.hpp"

namespace axon::cuda {

inline constexpr int kMaxTeamRanks = 16;
inline constexpr int kMaxBlocks = 64;  // of a packet or direct launch; each reads its own copy of the epoch
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
  kAllReduce = 3,  // over LL128 or directly; the others in any way
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
};

// What the two ends of a link must agree on. It travels in one packet, or at the head of a point-to-point message, so
// a mismatch is seen at no extra exchange.
struct DeviceDescriptor {
  uint64_t operation : 6;  // DeviceOperation
  uint64_t dtype : 4;
  uint64_t reduction : 4;
  uint64_t root : 5;        // or kNoRoot
  uint64_t num_bytes : 45;  // of the message on this link; of the input where elements are reduced;
                            // before copy engines move data, what all ranks announce (gpu_comm/barrier_descriptor.hpp)
};

// Where a tensor is, as its process tells the others: a segment's number and how many bytes into it.
struct IpcLocation {
  uint64_t offset : 40;
  uint64_t registration : 24;  // from 1, of the process that allocated it; 0: none that peers can map
};

// Where a peer's segment is mapped here: at kRegistrationSlots entries a peer, in that of its number modulo
// kRegistrationSlots. Written while kernels run: `base` first, and taken out only when no operation is in the segment
// any more, or its process has ended.
struct RegistrationEntry {
  uint64_t registration;  // 0: none
  std::byte* base;
};

inline constexpr uint32_t kRegistrationSlots = 1024;

enum class FaultCode : uint32_t { kNone = 0, kTimeout = 1, kAborted = 2, kMismatch = 3, kGone = 4 };

// The first fault of a team; `code` is written last, with release order.
struct FaultReport {
  FaultCode code;
  int32_t peer;             // the rank that was missing, disagreed or has ended
  uint64_t sequence;        // collectives: the epoch; point to point: how many chunks the channel had moved
  DeviceDescriptor ours;    // what this rank was doing
  DeviceDescriptor theirs;  // for a mismatch
  uint32_t our_tag;         // of a point-to-point message
  uint32_t their_tag;
};

// Pinned host memory, one a team: the host's word to the kernels, and theirs to the host.
struct TeamControl {
  uint32_t abort;  // host → device: nonzero ends every wait
  uint32_t gone;   // host → device: bit r: rank r's process has ended, it writes no more
  FaultReport report;
};

// At the begin of the rank's own slice. Between launches all epochs are equal.
struct TeamState {
  uint32_t fault;           // a FaultCode; first writer wins; ends every wait of this rank, now and in later launches
  uint32_t must_fall_back;  // by a zero-copy kernel: whether the LL128 kernel behind it has something to do
  uint32_t num_zero_copy;   // operations that zero-copy kernels have done: a statistic
  uint32_t num_zero_copy_messages;  // point to point, sent or received: a rank's own statistic
  uint32_t epochs[kMaxBlocks];      // the last one that is over
};

// Collectives and point-to-point messages have channels of their own, so their kernels may run side by side.
enum class TrafficClass : uint8_t { kCollective = 0, kPointToPoint = 1 };

// The channels of one traffic class in a rank's slice: of every link from and to each of its num_ranks − 1 peers.
// Offsets in bytes.
struct TrafficLayout {
  uint32_t num_channels;  // of a directed link
  uint32_t ring_chunks;   // of a channel; a power of two
  uint64_t rings;         // [peer][channel]: chunks from that peer
  uint64_t credits;       // [peer][channel] ChannelCredit: written by the peer
  uint64_t counters;      // [peer][channel] ChannelCounters: read and written by us alone
};

// How many of our chunks a peer has taken since the team began. A sector of its own, since another GPU writes it.
struct alignas(32) ChannelCredit {
  uint64_t chunks_taken;
};

struct ChannelCounters {
  uint64_t chunks_sent;
  uint64_t chunks_received;
};

// Large point-to-point messages of a directed link are counted, from 1.
struct MessageCount {
  uint32_t number;    // of the last that is over
  uint32_t num_left;  // warps that have done all they have to of the next
};

// What a rank and one of its peers tell each other of these, in the rank's slice: packets that carry the message's
// number as epoch. What the peer writes is in sectors apart from what only this rank does.
struct alignas(128) Rendezvous {
  // Of a message to the peer:
  LlPacket offer[3];            // by the peer: where its tensor is, the descriptor and the tag that it expects
  alignas(32) uint64_t claim;   // by whoever decides first whether the offer holds: the number, and how
  alignas(32) LlPacket target;  // by this rank's leading warp to its others: where to write
  // Of a message from the peer:
  alignas(32) LlPacket outcome;  // by the peer, once it has written all, or has found that it cannot
  alignas(32) MessageCount sent;
  MessageCount received;
};

struct TeamLayout {
  uint64_t slice_bytes;
  uint64_t rendezvous;  // [rank] Rendezvous, the own one unused
  uint64_t packets;     // two regions
  uint32_t region_packets;
  TrafficLayout traffic[kNumTrafficClasses];
};

// A rank's view of its team, passed to every kernel. Nothing in it changes while the team lives, so graphs may bake it.
struct DeviceTeam {
  int32_t rank;
  int32_t num_ranks;
  TeamLayout layout;
  uint64_t timeout_ns;               // longest wait of one kernel for its peers
  TeamState* state;                  // slices[rank]
  TeamControl* control;              // as this GPU sees it
  std::byte* slices[kMaxTeamRanks];  // every rank's slice, as mapped on this GPU; the own one included
  const RegistrationEntry* registrations[kMaxTeamRanks];  // of every other rank's process, on this GPU
};

static_assert(sizeof(IpcLocation) == 8 && sizeof(RegistrationEntry) == 16);
static_assert(sizeof(DeviceDescriptor) == 8 && std::is_trivially_copyable_v<DeviceDescriptor>);
static_assert(std::is_trivially_copyable_v<DeviceTeam> && std::is_trivially_copyable_v<TeamControl>);

}  // namespace axon::cuda
