// The arguments of collectives, shared by LL128 and zero-copy kernels. Both take the same call, since a zero-copy
// kernel that falls back leaves the work to the LL128 kernel launched after it. Plain values that do not own their
// buffers.
#pragma once

#include <array>

#include "base/data_type.hpp"
#include "cuda/device_types.hpp"

namespace axon::kernels {

// Whether other work on the GPU, such as a matrix product, competes with a kernel for multiprocessors. The ranks of a
// call may pass different values.
enum class Beside : uint8_t { kNothing, kComputation };

// For tuning; zeros mean a choice by size. Channels are counted per link and must be equal on all ranks. An all_reduce
// uses as many again for its totals.
struct Ll128Shape {
  int num_channels = 0;
  int warps_per_block = 0;
};

// An LL128 kernel after a zero-copy one (zero_copy/collectives.hpp) has work only if that one fell back.
enum class When : uint8_t { kAlways, kIfFallback };

struct SendBuffer {
  const void* data = nullptr;
  size_t num_bytes = 0;
  uint32_t tag = 0;  // of a point-to-point message; must equal the receiver's
};

struct ReceiveBuffer {
  void* data = nullptr;
  size_t num_bytes = 0;
  uint32_t tag = 0;
};

// One message to and one from each rank. On the collective traffic class every rank launches it and meets every other
// rank, even if a message is empty. On the other traffic class it meets only the ranks in the masks.
struct ExchangeCall {
  cuda::TrafficClass traffic = cuda::TrafficClass::kCollective;
  cuda::DeviceOperation operation{};  // all ranks must agree on it, on dtype and on root
  DataType dtype = DataType::kByte;
  int root = cuda::kNoRoot;
  std::array<SendBuffer, cuda::kMaxTeamRanks> sends{};  // [r] goes to rank r; the rank's own message is copied
  std::array<ReceiveBuffer, cuda::kMaxTeamRanks>
      receives{};              // [r] comes from rank r; the own one may be the own send buffer
  uint32_t sends_to = 0;       // kPointToPoint: bit r is set if a message, maybe empty, goes to rank r
  uint32_t receives_from = 0;  // kPointToPoint: bit r is set if a message comes from rank r
  // For a barrier around data that moves by other means: 45 bits, in place of bytes, that all ranks must agree on.
  uint64_t barrier_bits = 0;
  Ll128Shape shape{};
  When when = When::kAlways;
  Beside beside = Beside::kNothing;
};

struct ReduceCall {
  const void* input = nullptr;
  void* output = nullptr;   // may be the input; unused on ranks other than the root
  size_t num_elements = 0;  // of the input
  DataType dtype{};
  Reduction reduction = Reduction::kNone;
  double premul_factor = 1;  // of kPremulSum
  int root = cuda::kNoRoot;  // the only rank that gets the result; kNoRoot means all ranks
  Ll128Shape shape{};
  When when = When::kAlways;
  Beside beside = Beside::kNothing;
};

struct ReduceScatterCall {
  std::array<SendBuffer, cuda::kMaxTeamRanks> inputs{};  // [r] is reduced for rank r; all ranks have equal sizes
  void* output = nullptr;                                // as long as the own input, and may be that input
  DataType dtype{};
  Reduction reduction = Reduction::kNone;
  double premul_factor = 1;
  Ll128Shape shape{};
  When when = When::kAlways;
  Beside beside = Beside::kNothing;
};

struct BroadcastCall {
  void* data = nullptr;  // read on the root, written on the other ranks
  size_t num_bytes = 0;
  int root = 0;
  Ll128Shape shape{};
  When when = When::kAlways;
  Beside beside = Beside::kNothing;
};

}  // namespace axon::kernels
