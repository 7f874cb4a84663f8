#include "gpu_comm/relay/direct_plan.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include "cuda/memory.hpp"
#include "engine/device_segments.hpp"
#include "engine/segmented_exchange.hpp"

namespace axon::gpu_comm {

using transport::OperationKind;

// Long segments travel at the full speed of the network. But nothing hides the copies of the first and the last one, so
// a tensor of medium length is divided into a few. Between two namespaces, an all_reduce of 16 MiB took 3.8 to 3.9 ms
// with segments of 2 or 4 MiB, and 4.1 ms with segments of 8 MiB.
static constexpr size_t kShortestSegment = size_t{2} << 20;
static constexpr size_t kLongestSegment = size_t{8} << 20;
static constexpr size_t kSegmentsWanted = 4;
// Very long tensors have longer segments: each takes several launches, which would fill CUDA's queue and block the
// host.
static constexpr size_t kMostSegments = 64;

// Returns the bytes of the operation on all ranks together, as far as all ranks know them.
static size_t total_bytes(const engine::Operation& operation, int num_ranks) noexcept {
  const OperationKind kind = operation.arguments.kind;
  const size_t num_bytes = operation.num_elements * size_of(operation.arguments.dtype);
  const bool counts_one_shard = kind == OperationKind::kGather || kind == OperationKind::kScatter;
  return counts_one_shard ? num_bytes * static_cast<size_t>(num_ranks) : num_bytes;
}

static size_t count_parts(size_t num_bytes, size_t part_bytes) noexcept {
  return collectives::Chunks(num_bytes, part_bytes).count();
}

// The sizes of an all_to_all are known to pairs of ranks only, so their messages have parts of a fixed length.
static Division division_of_all_to_all(const collectives::CollectiveArguments& arguments, int num_ranks) noexcept {
  static constexpr size_t kShortestPart = size_t{256} << 10;
  const size_t part_bytes =
      std::max(kShortestPart, collectives::rounded_to_granules(kLongestSegment / static_cast<size_t>(num_ranks)));
  const size_t longest =
      std::max(collectives::longest_of(arguments.inputs), collectives::longest_of(arguments.outputs));
  return Division::of_length(part_bytes, count_parts(longest, part_bytes));
}

Division division_of(const engine::Operation& operation, int num_ranks, int num_columns) noexcept {
  const collectives::CollectiveArguments& arguments = operation.arguments;
  if (arguments.kind == OperationKind::kPointToPoint) {
    const size_t num_bytes = operation.direction == engine::Direction::kSend ? arguments.inputs[0].num_bytes
                                                                             : arguments.outputs[0].num_bytes;
    return Division::of_length(engine::SegmentedExchange::segment_bytes(num_bytes),
                               engine::SegmentedExchange::count_segments(num_bytes));
  }
  if (arguments.kind == OperationKind::kAllToAll) return division_of_all_to_all(arguments, num_ranks);
  const size_t num_bytes = total_bytes(operation, num_ranks);
  const auto columns = static_cast<size_t>(num_columns);
  const size_t segment_bytes =
      std::max(std::clamp(num_bytes / kSegmentsWanted, columns * kShortestSegment, columns * kLongestSegment),
               (num_bytes + kMostSegments - 1) / kMostSegments);
  return Division::into(count_parts(num_bytes, segment_bytes));
}

std::chrono::nanoseconds longest_wait_of(std::chrono::milliseconds timeout) noexcept {
  // Enough to ask the other ranks why the operation is overdue.
  static constexpr std::chrono::seconds kGracePeriod{30};
  static constexpr std::chrono::hours kLongestTimeout{24 * 365};  // longer ones would overflow
  return std::min<std::chrono::milliseconds>(timeout, kLongestTimeout) + kGracePeriod;
}

namespace {

// One of the operation's shards on the device.
struct Shard {
  std::byte* data = nullptr;
  size_t num_bytes = 0;
  bool is_read = false;     // copied to the slot before the engine runs
  bool is_written = false;  // copied from the slot after it
  int shares_with = -1;     // outputs: the input whose place in the slot it may share
  size_t offset = 0;        // in the slot
};

class DirectPlan final : public RelayPlan {
 public:
  DirectPlan(const engine::Operation& operation, int rank, int num_ranks)
      : division_(division_of(operation, num_ranks)), longest_wait_(longest_wait_of(operation.timeout)) {
    const collectives::CollectiveArguments& arguments = operation.arguments;
    for (const ConstBuffer& input : arguments.inputs) {
      inputs_.push_back({.data = const_cast<std::byte*>(input.data), .num_bytes = input.num_bytes, .is_read = true});
    }
    for (const Buffer& output : arguments.outputs) {
      outputs_.push_back({.data = output.data, .num_bytes = output.num_bytes, .is_written = true});
    }
    choose_copies(operation, rank);
    lay_out();
  }

  size_t num_segments() const noexcept override { return division_.num_parts(); }
  size_t num_slots() const noexcept override { return std::min(engine::DeviceSegments::kMostSlots, num_segments()); }
  size_t slot_bytes() const noexcept override { return slot_bytes_; }
  bool only_receives() const noexcept override { return only_receives_; }
  std::chrono::nanoseconds longest_wait() const noexcept override { return longest_wait_; }

  SlotBuffers buffers(size_t segment, std::byte* slot) const override {
    SlotBuffers buffers;
    for (const Shard& input : inputs_) buffers.inputs.push_back(place_of(input, segment, slot));
    for (const Shard& output : outputs_) buffers.outputs.push_back(place_of(output, segment, slot));
    return buffers;
  }

  Status enqueue_start(cuda::StreamView stream) override {
    if (!own_copy_) return Status();
    const auto [output, input] = *own_copy_;
    return copy_async(output.data, input.data, input.num_bytes, stream);
  }

  Status prepare(size_t segment, std::byte* slot, Copies& to_slot, cuda::StreamView /*stream*/) override {
    for (const auto* shards : {&inputs_, &outputs_}) {
      for (const Shard& shard : *shards) {
        const collectives::Range part = division_.part(shard.num_bytes, segment);
        if (!shard.is_read || part.length == 0) continue;
        to_slot.push_back({slot + shard.offset, shard.data + part.begin, part.length});
      }
    }
    return Status();
  }

  bool has_results(size_t /*segment*/) const noexcept override {
    return std::ranges::any_of(outputs_, &Shard::is_written);
  }

  void add_results(size_t segment, std::byte* slot, Copies& from_slot) override {
    for (const Shard& shard : outputs_) {
      const collectives::Range part = division_.part(shard.num_bytes, segment);
      if (!shard.is_written || part.length == 0) continue;
      from_slot.push_back({shard.data + part.begin, slot + shard.offset, part.length});
    }
  }

 private:
  void choose_copies(const engine::Operation& operation, int rank) {
    const auto own = static_cast<size_t>(rank);
    const bool is_root = operation.arguments.root == rank;
    switch (operation.arguments.kind) {
      case OperationKind::kAllReduce:
        outputs_[0].is_read = true;
        break;
      case OperationKind::kBroadcast:
        outputs_[0].is_read = is_root;
        outputs_[0].is_written = !is_root;
        only_receives_ = !is_root;
        break;
      case OperationKind::kReduce:
        outputs_[0].is_written = is_root;
        outputs_[0].shares_with = 0;
        break;
      case OperationKind::kReduceScatter:
        outputs_[0].shares_with = rank;
        break;
      case OperationKind::kAllGather:
        keep_own_shard_on_device(inputs_[0], 0, outputs_[own]);
        break;
      case OperationKind::kGather:
        if (is_root) keep_own_shard_on_device(inputs_[0], 0, outputs_[own]);
        break;
      case OperationKind::kScatter:
        if (is_root) keep_own_shard_on_device(inputs_[own], rank, outputs_[0]);
        only_receives_ = !is_root;
        break;
      case OperationKind::kAllToAll:
        inputs_[own].is_read = false;
        keep_own_shard_on_device(inputs_[own], rank, outputs_[own]);
        break;
      case OperationKind::kPointToPoint:
        only_receives_ = operation.direction == engine::Direction::kReceive;
        break;
      default:
        break;
    }
  }

  // The own shard of an operation that only moves data goes from tensor to tensor.
  void keep_own_shard_on_device(const Shard& input, int index, Shard& output) {
    output.is_written = false;
    output.shares_with = index;
    if (output.data == input.data) return;
    own_copy_ = {Buffer{output.data, output.num_bytes}, ConstBuffer{input.data, input.num_bytes}};
  }

  void lay_out() {
    size_t end = 0;
    const auto place = [&](Shard& shard) {
      shard.offset = rounded(end) + misalignment_of(shard.data);
      end = shard.offset + division_.longest_part(shard.num_bytes);
    };
    for (Shard& input : inputs_) place(input);
    for (Shard& output : outputs_) {
      const Shard* const shared = output.shares_with < 0 ? nullptr : &inputs_[static_cast<size_t>(output.shares_with)];
      const bool can_share =
          shared != nullptr && (!output.is_written || misalignment_of(output.data) == misalignment_of(shared->data));
      if (can_share) {
        output.offset = shared->offset;
      } else {
        place(output);
      }
    }
    slot_bytes_ = rounded(end);
  }

  static size_t rounded(size_t num_bytes) noexcept {
    return num_bytes == 0 ? 0 : collectives::rounded_to_granules(num_bytes);
  }

  Buffer place_of(const Shard& shard, size_t segment, std::byte* slot) const noexcept {
    return {slot + shard.offset, division_.part(shard.num_bytes, segment).length};
  }

  const Division division_;
  const std::chrono::nanoseconds longest_wait_;
  std::vector<Shard> inputs_;
  std::vector<Shard> outputs_;
  std::optional<std::pair<Buffer, ConstBuffer>> own_copy_;
  size_t slot_bytes_ = 0;
  bool only_receives_ = false;
};

}  // namespace

std::unique_ptr<RelayPlan> direct_plan(const engine::Operation& operation, int rank, int num_ranks) {
  return std::make_unique<DirectPlan>(operation, rank, num_ranks);
}

}  // namespace axon::gpu_comm
