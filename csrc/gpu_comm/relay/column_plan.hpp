// The common base of the plans of collectives in columns (column_plans.hpp). Tensors are divided into segments, and
// segments into the parts of columns. Within a host there are stages by kernels, and between hosts there may be a sum.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "engine/communicator.hpp"
#include "engine/device_segments.hpp"
#include "gpu_comm/device_group.hpp"
#include "gpu_comm/relay/division.hpp"
#include "gpu_comm/relay/local_call.hpp"
#include "gpu_comm/relay/plan.hpp"

namespace axon::gpu_comm {

// Lets a stage within a host reduce. An average is one over all ranks of the group.
void set_reduction(LocalCall& call, const engine::Operation& operation, int num_ranks) noexcept;

// Returns the reduction of what the hosts contribute. With one rank on each host there is one level.
Reduction between_hosts(const collectives::CollectiveArguments& arguments,
                        const messaging::Topology& topology) noexcept;

// Its arguments are those of the user's call, and are used within that call only.
class ColumnPlan : public RelayPlan {
 public:
  ColumnPlan(const engine::Operation& operation, DeviceGroup& group, const engine::Communicator& communicator) noexcept;

  size_t num_segments() const noexcept override { return division_.num_parts(); }
  size_t num_slots() const noexcept override {
    return std::min(engine::DeviceSegments::kMostSlots, division_.num_parts());
  }
  std::chrono::nanoseconds longest_wait() const noexcept override { return longest_wait_; }
  bool has_results(size_t /*segment*/) const noexcept override { return true; }
  void add_results(size_t /*segment*/, std::byte* /*slot*/, Copies& /*from_slot*/) override {}

 protected:
  // The place in a slot of the part of a shard, which has `shard_bytes` in all.
  struct Place {
    size_t offset;
    size_t shard_bytes;
  };

  int num_hosts() const noexcept { return topology_.num_hosts(); }
  int own_host() const noexcept { return topology_.host_of(rank_); }
  int num_local() const noexcept { return group_.num_local(); }
  int local_index() const noexcept { return topology_.local_index_of(rank_); }

  // Returns what a column carries of a tensor's segment.
  collectives::Range carried(size_t tensor_bytes, size_t segment, int column) const noexcept {
    return division_.column(column, topology_.num_columns()).part(tensor_bytes, segment);
  }
  collectives::Range own_part(size_t tensor_bytes, size_t segment) const noexcept {
    return carried(tensor_bytes, segment, local_index());
  }

  // By local index: what each rank's column carries of a tensor's segment.
  template <typename Tensor>
  std::vector<Tensor> by_column(const Tensor& tensor, size_t segment) const {
    std::vector<Tensor> parts;
    for (int column = 0; column < num_local(); ++column) {
      parts.push_back(slice(tensor, carried(tensor.num_bytes, segment, column)));
    }
    return parts;
  }

  // By local index: the segments of the shards of a host's ranks.
  template <typename Shard>
  std::vector<Shard> by_rank(std::span<const Shard> shards, int host, size_t segment) const {
    std::vector<Shard> parts;
    for (const int rank : topology_.ranks_on(host)) {
      const Shard& shard = shards[static_cast<size_t>(rank)];
      parts.push_back(slice(shard, division_.part(shard.num_bytes, segment)));
    }
    return parts;
  }

  // Returns the shard of the rank of this column on the host.
  template <typename Shard>
  const Shard& in_column(std::span<const Shard> shards, int host) const noexcept {
    return shards[static_cast<size_t>(topology_.ranks_on(host)[static_cast<size_t>(local_index())])];
  }

  template <typename Shard>
  static size_t total_of(const std::vector<Shard>& shards) noexcept {
    return collectives::total_of(std::span<const Shard>(shards));
  }

  // Each rank of the host gets the sum of its part.
  Status reduce_scatter_locally(const std::vector<ConstBuffer>& parts, Buffer output, cuda::StreamView stream);
  // Each rank of the host gets the inputs of all.
  Status all_gather_locally(ConstBuffer input, const std::vector<Buffer>& outputs, cuda::StreamView stream);
  // Adds up what the hosts have sent for this rank's share, in their order. `own` is what this host contributes.
  Status sum(const std::byte* received, size_t stride, ConstBuffer own, std::byte* output, cuda::StreamView stream);

  const engine::Operation& operation_;
  const collectives::CollectiveArguments& arguments_;
  DeviceGroup& group_;
  const messaging::Topology& topology_;
  const int rank_;
  const std::chrono::nanoseconds longest_wait_;
  const Division division_;
};

// The plan of each collective.
std::unique_ptr<RelayPlan> make_all_reduce_plan(const engine::Operation& operation, DeviceGroup& group,
                                                const engine::Communicator& communicator);
std::unique_ptr<RelayPlan> make_short_all_reduce_plan(const engine::Operation& operation, DeviceGroup& group,
                                                      const engine::Communicator& communicator);
std::unique_ptr<RelayPlan> make_reduce_scatter_plan(const engine::Operation& operation, DeviceGroup& group,
                                                    const engine::Communicator& communicator);
std::unique_ptr<RelayPlan> make_broadcast_plan(const engine::Operation& operation, DeviceGroup& group,
                                               const engine::Communicator& communicator);
std::unique_ptr<RelayPlan> make_all_gather_plan(const engine::Operation& operation, DeviceGroup& group,
                                                const engine::Communicator& communicator);

}  // namespace axon::gpu_comm
