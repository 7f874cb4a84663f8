// Plans of collectives in columns that only move data.
#include <utility>
#include <vector>

#include "gpu_comm/relay/column_plan.hpp"

namespace axon::gpu_comm {

using collectives::Range;
using collectives::rounded_to_granules;
using transport::OperationKind;

namespace {

// The ranks of the root's host get the tensor from the root, and send a part each to the other hosts.
class BroadcastPlan final : public ColumnPlan {
 public:
  BroadcastPlan(const engine::Operation& operation, DeviceGroup& group, const engine::Communicator& communicator)
      : ColumnPlan(operation, group, communicator),
        tensor_(arguments_.outputs[0]),
        is_root_here_(topology_.host_of(arguments_.root) == own_host()) {}

  size_t slot_bytes() const noexcept override {
    return rounded_to_granules(misalignment_of(tensor_.data) + carried(tensor_.num_bytes, 0, 0).length);
  }

  SlotBuffers buffers(size_t segment, std::byte* slot) const override {
    return {.kind = {}, .inputs = {}, .outputs = {{place(slot), own_part(tensor_.num_bytes, segment).length}}};
  }

  Status enqueue_start(cuda::StreamView stream) override {
    if (!is_root_here_) return Status();
    LocalCall call(operation_, OperationKind::kBroadcast);
    call.arguments.root = topology_.local_index_of(arguments_.root);
    return call.launch(group_, tensor_.num_bytes, {}, {&tensor_, 1}, stream);
  }

  Status prepare(size_t segment, std::byte* slot, Copies& to_slot, cuda::StreamView /*stream*/) override {
    const Range part = own_part(tensor_.num_bytes, segment);
    if (is_root_here_ && part.length != 0) to_slot.push_back({place(slot), tensor_.data + part.begin, part.length});
    return Status();
  }

  bool has_results(size_t /*segment*/) const noexcept override { return !is_root_here_; }

  Status finish(size_t segment, std::byte* slot, cuda::StreamView stream) override {
    return all_gather_locally(buffers(segment, slot).outputs[0], by_column(tensor_, segment), stream);
  }

 private:
  std::byte* place(std::byte* slot) const noexcept { return slot + misalignment_of(tensor_.data); }

  const Buffer tensor_;
  const bool is_root_here_;
};

class AllGatherPlan final : public ColumnPlan {
 public:
  AllGatherPlan(const engine::Operation& operation, DeviceGroup& group, const engine::Communicator& communicator)
      : ColumnPlan(operation, group, communicator), input_(arguments_.inputs[0]) {
    for (int host = 0; host < num_hosts(); ++host) {
      const size_t num_bytes = in_column(arguments_.outputs, host).num_bytes;
      const size_t misalignment = host == own_host() ? misalignment_of(input_.data) : 0;
      places_.push_back({slot_bytes_ + misalignment, num_bytes});
      slot_bytes_ += rounded_to_granules(misalignment + division_.longest_part(num_bytes));
    }
  }

  size_t slot_bytes() const noexcept override { return slot_bytes_; }

  SlotBuffers buffers(size_t segment, std::byte* slot) const override {
    SlotBuffers buffers;
    for (const Place& place : places_) {
      buffers.outputs.push_back({slot + place.offset, division_.part(place.shard_bytes, segment).length});
    }
    buffers.inputs.push_back(buffers.outputs[static_cast<size_t>(own_host())]);
    return buffers;
  }

  Status enqueue_start(cuda::StreamView stream) override {
    std::vector<Buffer> outputs;
    for (const int rank : topology_.ranks_on(own_host())) {
      outputs.push_back(arguments_.outputs[static_cast<size_t>(rank)]);
    }
    return all_gather_locally(input_, outputs, stream);
  }

  Status prepare(size_t segment, std::byte* slot, Copies& to_slot, cuda::StreamView /*stream*/) override {
    const Range part = division_.part(input_.num_bytes, segment);
    std::byte* const place = slot + places_[static_cast<size_t>(own_host())].offset;
    if (part.length != 0) to_slot.push_back({place, input_.data + part.begin, part.length});
    return Status();
  }

  Status finish(size_t segment, std::byte* slot, cuda::StreamView stream) override {
    const SlotBuffers received = buffers(segment, slot);
    for (int host = 0; host < num_hosts(); ++host) {
      if (host == own_host()) continue;
      AXON_TRY(all_gather_locally(received.outputs[static_cast<size_t>(host)],
                                  by_rank(arguments_.outputs, host, segment), stream));
    }
    return Status();
  }

 private:
  const ConstBuffer input_;
  std::vector<Place> places_;  // by host: of the shard of its rank in this column
  size_t slot_bytes_ = 0;
};

}  // namespace

std::unique_ptr<RelayPlan> make_broadcast_plan(const engine::Operation& operation, DeviceGroup& group,
                                               const engine::Communicator& communicator) {
  return std::make_unique<BroadcastPlan>(operation, group, communicator);
}

std::unique_ptr<RelayPlan> make_all_gather_plan(const engine::Operation& operation, DeviceGroup& group,
                                                const engine::Communicator& communicator) {
  return std::make_unique<AllGatherPlan>(operation, group, communicator);
}

}  // namespace axon::gpu_comm
