// Operations over LL128: for all sizes that packets do not serve best, and for point-to-point messages. One kernel on
// the caller's stream each, eager or in a CUDA graph. Tensors of any alignment and size, in place or not.
//
//   AXON_TRY(load_kernels(num_ranks));                                  // once a device, before any launch
//   AXON_TRY(ll128_all_reduce(team, {.input = in, .output = out, .num_elements = n, …}, stream));
//
// Kernels of one team and traffic class run one after the other, in the same order on all ranks that they connect; the
// caller sees to that, by streams and events. They fail without launching when an argument is unsupported. What goes
// wrong on the device stands in the team's control; the output is then undefined.
#pragma once

#include <array>

#include "base/data_type.hpp"
#include "base/status.hpp"
#include "cuda/device_types.hpp"
#include "cuda/stream.hpp"

namespace axon {

// For tuning; zeros: chosen by size. Channels are of a link (an all_reduce uses as many again for its totals) and must
// be the same on all ranks.
struct Ll128Shape {
  int num_channels = 0;
  int warps_per_block = 0;
};

// An LL128 kernel behind a direct one (zero_copy/collectives.hpp) has something to do only where that has fallen back.
enum class When : uint8_t { kAlways, kIfFallback };

struct SendBuffer {
  const void* data = nullptr;
  size_t num_bytes = 0;
  uint32_t tag = 0;  // of a point-to-point message: the receiver's must be the same
};

struct ReceiveBuffer {
  void* data = nullptr;
  size_t num_bytes = 0;
  uint32_t tag = 0;
};

// A message to and from each rank. On the collective traffic class every rank launches it, and meets every other even
// where a block is empty; on the other traffic class it meets the ranks in the masks alone.
struct ExchangeCall {
  TrafficClass traffic = TrafficClass::kCollective;
  DeviceOperation operation{};  // what all ranks must agree on, with dtype and root
  DataType dtype = DataType::kByte;
  int root = kNoRoot;
  std::array<SendBuffer, kMaxTeamRanks> sends{};        // [r] goes to rank r; the own one is copied
  std::array<ReceiveBuffer, kMaxTeamRanks> receives{};  // [r] comes from rank r; the own one may be the block sent
  uint32_t sends_to = 0;                                // kPointToPoint: bit r: a message (maybe empty) goes to rank r
  uint32_t receives_from = 0;                           // kPointToPoint: bit r: a message comes from rank r
  // Of a barrier around data that moves in another way: in place of bytes, 45 bits which all ranks must agree on.
  uint64_t barrier_bits = 0;
  Ll128Shape shape{};
  When when = When::kAlways;
};

// All_gather, all_to_all, gather, scatter, small broadcasts, barrier, and batches of sends and receives, even or not:
// all of these are messages over direct links. One flight.
Status ll128_exchange(const DeviceTeam& team, const ExchangeCall& call, StreamView stream);

struct ReduceCall {
  const void* input = nullptr;
  void* output = nullptr;   // may be the input; on ranks other than the root not used
  size_t num_elements = 0;  // of the input
  DataType dtype{};
  Reduction reduction = Reduction::kNone;
  double premul_factor = 1;  // of kPremulSum
  int root = kNoRoot;        // the only rank that gets the result, or kNoRoot: all do
  Ll128Shape shape{};
  When when = When::kAlways;
};

// Rank r reduces shard r of all inputs and sends the total to every peer (or to the root), all in one pipeline.
Status ll128_all_reduce(const DeviceTeam& team, const ReduceCall& call, StreamView stream);

struct ReduceScatterCall {
  std::array<SendBuffer, kMaxTeamRanks> inputs{};  // [r]: what rank r gets the sum of; sizes are the same on all ranks
  void* output = nullptr;                          // as long as the own input; may be it
  DataType dtype{};
  Reduction reduction = Reduction::kNone;
  double premul_factor = 1;
  Ll128Shape shape{};
  When when = When::kAlways;
};

Status ll128_reduce_scatter(const DeviceTeam& team, const ReduceScatterCall& call, StreamView stream);

struct BroadcastCall {
  void* data = nullptr;  // read on the root, written elsewhere
  size_t num_bytes = 0;
  int root = 0;
  Ll128Shape shape{};
  When when = When::kAlways;
};

// The root scatters, every other rank passes its shard on at once: S bytes out of the root instead of (n−1)·S. Two
// flights, so ll128_exchange is ahead for small ones.
Status ll128_broadcast(const DeviceTeam& team, const BroadcastCall& call, StreamView stream);

}  // namespace axon
