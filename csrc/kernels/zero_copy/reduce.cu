#include "kernels/zero_copy/reduce.cuh"

#include <algorithm>
#include <utility>

#include "kernels/dispatch.cuh"
#include "kernels/reduce_types.hpp"

namespace axon::kernels::zero_copy {
namespace {

constexpr uint32_t kNumStages = kZeroCopyReduceWarps * kZeroCopyReduceStages;  // per block

// Several vectors per thread, since a chunk costs as much as some hundred instructions, provided that the chunks of all
// ranks fit together. Where totals stay, half as much is faster up to 32 MiB
// (benchmarks/results/kernels_zero_copy_2xh200.jsonl).
uint32_t chunk_bytes(int num_ranks, bool totals_stay, size_t shared_bytes) {
  constexpr uint32_t kShortest = 256, kStep = 512;
  const uint32_t longest = totals_stay ? 2048 : 4096;
  const auto most = static_cast<uint32_t>(shared_bytes / kNumStages / static_cast<size_t>(num_ranks));
  return std::clamp(most / kStep * kStep, kShortest, longest);
}

ZeroCopyReduceArguments arguments_of(const cuda::DeviceTeam& team, const ZeroCopyHandshake& handshake,
                                     double premul_factor) {
  const auto dtype = static_cast<DataType>(handshake.descriptor.dtype);
  const auto reduction = static_cast<Reduction>(handshake.descriptor.reduction);
  return {.handshake = handshake,
          .plan = {.reduction = reduction_of_kernel(dtype, reduction),
                   .num_ranks = team.num_ranks,
                   .premul_factor = premul_factor},
          .input = nullptr,
          .output = nullptr,
          .shard_bytes = 0,
          .chunk_bytes = 0};
}

uint64_t begin_of_shard(uint64_t num_bytes, int num_ranks, int rank) {
  return std::min(static_cast<uint64_t>(rank) * shard_stride(num_bytes, num_ranks), num_bytes);
}

Status launch_zero_copy_reduce(const cuda::DeviceTeam& team, ZeroCopyReduceArguments& call, int num_blocks,
                               cuda::StreamView stream) {
  const cuda::DeviceDescriptor& descriptor = call.handshake.descriptor;
  const void* kernel =
      reduce_kernel_for(static_cast<DataType>(descriptor.dtype), static_cast<Reduction>(descriptor.reduction));
  Result<int> blocks =
      count_blocks(num_blocks, static_cast<cuda::DeviceOperation>(descriptor.operation), team.num_ranks);
  if (!blocks.ok()) return std::move(blocks.status());
  Result<size_t> shared_bytes = most_shared_bytes();
  if (!shared_bytes.ok()) return std::move(shared_bytes.status());
  call.chunk_bytes = chunk_bytes(team.num_ranks, call.handshake.writes == 0, shared_bytes.value());
  void* parameters[] = {const_cast<cuda::DeviceTeam*>(&team), &call};
  return launch(kernel,
                {.num_blocks = blocks.value(),
                 .num_threads = 32 * kZeroCopyReduceWarps,
                 .num_shared_bytes = size_t{kNumStages} * static_cast<size_t>(team.num_ranks) * call.chunk_bytes},
                parameters, stream);
}

}  // namespace

const void* reduce_kernel_for(DataType dtype, Reduction reduction) noexcept {
  return with_arithmetic(dtype, reduction, []<typename Arithmetic>(Arithmetic) {
    return reinterpret_cast<const void*>(&zero_copy_reduce_kernel<Arithmetic>);
  });
}

Status all_reduce(const cuda::DeviceTeam& team, const ReduceCall& call, const ReduceLocations& locations,
                  cuda::StreamView stream) {
  if (reduce_kernel_for(call.dtype, call.reduction) == nullptr) return no_kernel(call.dtype, call.reduction);
  const bool has_root = call.root != cuda::kNoRoot;
  const bool receives = !has_root || call.root == team.rank;
  const uint64_t num_bytes = call.num_elements * size_of(call.dtype);
  ZeroCopyHandshake handshake =
      handshake_of(has_root ? cuda::DeviceOperation::kReduce : cuda::DeviceOperation::kAllReduce, call.dtype,
                   call.reduction, call.root);
  handshake.descriptor.num_bytes = num_bytes;
  handshake.is_aligned_16 = is_aligned_16(call.input) && (!receives || is_aligned_16(call.output)) ? 1 : 0;

  const auto begin_of = [&](int rank) { return begin_of_shard(num_bytes, team.num_ranks, rank); };
  for (int rank = 0; rank < team.num_ranks; ++rank) {
    handshake.links[rank] = {.readable = advanced_by(locations.input, begin_of(rank)),
                             .writable = receives ? advanced_by(locations.output, begin_of(rank)) : cuda::IpcLocation{},
                             .bytes_to = num_bytes,
                             .bytes_from = num_bytes};
  }
  const uint64_t begin = begin_of(team.rank), shard_bytes = begin_of(team.rank + 1) - begin;
  if (shard_bytes != 0) {
    handshake.reads = peers_of(team);
    handshake.writes = has_root ? handshake.reads & 1u << call.root : handshake.reads;
  }
  ZeroCopyReduceArguments arguments = arguments_of(team, handshake, call.premul_factor);
  arguments.input = static_cast<const std::byte*>(call.input) + begin;
  arguments.output = receives ? static_cast<std::byte*>(call.output) + begin : nullptr;
  arguments.shard_bytes = shard_bytes;
  return launch_zero_copy_reduce(team, arguments, locations.num_blocks, stream);
}

Status reduce_scatter(const cuda::DeviceTeam& team, const ReduceScatterCall& call,
                      const ReduceScatterLocations& locations, cuda::StreamView stream) {
  if (reduce_kernel_for(call.dtype, call.reduction) == nullptr) return no_kernel(call.dtype, call.reduction);
  ZeroCopyHandshake handshake =
      handshake_of(cuda::DeviceOperation::kReduceScatter, call.dtype, call.reduction, cuda::kNoRoot);
  const SendBuffer& own = call.inputs[team.rank];
  const auto ranks =
      static_cast<uint64_t>(team.num_ranks);  // times a shard equals the input, unless shards are unequal
  for (int rank = 0; rank < team.num_ranks; ++rank) {
    handshake.links[rank] = {.readable = locations.inputs[rank],
                             .writable = {},
                             .bytes_to = ranks * call.inputs[rank].num_bytes,
                             .bytes_from = ranks * own.num_bytes};
  }
  handshake.descriptor.num_bytes = ranks * own.num_bytes;
  if (own.num_bytes != 0) {
    handshake.reads = peers_of(team);
    handshake.is_aligned_16 = is_aligned_16(own.data) && is_aligned_16(call.output) ? 1 : 0;
  }
  ZeroCopyReduceArguments arguments = arguments_of(team, handshake, call.premul_factor);
  arguments.input = static_cast<const std::byte*>(own.data);
  arguments.output = static_cast<std::byte*>(call.output);
  arguments.shard_bytes = own.num_bytes;
  return launch_zero_copy_reduce(team, arguments, locations.num_blocks, stream);
}

}  // namespace axon::kernels::zero_copy
