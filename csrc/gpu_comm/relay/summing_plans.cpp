// Plans of reductions in columns.
#include <utility>
#include <vector>

#include "gpu_comm/relay/column_plan.hpp"
#include "gpu_comm/relay/two_step_order.hpp"

namespace axon::gpu_comm {

using collectives::Partition;
using collectives::Range;
using collectives::rounded_to_granules;
using transport::OperationKind;

namespace {

// Each part of the tensor passes through a slot twice. First each host sends every other host its contribution to that
// host's share, and a kernel adds up those to the own share. Then the hosts send each other their sums.
class AllReducePlan final : public ColumnPlan {
 public:
  AllReducePlan(const engine::Operation& operation, DeviceGroup& group, const engine::Communicator& communicator)
      : ColumnPlan(operation, group, communicator),
        tensor_(arguments_.outputs[0]),
        order_(division_.num_parts(), num_slots()) {
    const size_t longest_part = carried(tensor_.num_bytes, 0, 0).length;
    stride_ = rounded_to_granules(Partition(longest_part, num_hosts())[0].length);
    received_ = rounded_to_granules(misalignment_of(tensor_.data) + longest_part);
  }

  size_t num_segments() const noexcept override { return order_.count(); }
  size_t slot_bytes() const noexcept override { return received_ + static_cast<size_t>(num_hosts()) * stride_; }

  SlotBuffers buffers(size_t position, std::byte* slot) const override {
    const TwoStepOrder::Step step = order_[position];
    SlotBuffers buffers;
    buffers.kind = step.is_second ? OperationKind::kAllGather : OperationKind::kAllToAll;
    const Range own = share(step.segment, own_host());
    for (int host = 0; host < num_hosts(); ++host) {
      const bool is_own = host == own_host();
      const Range part = share(step.segment, host);
      const Buffer in_tensors_order{place(slot, step.segment, part), part.length};
      if (step.is_second) {
        buffers.outputs.push_back(in_tensors_order);
        if (is_own) buffers.inputs.push_back(in_tensors_order);
      } else {
        buffers.inputs.push_back(is_own ? ConstBuffer() : in_tensors_order);
        buffers.outputs.push_back(
            {slot + received_ + static_cast<size_t>(host) * stride_, is_own ? size_t{0} : own.length});
      }
    }
    return buffers;
  }

  Status prepare(size_t position, std::byte* slot, Copies& to_slot, cuda::StreamView stream) override {
    const TwoStepOrder::Step step = order_[position];
    if (!step.is_second && num_local() > 1) {
      const std::vector<Buffer> parts = by_column(tensor_, step.segment);
      const std::vector<ConstBuffer> inputs(parts.begin(), parts.end());
      AXON_TRY(reduce_scatter_locally(inputs, parts[static_cast<size_t>(local_index())], stream));
    }
    for (int host = 0; host < num_hosts(); ++host) {
      const Range part = share(step.segment, host);
      if ((host == own_host()) != step.is_second || part.length == 0) continue;
      to_slot.push_back({place(slot, step.segment, part), tensor_.data + part.begin, part.length});
    }
    return Status();
  }

  void add_results(size_t position, std::byte* slot, Copies& from_slot) override {
    const TwoStepOrder::Step step = order_[position];
    for (int host = 0; host < num_hosts() && step.is_second; ++host) {
      const Range part = share(step.segment, host);
      if (host == own_host() || part.length == 0) continue;
      from_slot.push_back({tensor_.data + part.begin, place(slot, step.segment, part), part.length});
    }
  }

  Status finish(size_t position, std::byte* slot, cuda::StreamView stream) override {
    const TwoStepOrder::Step step = order_[position];
    if (!step.is_second) {
      const Buffer own = slice(tensor_, share(step.segment, own_host()));
      return sum(slot + received_, stride_, own, own.data, stream);
    }
    if (num_local() == 1) return Status();
    const std::vector<Buffer> parts = by_column(tensor_, step.segment);
    return all_gather_locally(parts[static_cast<size_t>(local_index())], parts, stream);
  }

 private:
  // Returns what the host adds up of this column's part of a segment, in the tensor.
  Range share(size_t segment, int host) const noexcept {
    const Range own = own_part(tensor_.num_bytes, segment);
    const Range share = Partition(own.length, num_hosts())[host];
    return {own.begin + share.begin, share.length};
  }

  // The parts lie in the slot as in the tensor.
  std::byte* place(std::byte* slot, size_t segment, Range part) const noexcept {
    return slot + misalignment_of(tensor_.data) + (part.begin - own_part(tensor_.num_bytes, segment).begin);
  }

  const Buffer tensor_;
  const TwoStepOrder order_;
  size_t stride_ = 0;    // of the received contributions in a slot
  size_t received_ = 0;  // their offset
};

// Each host adds up its contribution to the shards of the other hosts' ranks, which gets to them over the column.
class ReduceScatterPlan final : public ColumnPlan {
 public:
  ReduceScatterPlan(const engine::Operation& operation, DeviceGroup& group, const engine::Communicator& communicator)
      : ColumnPlan(operation, group, communicator), output_(arguments_.outputs[0]) {
    for (int host = 0; host < num_hosts(); ++host) {
      const ConstBuffer& shard = in_column(arguments_.inputs, host);
      const size_t misalignment = num_local() > 1 ? 0 : misalignment_of(shard.data);
      places_.push_back({received_ + misalignment, shard.num_bytes});
      received_ += rounded_to_granules(misalignment + division_.longest_part(shard.num_bytes));
    }
    stride_ = rounded_to_granules(division_.longest_part(output_.num_bytes));
  }

  size_t slot_bytes() const noexcept override { return received_ + static_cast<size_t>(num_hosts()) * stride_; }

  SlotBuffers buffers(size_t segment, std::byte* slot) const override {
    SlotBuffers buffers;
    buffers.kind = OperationKind::kAllToAll;
    for (int host = 0; host < num_hosts(); ++host) {
      const bool is_own = host == own_host();
      const auto index = static_cast<size_t>(host);
      const size_t length = division_.part(places_[index].shard_bytes, segment).length;
      const size_t own_length = division_.part(output_.num_bytes, segment).length;
      buffers.inputs.push_back({slot + places_[index].offset, is_own ? size_t{0} : length});
      buffers.outputs.push_back({slot + received_ + index * stride_, is_own ? size_t{0} : own_length});
    }
    return buffers;
  }

  Status prepare(size_t segment, std::byte* slot, Copies& to_slot, cuda::StreamView stream) override {
    for (int host = 0; host < num_hosts(); ++host) {
      std::byte* const place = slot + places_[static_cast<size_t>(host)].offset;
      const std::vector<ConstBuffer> parts = by_rank(arguments_.inputs, host, segment);
      const ConstBuffer& own = parts[static_cast<size_t>(local_index())];
      const bool is_own_host = host == own_host();
      if (num_local() > 1) {
        const Buffer sum{is_own_host ? output_part(segment).data : place, own.num_bytes};
        AXON_TRY(reduce_scatter_locally(parts, sum, stream));
      } else if (!is_own_host && own.num_bytes != 0) {
        to_slot.push_back({place, own.data, own.num_bytes});
      }
    }
    return Status();
  }

  Status finish(size_t segment, std::byte* slot, cuda::StreamView stream) override {
    const Buffer output = output_part(segment);
    const ConstBuffer own = num_local() > 1
                                ? ConstBuffer(output)
                                : by_rank(arguments_.inputs, own_host(), segment)[static_cast<size_t>(local_index())];
    return sum(slot + received_, stride_, own, output.data, stream);
  }

 private:
  Buffer output_part(size_t segment) const noexcept {
    return slice(output_, division_.part(output_.num_bytes, segment));
  }

  const Buffer output_;
  std::vector<Place> places_;  // by host: of the contribution to its shard
  size_t received_ = 0;        // the offset of the contributions to the own shard
  size_t stride_ = 0;
};

// A short tensor: each column reduces all of it, on the hosts.
class ShortAllReducePlan final : public ColumnPlan {
 public:
  ShortAllReducePlan(const engine::Operation& operation, DeviceGroup& group, const engine::Communicator& communicator)
      : ColumnPlan(operation, group, communicator), tensor_(arguments_.outputs[0]) {}

  size_t slot_bytes() const noexcept override {
    return rounded_to_granules(misalignment_of(tensor_.data) + tensor_.num_bytes);
  }

  SlotBuffers buffers(size_t /*segment*/, std::byte* slot) const override {
    return {.kind = {}, .inputs = {}, .outputs = {{place(slot), tensor_.num_bytes}}};
  }

  Status prepare(size_t /*segment*/, std::byte* slot, Copies& to_slot, cuda::StreamView stream) override {
    LocalCall call(operation_, OperationKind::kAllReduce);
    set_reduction(call, operation_, topology_.num_ranks());
    to_slot.push_back({place(slot), tensor_.data, tensor_.num_bytes});
    return call.launch(group_, tensor_.num_bytes, {}, {&tensor_, 1}, stream);
  }

  void add_results(size_t /*segment*/, std::byte* slot, Copies& from_slot) override {
    from_slot.push_back({tensor_.data, place(slot), tensor_.num_bytes});
  }

 private:
  std::byte* place(std::byte* slot) const noexcept { return slot + misalignment_of(tensor_.data); }

  const Buffer tensor_;
};

}  // namespace

std::unique_ptr<RelayPlan> make_all_reduce_plan(const engine::Operation& operation, DeviceGroup& group,
                                                const engine::Communicator& communicator) {
  return std::make_unique<AllReducePlan>(operation, group, communicator);
}

std::unique_ptr<RelayPlan> make_reduce_scatter_plan(const engine::Operation& operation, DeviceGroup& group,
                                                    const engine::Communicator& communicator) {
  return std::make_unique<ReduceScatterPlan>(operation, group, communicator);
}

std::unique_ptr<RelayPlan> make_short_all_reduce_plan(const engine::Operation& operation, DeviceGroup& group,
                                                      const engine::Communicator& communicator) {
  return std::make_unique<ShortAllReducePlan>(operation, group, communicator);
}

}  // namespace axon::gpu_comm
