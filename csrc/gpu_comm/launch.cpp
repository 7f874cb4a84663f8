#include "gpu_comm/launch.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/memory.hpp"
#include "kernels/ll/collectives.hpp"
#include "kernels/ll128/collectives.hpp"
#include "kernels/zero_copy/point_to_point.hpp"

namespace axon::gpu_comm {

template <typename Buffers>
static size_t bytes_of(const Buffers& buffers) noexcept {
  size_t num_bytes = 0;
  for (const auto& buffer : buffers) num_bytes += buffer.num_bytes;
  return num_bytes;
}

KernelQuery query_of(const engine::Operation& operation, int num_ranks) noexcept {
  const collectives::CollectiveArguments& arguments = operation.arguments;
  const std::span<const Buffer> outputs = arguments.outputs;
  const bool has_equal_counts =
      std::ranges::all_of(outputs, [&](const Buffer& output) { return output.num_bytes == outputs.front().num_bytes; });
  return {.kind = arguments.kind,
          .dtype = arguments.dtype,
          .reduction = arguments.reduction,
          .num_ranks = num_ranks,
          .num_bytes = arguments.kind == transport::OperationKind::kAllToAll
                           ? std::max(bytes_of(arguments.inputs), bytes_of(outputs))
                           : operation.num_elements * size_of(arguments.dtype),
          .has_equal_counts = has_equal_counts};
}

namespace {

kernels::SendBuffer to_send(const ConstBuffer& buffer, uint32_t tag = 0) noexcept {
  return {.data = buffer.data, .num_bytes = buffer.num_bytes, .tag = tag};
}

kernels::ReceiveBuffer to_receive(const Buffer& buffer, uint32_t tag = 0) noexcept {
  return {.data = buffer.data, .num_bytes = buffer.num_bytes, .tag = tag};
}

cuda::DeviceOperation moving(transport::OperationKind kind) noexcept {
  switch (kind) {
    case transport::OperationKind::kBroadcast:
      return cuda::DeviceOperation::kBroadcast;
    case transport::OperationKind::kAllGather:
      return cuda::DeviceOperation::kAllGather;
    case transport::OperationKind::kGather:
      return cuda::DeviceOperation::kGather;
    case transport::OperationKind::kScatter:
      return cuda::DeviceOperation::kScatter;
    case transport::OperationKind::kAllToAll:
      return cuda::DeviceOperation::kAllToAll;
    default:
      return cuda::DeviceOperation::kBarrier;
  }
}

// Expresses a collective that only moves data as messages between the ranks. In a broadcast the root sends no message
// to itself, since its output is its input.
kernels::ExchangeCall messages_of(const cuda::DeviceTeam& team, const collectives::CollectiveArguments& arguments) {
  kernels::ExchangeCall call{.operation = moving(arguments.kind),
                             .dtype = arguments.dtype,
                             .root = arguments.root >= 0 ? arguments.root : cuda::kNoRoot};
  const bool is_root = team.rank == arguments.root;
  const auto root = static_cast<size_t>(std::max(arguments.root, 0));
  for (size_t rank = 0; rank < static_cast<size_t>(team.num_ranks); ++rank) {
    switch (arguments.kind) {
      case transport::OperationKind::kBroadcast:
        if (is_root && rank != root) call.sends[rank] = to_send(arguments.outputs[0]);
        if (!is_root && rank == root) call.receives[rank] = to_receive(arguments.outputs[0]);
        break;
      case transport::OperationKind::kAllGather:
        call.sends[rank] = to_send(arguments.inputs[0]);
        call.receives[rank] = to_receive(arguments.outputs[rank]);
        break;
      case transport::OperationKind::kGather:
        if (rank == root) call.sends[rank] = to_send(arguments.inputs[0]);
        if (is_root) call.receives[rank] = to_receive(arguments.outputs[rank]);
        break;
      case transport::OperationKind::kScatter:
        if (is_root) call.sends[rank] = to_send(arguments.inputs[rank]);
        if (rank == root) call.receives[rank] = to_receive(arguments.outputs[0]);
        break;
      case transport::OperationKind::kAllToAll:
        call.sends[rank] = to_send(arguments.inputs[rank]);
        call.receives[rank] = to_receive(arguments.outputs[rank]);
        break;
      default:
        break;
    }
  }
  return call;
}

// Returns the blocks of a zero-copy kernel.
int blocks_of(const LaunchContext& context, cuda::DeviceOperation operation) {
  return kernels::zero_copy::preferred_blocks(operation, context.beside, context.team.num_ranks);
}

// Says where this rank's peers write. A rank that only sends has no such tensor.
kernels::zero_copy::ExchangeLocations locate_receives(const LaunchContext& context, const kernels::ExchangeCall& call) {
  kernels::zero_copy::ExchangeLocations locations{.num_blocks = blocks_of(context, call.operation)};
  const kernels::SendBuffer* sent = nullptr;
  bool receives = false;
  for (int rank = 0; rank < context.team.num_ranks; ++rank) {
    if (rank == context.team.rank) continue;
    const auto at = static_cast<size_t>(rank);
    if (call.sends[at].num_bytes != 0) sent = &call.sends[at];
    const kernels::ReceiveBuffer& receive = call.receives[at];
    if (receive.num_bytes == 0) continue;
    locations.receives[at] = context.registrations.locate(receive.data, receive.num_bytes);
    receives = true;
  }
  if (sent != nullptr && !receives) context.registrations.expect_peers(sent->data, sent->num_bytes);
  return locations;
}

// Moves messages zero-copy, then falls back to LL128 for what could not be moved.
Status launch_exchange(const LaunchContext& context, Kernel kernel, kernels::ExchangeCall call) {
  const cuda::DeviceTeam& team = context.team;
  call.beside = context.beside;
  if (kernel == Kernel::kZeroCopy) {
    AXON_TRY(kernels::zero_copy::exchange(team, call, locate_receives(context, call), context.stream));
    call.when = kernels::When::kIfFallback;
  }
  return kernels::ll128::exchange(team, call, context.stream);
}

// The root scatters the tensor and its peers pass the shards on, zero-copy or by LL128.
Status launch_broadcast(const LaunchContext& context, Kernel kernel,
                        const collectives::CollectiveArguments& arguments) {
  const Buffer& tensor = arguments.outputs[0];
  kernels::BroadcastCall call{
      .data = tensor.data, .num_bytes = tensor.num_bytes, .root = arguments.root, .beside = context.beside};
  if (kernel == Kernel::kZeroCopy) {
    kernels::zero_copy::BroadcastLocations locations{.num_blocks =
                                                         blocks_of(context, cuda::DeviceOperation::kBroadcast)};
    if (context.team.rank == call.root) {
      context.registrations.expect_peers(tensor.data, tensor.num_bytes);
    } else {
      locations.data = context.registrations.locate(tensor.data, tensor.num_bytes);
    }
    AXON_TRY(kernels::zero_copy::broadcast(context.team, call, locations, context.stream));
    call.when = kernels::When::kIfFallback;
  }
  return kernels::ll128::broadcast(context.team, call, context.stream);
}

Status launch_ll_all_reduce(const LaunchContext& context, Kernel kernel, const kernels::ReduceCall& call) {
  const kernels::ll::LlCollective packets{.input = call.input,
                                          .output = call.output,
                                          .num_elements = call.num_elements,
                                          .dtype = call.dtype,
                                          .reduction = call.reduction,
                                          .premul_factor = call.premul_factor,
                                          .beside = context.beside};
  return kernel == Kernel::kLlOneShot ? kernels::ll::all_reduce_one_shot(context.team, packets, context.stream)
                                      : kernels::ll::all_reduce_two_shot(context.team, packets, context.stream);
}

Status launch_reduction(const LaunchContext& context, Kernel kernel, const engine::Operation& operation) {
  const collectives::CollectiveArguments& arguments = operation.arguments;
  const bool reduces_in_place = arguments.kind == transport::OperationKind::kAllReduce;
  kernels::ReduceCall call{.input = reduces_in_place ? arguments.outputs[0].data : arguments.inputs[0].data,
                           .output = arguments.outputs.empty() ? nullptr : arguments.outputs[0].data,
                           .num_elements = operation.num_elements,
                           .dtype = arguments.dtype,
                           .reduction = arguments.reduction,
                           .premul_factor = arguments.premul_factor,
                           .root = arguments.root >= 0 ? arguments.root : cuda::kNoRoot,
                           .beside = context.beside};
  if (kernel == Kernel::kLlOneShot || kernel == Kernel::kLlTwoShot) {
    return launch_ll_all_reduce(context, kernel, call);
  }
  if (kernel == Kernel::kZeroCopy) {
    const size_t num_bytes = call.num_elements * size_of(call.dtype);
    const bool has_root = call.root != cuda::kNoRoot;
    const auto operation_there = has_root ? cuda::DeviceOperation::kReduce : cuda::DeviceOperation::kAllReduce;
    kernels::zero_copy::ReduceLocations locations{.input = context.registrations.locate(call.input, num_bytes),
                                                  .num_blocks = blocks_of(context, operation_there)};
    if (!has_root || call.root == context.team.rank) {
      locations.output =
          call.output == call.input ? locations.input : context.registrations.locate(call.output, num_bytes);
    }
    AXON_TRY(kernels::zero_copy::all_reduce(context.team, call, locations, context.stream));
    call.when = kernels::When::kIfFallback;
  }
  return kernels::ll128::all_reduce(context.team, call, context.stream);
}

Status launch_reduce_scatter(const LaunchContext& context, Kernel kernel,
                             const collectives::CollectiveArguments& arguments) {
  kernels::ReduceScatterCall call{.output = arguments.outputs[0].data,
                                  .dtype = arguments.dtype,
                                  .reduction = arguments.reduction,
                                  .premul_factor = arguments.premul_factor,
                                  .beside = context.beside};
  for (size_t rank = 0; rank < arguments.inputs.size(); ++rank) call.inputs[rank] = to_send(arguments.inputs[rank]);
  if (kernel == Kernel::kZeroCopy) {
    kernels::zero_copy::ReduceScatterLocations locations{.num_blocks =
                                                             blocks_of(context, cuda::DeviceOperation::kReduceScatter)};
    for (size_t rank = 0; rank < arguments.inputs.size(); ++rank) {
      const ConstBuffer& input = arguments.inputs[rank];
      if (input.num_bytes != 0) locations.inputs[rank] = context.registrations.locate(input.data, input.num_bytes);
    }
    AXON_TRY(kernels::zero_copy::reduce_scatter(context.team, call, locations, context.stream));
    call.when = kernels::When::kIfFallback;
  }
  return kernels::ll128::reduce_scatter(context.team, call, context.stream);
}

// The kernel writes one array. Tensors that are not contiguous with each other are filled from scratch memory.
Status launch_ll_all_gather(const LaunchContext& context, const collectives::CollectiveArguments& arguments) {
  const std::span<const Buffer> outputs = arguments.outputs;
  const size_t num_bytes = outputs.front().num_bytes;
  bool is_array = true;
  for (size_t rank = 0; rank < outputs.size(); ++rank) {
    is_array = is_array && outputs[rank].data == outputs.front().data + rank * num_bytes;
  }
  std::optional<cuda::StreamMemory> scratch;
  if (!is_array) {
    Result<cuda::StreamMemory> taken = cuda::StreamMemory::allocate(outputs.size() * num_bytes, context.stream);
    if (!taken.ok()) return std::move(taken.status());
    scratch.emplace(std::move(taken).value());
  }
  std::byte* const gathered = is_array ? outputs.front().data : scratch->data();
  AXON_TRY(kernels::ll::all_gather(context.team,
                                   {.input = arguments.inputs[0].data,
                                    .output = gathered,
                                    .num_elements = num_bytes / size_of(arguments.dtype),
                                    .dtype = arguments.dtype,
                                    .beside = context.beside},
                                   context.stream));
  for (size_t rank = 0; !is_array && rank < outputs.size(); ++rank) {
    AXON_TRY(copy_async(outputs[rank].data, gathered + rank * num_bytes, num_bytes, context.stream));
  }
  return Status();
}

// Messages of one launch: the first of each link.
class MessageBatch {
 public:
  MessageBatch(const LaunchContext& context, const LocalTeam& ranks) : context_(context), ranks_(ranks) {}

  // Returns whether the message was taken; false if the batch already has one of its link.
  bool take(const engine::Operation& message) {
    const bool sends = message.direction == engine::Direction::kSend;
    const auto peer = static_cast<size_t>(ranks_.index_of(message.peer));
    const uint32_t bit = 1u << peer;
    uint32_t& links = sends ? call_.sends_to : call_.receives_from;
    if ((links & bit) != 0) return false;
    links |= bit;
    const KernelQuery query = query_of(message, context_.team.num_ranks);
    const bool is_zero_copy = select_kernel(query, context_.team.layout, context_.wanted) == Kernel::kZeroCopy;
    if (sends) {
      const ConstBuffer& tensor = message.arguments.inputs[0];
      call_.sends[peer] = to_send(tensor, message.tag);
      if (!is_zero_copy) return true;
      zero_copy_.sends_to |= bit;
      context_.registrations.expect_peers(tensor.data, tensor.num_bytes);
      return true;
    }
    const Buffer& tensor = message.arguments.outputs[0];
    call_.receives[peer] = to_receive(tensor, message.tag);
    if (!is_zero_copy) return true;
    zero_copy_.receives_from |= bit;
    zero_copy_.receives[peer] = context_.registrations.locate(tensor.data, tensor.num_bytes);
    return true;
  }

  Status launch() const {
    return kernels::zero_copy::exchange_messages(context_.team, call_, zero_copy_, context_.stream);
  }

 private:
  const LaunchContext& context_;
  const LocalTeam& ranks_;
  // Counted in bytes, since the messages of one launch may have different types.
  kernels::ExchangeCall call_{.traffic = cuda::TrafficClass::kPointToPoint,
                              .operation = cuda::DeviceOperation::kPointToPoint};
  kernels::zero_copy::MessageLocations zero_copy_;
};

}  // namespace

Status launch_collective(const LaunchContext& context, Kernel kernel, const engine::Operation& operation) {
  const collectives::CollectiveArguments& arguments = operation.arguments;
  if (kernel == Kernel::kLl) return launch_ll_all_gather(context, arguments);
  switch (arguments.kind) {
    case transport::OperationKind::kBroadcast:
      // Between two ranks, or over LL128 in one step, a broadcast is a message.
      if (context.team.num_ranks > 2 && kernel != Kernel::kLl128) return launch_broadcast(context, kernel, arguments);
      return launch_exchange(context, kernel, messages_of(context.team, arguments));
    case transport::OperationKind::kAllReduce:
    case transport::OperationKind::kReduce:
      return launch_reduction(context, kernel, operation);
    case transport::OperationKind::kReduceScatter:
      return launch_reduce_scatter(context, kernel, arguments);
    default:
      return launch_exchange(context, kernel, messages_of(context.team, arguments));
  }
}

Status launch_messages(const LaunchContext& context, const LocalTeam& ranks,
                       std::span<const engine::Operation* const> messages) {
  std::vector<const engine::Operation*> waiting(messages.begin(), messages.end());
  while (!waiting.empty()) {
    MessageBatch batch(context, ranks);
    std::erase_if(waiting, [&](const engine::Operation* message) { return batch.take(*message); });
    AXON_TRY(batch.launch());
  }
  return Status();
}

Status copy_own_shard(const collectives::CollectiveArguments& arguments, cuda::StreamView stream) {
  if (arguments.inputs.empty() || arguments.outputs.empty()) return Status();
  const ConstBuffer& input = arguments.inputs.front();
  const Buffer& output = arguments.outputs.front();
  if (input.data == output.data) return Status();
  return copy_async(output.data, input.data, output.num_bytes, stream);
}

}  // namespace axon::gpu_comm
