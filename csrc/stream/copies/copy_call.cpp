#include "stream/copies/copy_call.hpp"

#include <algorithm>
#include <limits>

#include "stream/messages.hpp"

namespace axon {

namespace {

// An array that its owners have in shards, one behind the other: of whole cache lines, but for the last.
class Shards {
 public:
  Shards(uint64_t num_bytes, int num_owners) noexcept : num_bytes_(num_bytes) {
    static constexpr uint64_t kLine = 128;
    const uint64_t lines_of_all = static_cast<uint64_t>(num_owners) * kLine;
    stride_ = (num_bytes + lines_of_all - 1) / lines_of_all * kLine;
  }

  uint64_t begin(int owner) const noexcept { return std::min(static_cast<uint64_t>(owner) * stride_, num_bytes_); }
  uint64_t num_bytes(int owner) const noexcept { return begin(owner + 1) - begin(owner); }

 private:
  uint64_t num_bytes_;
  uint64_t stride_;
};

// Adds messages to one rank's part of an operation.
class Builder {
 public:
  Builder(CopyCall& call, int rank) noexcept : call_(call), rank_(rank) {}

  bool is_own(int peer) const noexcept { return peer == rank_; }

  void send(uint32_t round, int peer, const void* source, uint64_t num_bytes) noexcept {
    const auto index = static_cast<size_t>(peer);
    call_.rounds[round].sends[index] = num_bytes;
    call_.sources[round][index] = static_cast<const std::byte*>(source);
    call_.longest = std::max(call_.longest, num_bytes);
  }

  void receive(uint32_t round, int peer, void* target, uint64_t num_bytes) noexcept {
    const auto index = static_cast<size_t>(peer);
    call_.rounds[round].receives[index] = num_bytes;
    call_.targets[round][index] = static_cast<std::byte*>(target);
    call_.longest = std::max(call_.longest, num_bytes);
  }

 private:
  CopyCall& call_;
  int rank_;
};

// What is taken out of the exchange is compared there all the same.
void take_messages(CopyCall& call, int own_rank, int num_ranks, MessageLimits limits) noexcept {
  Builder builder(call, own_rank);
  for (int rank = 0; rank < num_ranks; ++rank) {
    const auto index = static_cast<size_t>(rank);
    SendBlock& sent = call.meeting.sends[index];
    ReceiveBlock& received = call.meeting.receives[index];
    if (builder.is_own(rank)) {
      if (sent.data != received.data) {
        call.own = {.data = static_cast<const std::byte*>(sent.data),
                    .target = static_cast<std::byte*>(received.data),
                    .num_bytes = sent.num_bytes};
      }
      sent = {};
      received = {};
      continue;
    }
    if (limits.hold(sent.num_bytes)) {
      builder.send(0, rank, sent.data, sent.num_bytes);
      call.meeting.sends_apart[index] = sent.num_bytes;
      sent = {};
    }
    if (limits.hold(received.num_bytes)) {
      builder.receive(0, rank, received.data, received.num_bytes);
      call.meeting.receives_apart[index] = received.num_bytes;
      received = {};
    }
  }
}

LineExchange reduction_meeting(DeviceOperation operation, const CollectiveArguments& arguments,
                               uint64_t num_bytes) noexcept {
  return {.operation = operation, .dtype = arguments.dtype, .announced = num_bytes, .reduction = arguments.reduction};
}

CopyCall reduce_scatter_of(const CollectiveArguments& arguments, int own_rank) noexcept {
  CopyCall call;
  Builder builder(call, own_rank);
  const ConstBuffer& own = arguments.inputs[static_cast<size_t>(own_rank)];
  uint64_t num_bytes = 0;
  for (int rank = 0; rank < static_cast<int>(arguments.inputs.size()); ++rank) {
    const ConstBuffer& input = arguments.inputs[static_cast<size_t>(rank)];
    num_bytes += input.num_bytes;
    call.longest = std::max<uint64_t>(call.longest, input.num_bytes);
    if (builder.is_own(rank)) continue;
    builder.send(0, rank, input.data, input.num_bytes);
    builder.receive(0, rank, nullptr, own.num_bytes);
  }
  call.meeting = reduction_meeting(DeviceOperation::kReduceScatter, arguments, num_bytes);
  call.own = {.data = own.data, .num_bytes = own.num_bytes};
  call.fold = {
      .output = arguments.outputs[0].data, .reduction = arguments.reduction, .premul_factor = arguments.premul_factor};
  return call;
}

CopyCall all_reduce_of(const CollectiveArguments& arguments, int own_rank, int num_ranks) noexcept {
  CopyCall call;
  Builder builder(call, own_rank);
  const Buffer& tensor = arguments.outputs[0];
  const Shards shards(tensor.num_bytes, num_ranks);
  std::byte* const own = tensor.data + shards.begin(own_rank);
  const uint64_t own_bytes = shards.num_bytes(own_rank);
  call.longest = shards.num_bytes(0);
  for (int rank = 0; rank < num_ranks; ++rank) {
    if (builder.is_own(rank)) continue;
    std::byte* const theirs = tensor.data + shards.begin(rank);
    builder.send(0, rank, theirs, shards.num_bytes(rank));
    builder.receive(0, rank, nullptr, own_bytes);
    builder.send(1, rank, own, own_bytes);
    builder.receive(1, rank, theirs, shards.num_bytes(rank));
  }
  call.num_rounds = 2;
  call.meeting = reduction_meeting(DeviceOperation::kAllReduce, arguments, tensor.num_bytes);
  call.own = {.data = own, .num_bytes = own_bytes};
  call.fold = {.output = own, .reduction = arguments.reduction, .premul_factor = arguments.premul_factor};
  return call;
}

CopyCall broadcast_of(const CollectiveArguments& arguments, int own_rank, int num_ranks) noexcept {
  CopyCall call;
  Builder builder(call, own_rank);
  const Buffer& tensor = arguments.outputs[0];
  const int root = arguments.root;
  const Shards shards(tensor.num_bytes, num_ranks - 1);
  const auto owner = [&](int rank) { return rank < root ? rank : rank - 1; };
  call.longest = shards.num_bytes(0);
  for (int rank = 0; rank < num_ranks; ++rank) {
    if (rank == root) continue;
    std::byte* const shard = tensor.data + shards.begin(owner(rank));
    const uint64_t num_bytes = shards.num_bytes(owner(rank));
    if (own_rank == root) {
      builder.send(0, rank, shard, num_bytes);
    } else if (!builder.is_own(rank)) {
      builder.receive(1, rank, shard, num_bytes);
      builder.send(1, rank, tensor.data + shards.begin(owner(own_rank)), shards.num_bytes(owner(own_rank)));
    } else {
      builder.receive(0, root, shard, num_bytes);
    }
  }
  call.num_rounds = 2;
  call.meeting = {
      .operation = DeviceOperation::kBroadcast, .dtype = arguments.dtype, .root = root, .announced = tensor.num_bytes};
  return call;
}

}  // namespace

uint32_t rounds_of(OperationKind kind, int num_ranks) noexcept {
  return kind == OperationKind::kAllReduce || (kind == OperationKind::kBroadcast && num_ranks > 2) ? 2 : 1;
}

CopyCall copy_call_of(const Operation& operation, int rank, int num_ranks, MessageLimits of_all_to_all) {
  const CollectiveArguments& arguments = operation.arguments;
  if (arguments.kind == OperationKind::kReduceScatter) return reduce_scatter_of(arguments, rank);
  if (arguments.kind == OperationKind::kAllReduce) return all_reduce_of(arguments, rank, num_ranks);
  if (rounds_of(arguments.kind, num_ranks) == 2) return broadcast_of(arguments, rank, num_ranks);
  CopyCall call;
  call.meeting = messages_of(rank, num_ranks, arguments);
  static constexpr MessageLimits kAny{.least = 1, .most = std::numeric_limits<uint64_t>::max()};
  call.takes_turns = arguments.kind != OperationKind::kAllToAll;
  take_messages(call, rank, num_ranks, call.takes_turns ? kAny : of_all_to_all);
  return call;
}

}  // namespace axon
