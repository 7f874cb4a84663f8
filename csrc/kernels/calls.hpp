// What a collective operates on: the arguments of the LL128 and the zero-copy kernels. Both take the same call, since a
// zero-copy kernel that falls back leaves the work to the LL128 kernel launched behind it.
#pragma once

#include <array>

#include "base/data_type.hpp"
#include "cuda/device_types.hpp"

namespace axon::kernels {

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
  cuda::TrafficClass traffic = cuda::TrafficClass::kCollective;
  cuda::DeviceOperation operation{};  // what all ranks must agree on, with dtype and root
  DataType dtype = DataType::kByte;
  int root = cuda::kNoRoot;
  std::array<SendBuffer, cuda::kMaxTeamRanks> sends{};  // [r] goes to rank r; the own one is copied
  std::array<ReceiveBuffer, cuda::kMaxTeamRanks>
      receives{};              // [r] comes from rank r; the own one may be the block sent
  uint32_t sends_to = 0;       // kPointToPoint: bit r: a message (maybe empty) goes to rank r
  uint32_t receives_from = 0;  // kPointToPoint: bit r: a message comes from rank r
  // Of a barrier around data that moves in another way: in place of bytes, 45 bits which all ranks must agree on.
  uint64_t barrier_bits = 0;
  Ll128Shape shape{};
  When when = When::kAlways;
};

struct ReduceCall {
  const void* input = nullptr;
  void* output = nullptr;   // may be the input; on ranks other than the root not used
  size_t num_elements = 0;  // of the input
  DataType dtype{};
  Reduction reduction = Reduction::kNone;
  double premul_factor = 1;  // of kPremulSum
  int root = cuda::kNoRoot;  // the only rank that gets the result, or kNoRoot: all do
  Ll128Shape shape{};
  When when = When::kAlways;
};

struct ReduceScatterCall {
  std::array<SendBuffer, cuda::kMaxTeamRanks>
      inputs{};            // [r]: what rank r gets the sum of; sizes are the same on all ranks
  void* output = nullptr;  // as long as the own input; may be it
  DataType dtype{};
  Reduction reduction = Reduction::kNone;
  double premul_factor = 1;
  Ll128Shape shape{};
  When when = When::kAlways;
};

struct BroadcastCall {
  void* data = nullptr;  // read on the root, written elsewhere
  size_t num_bytes = 0;
  int root = 0;
  Ll128Shape shape{};
  When when = When::kAlways;
};

}  // namespace axon::kernels
