#include "kernels/ll128/reduce.cuh"

#include <algorithm>
#include <iterator>
#include <utility>

#include "kernels/dispatch.cuh"
#include "kernels/reduce_types.hpp"

namespace axon::kernels::ll128 {

template <typename Span>
const void* reduce_kernel_for(DataType dtype, Reduction reduction) {
  return with_arithmetic(dtype, reduction, []<typename Arithmetic>(Arithmetic) {
    return reinterpret_cast<const void*>(&ll128_reduce_kernel<Arithmetic, Span>);
  });
}

ReduceKernels reduce_kernels_for(DataType dtype, Reduction reduction) noexcept {
  return {.for_short = reduce_kernel_for<ShortReduce>(dtype, reduction),
          .for_long = reduce_kernel_for<LongReduce>(dtype, reduction)};
}

ReduceKernels relay_kernels() noexcept {
  return {.for_short = reinterpret_cast<const void*>(&ll128_reduce_kernel<Relay, ShortReduce>),
          .for_long = reinterpret_cast<const void*>(&ll128_reduce_kernel<Relay, LongReduce>)};
}

namespace {

uint32_t all_ranks(const cuda::DeviceTeam& team) {
  return (1u << team.num_ranks) - 1;
}

ReduceArguments arguments_of(cuda::DeviceOperation operation, DataType dtype, Reduction reduction) {
  return {.descriptor = {.operation = static_cast<uint64_t>(operation),
                         .dtype = static_cast<uint64_t>(dtype),
                         .reduction = static_cast<uint64_t>(reduction),
                         .root = cuda::kNoRoot,
                         .num_bytes = 0},
          .plan = {.reduction = reduction_of_kernel(dtype, reduction), .num_ranks = 1, .premul_factor = 1},
          .contributors = 0,
          .receivers = 0,
          .first_total_channel = 0,
          .when = When::kAlways,
          .jobs = {},
          .inputs = {},
          .outputs = {},
          .shard_bytes = {}};
}

// Each rank decides for itself: the other ranks may use the other kernel.
bool is_long(uint64_t largest_shard, uint32_t num_channels, Ll128Shape shape) {
  constexpr uint64_t kChunksOfShort = 2;  // per channel
  return largest_shard > kChunksOfShort * num_channels * cuda::kWarpChunkPayloadBytes &&
         shape.warps_per_block <= kMostWarpsPerLongReduceBlock;
}

Status launch_reduce(const cuda::DeviceTeam& team, ReduceKernels kernels, ReduceArguments& call, Ll128Shape shape,
                     Beside beside, cuda::StreamView stream) {
  const uint32_t all_channels = team.layout.traffic[static_cast<int>(cuda::TrafficClass::kCollective)].num_channels;
  const uint32_t available = call.receivers == 0 ? all_channels : all_channels / 2;
  const auto num_peers = static_cast<uint32_t>(team.num_ranks - 1);
  Result<ChannelLimits> limits = call.receivers == 0 ? choose_channels(available, num_peers, shape)
                                                     : choose_reduce_channels(available, num_peers, shape);
  if (!limits.ok()) return std::move(limits.status());
  call.first_total_channel = available;

  const uint64_t largest_shard = *std::max_element(std::begin(call.shard_bytes), std::end(call.shard_bytes));
  JobPlan plan(team.rank, limits.value(), choose_jobs_per_warp(beside, largest_shard));
  plan.add_control();
  const bool contributes = (call.contributors >> team.rank & 1) != 0;
  const bool receives = (call.receivers >> team.rank & 1) != 0;
  for (int owner = 0; owner < team.num_ranks; ++owner) {
    const uint32_t shard_channels = plan.channels_for(call.shard_bytes[owner]);
    if (owner == team.rank) {
      plan.add_own(shard_channels);
      continue;
    }
    if (contributes) plan.add_send(owner, shard_channels);
    if (receives) plan.add_receive(owner, shard_channels);
  }
  const bool takes_long = is_long(largest_shard, limits.value().of_long, shape);
  Result<cuda::LaunchShape> grid = plan.grid(shape, takes_long ? kMostWarpsPerLongReduceBlock : kMostWarpsPerBlock);
  if (!grid.ok()) return std::move(grid.status());
  call.jobs = plan.table();
  void* parameters[] = {const_cast<cuda::DeviceTeam*>(&team), &call};
  return launch(takes_long ? kernels.for_long : kernels.for_short, grid.value(), parameters, stream);
}

}  // namespace

Status all_reduce(const cuda::DeviceTeam& team, const ReduceCall& call, cuda::StreamView stream) {
  const ReduceKernels kernels = reduce_kernels_for(call.dtype, call.reduction);
  if (kernels.for_short == nullptr) return no_kernel(call.dtype, call.reduction);
  const bool has_root = call.root != cuda::kNoRoot;
  const size_t num_bytes = call.num_elements * size_of(call.dtype);
  ReduceArguments arguments = arguments_of(
      has_root ? cuda::DeviceOperation::kReduce : cuda::DeviceOperation::kAllReduce, call.dtype, call.reduction);
  arguments.when = call.when;
  arguments.descriptor.root = static_cast<uint64_t>(call.root);
  arguments.descriptor.num_bytes = num_bytes;
  arguments.plan.num_ranks = team.num_ranks;
  arguments.plan.premul_factor = call.premul_factor;
  arguments.contributors = all_ranks(team);
  arguments.receivers = has_root ? 1u << call.root : all_ranks(team);

  const bool receives = (arguments.receivers >> team.rank & 1) != 0;
  const ShardRanges shards = cut_in_shards(num_bytes, team.num_ranks, all_ranks(team));
  for (int rank = 0; rank < team.num_ranks; ++rank) {
    arguments.inputs[rank] = static_cast<const std::byte*>(call.input) + shards.begins[rank];
    if (receives) arguments.outputs[rank] = static_cast<std::byte*>(call.output) + shards.begins[rank];
    arguments.shard_bytes[rank] = shards.sizes[rank];
  }
  return launch_reduce(team, kernels, arguments, call.shape, call.beside, stream);
}

Status reduce_scatter(const cuda::DeviceTeam& team, const ReduceScatterCall& call, cuda::StreamView stream) {
  const ReduceKernels kernels = reduce_kernels_for(call.dtype, call.reduction);
  if (kernels.for_short == nullptr) return no_kernel(call.dtype, call.reduction);
  ReduceArguments arguments = arguments_of(cuda::DeviceOperation::kReduceScatter, call.dtype, call.reduction);
  arguments.when = call.when;
  arguments.plan.num_ranks = team.num_ranks;
  arguments.plan.premul_factor = call.premul_factor;
  arguments.contributors = all_ranks(team);
  for (int rank = 0; rank < team.num_ranks; ++rank) {
    arguments.inputs[rank] = static_cast<const std::byte*>(call.inputs[rank].data);
    arguments.shard_bytes[rank] = call.inputs[rank].num_bytes;
    arguments.descriptor.num_bytes = arguments.descriptor.num_bytes + call.inputs[rank].num_bytes;
  }
  arguments.outputs[team.rank] = static_cast<std::byte*>(call.output);
  return launch_reduce(team, kernels, arguments, call.shape, call.beside, stream);
}

Status broadcast(const cuda::DeviceTeam& team, const BroadcastCall& call, cuda::StreamView stream) {
  ReduceArguments arguments = arguments_of(cuda::DeviceOperation::kBroadcast, DataType::kByte, Reduction::kNone);
  arguments.when = call.when;
  arguments.descriptor.root = static_cast<uint64_t>(call.root);
  arguments.descriptor.num_bytes = call.num_bytes;
  arguments.contributors = 1u << call.root;
  arguments.receivers = all_ranks(team) & ~arguments.contributors;
  const ShardRanges shards = cut_in_shards(call.num_bytes, team.num_ranks, arguments.receivers);
  for (int rank = 0; rank < team.num_ranks; ++rank) {
    std::byte* shard = static_cast<std::byte*>(call.data) + shards.begins[rank];
    if (team.rank == call.root) {
      arguments.inputs[rank] = shard;
    } else {
      arguments.outputs[rank] = shard;
    }
    arguments.shard_bytes[rank] = shards.sizes[rank];
  }
  return launch_reduce(team, relay_kernels(), arguments, call.shape, call.beside, stream);
}

}  // namespace axon::kernels::ll128
