// All blocks take every piece together, each its granules of it: so what comes first is through first, and a thread has
// but one wait behind the other.
#include "cuda/launch.hpp"
#include "device/dispatch.cuh"
#include "device/fold_types.hpp"
#include "device/message.cuh"
#include "device/take_pieces.hpp"

namespace axon {
namespace device {
namespace {

constexpr int kPieceThreads = 512;
// Granules that a thread has under way: of a message that is copied, of each of two that are folded.
constexpr uint32_t kWideCopy = 8;
constexpr uint32_t kWide = 4;

struct PieceArguments {
  FoldPlan plan;
  DeviceDescriptor descriptor;
  uint64_t shortest_piece;
  uint32_t first_piece;
  uint32_t end_of_pieces;
  std::byte* output;
  IncomingMessage messages[kMaxTeamRanks];
};

// A run of granules of one piece, of any alignment. Those before num_even are whole, and aligned in all operands.
struct Extent {
  uint64_t num_bytes;
  uint64_t num_even;

  __device__ __forceinline__ uint64_t num_granules() const {
    return (num_bytes + sizeof(Granule) - 1) / sizeof(Granule);
  }
  __device__ __forceinline__ Granule load_odd(const std::byte* data, uint64_t index) const {
    return load_odd_granule(data + index * sizeof(Granule), valid(index));
  }
  __device__ __forceinline__ void store_odd(std::byte* data, uint64_t index, const Granule& granule) const {
    axon::device::store_odd_granule(data + index * sizeof(Granule), valid(index), 0, granule);
  }

 private:
  __device__ __forceinline__ uint64_t valid(uint64_t index) const {
    return min(num_bytes - index * sizeof(Granule), uint64_t{sizeof(Granule)});
  }
};

__device__ __forceinline__ uint64_t first_granule() {
  return uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}

__device__ __forceinline__ uint64_t num_threads() {
  return uint64_t{gridDim.x} * blockDim.x;
}

__device__ __forceinline__ Granule load_granule(const std::byte* data, uint64_t index) {
  return reinterpret_cast<const Granule*>(data)[index];
}

__device__ __forceinline__ void store_granule(std::byte* data, uint64_t index, const Granule& granule) {
  reinterpret_cast<Granule*>(data)[index] = granule;
}

// By all threads of a block: whether that piece of these ranks' messages is there; false: the rank has failed. The
// fence comes behind the flag, the barrier behind the fence: all threads may read the piece.
__device__ __forceinline__ bool have_come(const DeviceTeam& team, const PieceArguments& call, uint32_t ranks,
                                          uint32_t piece) {
  const uint32_t epoch = load_relaxed(&team.state->epochs[0]);  // of the meeting, which is over
  const uint32_t rank = threadIdx.x;
  FaultCode fault = static_cast<FaultCode>(load_relaxed(&team.state->fault));
  if (fault == FaultCode::kNone && rank < kMaxTeamRanks && (ranks >> rank & 1) != 0 &&
      call.messages[rank].flags != nullptr) {
    const uint32_t* flag = call.messages[rank].flags + piece;
    Patience patience(team);
    while (fault == FaultCode::kNone && load_relaxed(flag) != epoch) fault = patience.after_poll();
    fence_system();
    if (fault != FaultCode::kNone) {
      report_fault(team, {.code = fault,
                          .peer = static_cast<int32_t>(rank),
                          .sequence = epoch,
                          .ours = call.descriptor,
                          .theirs = {},
                          .our_tag = 0,
                          .their_tag = 0});
    }
  }
  return __syncthreads_or(fault != FaultCode::kNone) == 0;
}

__device__ __forceinline__ void copy_extent(std::byte* target, const std::byte* source, const Extent& extent) {
#pragma unroll 1
  for (uint64_t first = first_granule(); first < extent.num_even; first += kWideCopy * num_threads()) {
    Granule granules[kWideCopy];
#pragma unroll
    for (uint32_t k = 0; k < kWideCopy; ++k) {
      granules[k] = load_granule(source, min(first + k * num_threads(), extent.num_even - 1));
    }
#pragma unroll
    for (uint32_t k = 0; k < kWideCopy; ++k) {
      const uint64_t index = first + k * num_threads();
      if (index < extent.num_even) store_granule(target, index, granules[k]);
    }
  }
  for (uint64_t index = extent.num_even + first_granule(); index < extent.num_granules(); index += num_threads()) {
    extent.store_odd(target, index, extent.load_odd(source, index));
  }
}

__global__ void __launch_bounds__(kPieceThreads)
    copy_kernel(const __grid_constant__ DeviceTeam team, const __grid_constant__ PieceArguments call) {
  for (uint32_t number = call.first_piece; number < call.end_of_pieces; ++number) {
    // The own one first, then in the order in which the peers push.
    for (int distance = 0; distance < team.num_ranks; ++distance) {
      const int rank = (team.rank + team.num_ranks - distance) % team.num_ranks;
      const IncomingMessage& message = call.messages[rank];
      const Piece piece = Cut::of(message.num_bytes, call.shortest_piece).piece(number);
      if (piece.num_bytes == 0) continue;
      if (!have_come(team, call, 1u << rank, number)) return;
      const bool is_even = is_aligned(message.data, sizeof(Granule)) && is_aligned(message.target, sizeof(Granule));
      copy_extent(message.target + piece.begin, message.data + piece.begin,
                  {piece.num_bytes, is_even ? piece.num_bytes / sizeof(Granule) : 0});
    }
  }
}

struct FoldOperands {
  const PieceArguments& call;
  uint64_t begin;
  uint64_t indices[kWide];

  __device__ __forceinline__ void load(int rank, Granule (&granules)[kWide]) const {
#pragma unroll
    for (uint32_t k = 0; k < kWide; ++k) granules[k] = load_granule(call.messages[rank].data + begin, indices[k]);
  }
};

// A rank's granules are loaded while those of the one before are folded.
template <typename Arithmetic>
__device__ __forceinline__ void fold_even(const PieceArguments& call, const Piece& piece, const Extent& extent) {
#pragma unroll 1
  for (uint64_t first = first_granule(); first < extent.num_even; first += kWide * num_threads()) {
    FoldOperands operands{call, piece.begin, {}};
#pragma unroll
    for (uint32_t k = 0; k < kWide; ++k) operands.indices[k] = min(first + k * num_threads(), extent.num_even - 1);
    Granule next[kWide], ahead[kWide];
    operands.load(0, next);
    operands.load(1, ahead);
    Accumulator<Arithmetic, Granule> totals[kWide];
#pragma unroll
    for (uint32_t k = 0; k < kWide; ++k) totals[k].set(call.plan, next[k]);
#pragma unroll 1
    for (int rank = 1; rank < call.plan.num_ranks; ++rank) {
#pragma unroll
      for (uint32_t k = 0; k < kWide; ++k) next[k] = ahead[k];
      if (rank + 1 < call.plan.num_ranks) operands.load(rank + 1, ahead);
#pragma unroll
      for (uint32_t k = 0; k < kWide; ++k) totals[k].add(call.plan, next[k]);
    }
#pragma unroll
    for (uint32_t k = 0; k < kWide; ++k) {
      if (first + k * num_threads() < extent.num_even) {
        store_granule(call.output + piece.begin, operands.indices[k], totals[k].result(call.plan));
      }
    }
  }
}

// What is cut by the piece's end, or all of one whose operands are not aligned.
template <typename Arithmetic>
__device__ __forceinline__ void fold_odd(const PieceArguments& call, const Piece& piece, const Extent& extent) {
#pragma unroll 1
  for (uint64_t index = extent.num_even + first_granule(); index < extent.num_granules(); index += num_threads()) {
    Accumulator<Arithmetic, Granule> total;
    total.set(call.plan, extent.load_odd(call.messages[0].data + piece.begin, index));
#pragma unroll 1
    for (int rank = 1; rank < call.plan.num_ranks; ++rank) {
      total.add(call.plan, extent.load_odd(call.messages[rank].data + piece.begin, index));
    }
    extent.store_odd(call.output + piece.begin, index, total.result(call.plan));
  }
}

template <typename Arithmetic>
__global__ void __launch_bounds__(kPieceThreads)
    fold_kernel_of_pieces(const __grid_constant__ DeviceTeam team, const __grid_constant__ PieceArguments call) {
  const IncomingMessage& own = call.messages[team.rank];
  const bool is_even = is_aligned(own.data, sizeof(Granule)) && is_aligned(call.output, sizeof(Granule));
  const Cut cut = Cut::of(own.num_bytes, call.shortest_piece);
  for (uint32_t number = call.first_piece; number < call.end_of_pieces; ++number) {
    const Piece piece = cut.piece(number);
    if (piece.num_bytes == 0 || !have_come(team, call, ~0u, number)) return;
    const Extent extent{piece.num_bytes, is_even ? piece.num_bytes / sizeof(Granule) : 0};
    fold_even<Arithmetic>(call, piece, extent);
    fold_odd<Arithmetic>(call, piece, extent);
  }
}

const void* fold_kernel_for(DataType dtype, Reduction reduction) {
  return with_arithmetic(dtype, reduction, []<typename Arithmetic>(Arithmetic) {
    return reinterpret_cast<const void*>(&fold_kernel_of_pieces<Arithmetic>);
  });
}

PieceArguments arguments_of(const DeviceTeam& team, const PieceTaking& call, const PieceFold& fold) {
  PieceArguments arguments{.plan = {.reduction = fold_reduction(call.dtype, fold.reduction),
                                    .num_ranks = team.num_ranks,
                                    .premul_factor = fold.premul_factor},
                           .descriptor = {.operation = static_cast<uint64_t>(call.operation),
                                          .dtype = static_cast<uint64_t>(call.dtype),
                                          .reduction = static_cast<uint64_t>(fold.reduction),
                                          .root = kNoRoot,
                                          .num_bytes = call.messages[team.rank].num_bytes},
                           .shortest_piece = call.shortest_piece,
                           .first_piece = call.first_piece,
                           .end_of_pieces = call.end_of_pieces,
                           .output = fold.output,
                           .messages = {}};
  for (size_t rank = 0; rank < call.messages.size(); ++rank) arguments.messages[rank] = call.messages[rank];
  return arguments;
}

Status launch_taking(const void* kernel, const DeviceTeam& team, const PieceTaking& call, const PieceFold& fold,
                     StreamView stream) {
  PieceArguments arguments = arguments_of(team, call, fold);
  void* parameters[] = {const_cast<DeviceTeam*>(&team), &arguments};
  return launch(kernel, {.num_blocks = call.num_blocks, .num_threads = kPieceThreads}, parameters, stream);
}

}  // namespace

Status load_piece_kernels() {
  for (const auto& [dtype, reduction] : all_folds()) AXON_TRY(axon::load(fold_kernel_for(dtype, reduction)));
  return axon::load(reinterpret_cast<const void*>(&copy_kernel));
}

}  // namespace device

Status copy_pieces(const DeviceTeam& team, const PieceTaking& call, StreamView stream) {
  return device::launch_taking(reinterpret_cast<const void*>(&device::copy_kernel), team, call, {}, stream);
}

Status fold_pieces(const DeviceTeam& team, const PieceTaking& call, const PieceFold& fold, StreamView stream) {
  const void* kernel = device::fold_kernel_for(call.dtype, fold.reduction);
  if (kernel == nullptr) return device::no_kernel(call.dtype, fold.reduction);
  return device::launch_taking(kernel, team, call, fold, stream);
}

}  // namespace axon
