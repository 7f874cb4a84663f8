// Runs hierarchical algorithms. A stage is an existing algorithm on the ranks of this host, or on one rank of each
// host. Segments of the tensors pass through the stages side by side.
//
//   Task<Status> reduce_segment(const Hierarchy& hosts, Segment segment) {
//     AXON_CO_TRY(co_await run_stage(hosts.local(2 * segment.index), …));     // all ranks of this host
//     if (hosts.has_column()) AXON_CO_TRY(co_await run_stage(hosts.column(2 * segment.index), …));
//     co_return co_await run_stage(hosts.local(2 * segment.index + 1), …);
//   }
//   const Hierarchy hosts(view, arguments);
//   co_return co_await run_segments(hosts, tensor.num_bytes, reduce_segment);
//
// While one segment crosses the network, others are combined within the hosts. A stage's algorithm comes from the
// tuning table, for the number of its ranks and bytes. docs/adr/0042-compose-hierarchical-collectives-of-views.md has
// the reasons. Owned by the algorithm's coroutine, and borrowed by its stages; progress owner only.
#pragma once

#include "collectives/collective.hpp"
#include "collectives/patterns.hpp"

namespace axon::collectives {

class Hierarchy {
 public:
  // `view` is one of all ranks. Both must outlive this object.
  Hierarchy(messaging::View& view, const CollectiveArguments& arguments) noexcept;

  const CollectiveArguments& arguments() const noexcept { return arguments_; }
  const messaging::Topology& topology() const noexcept { return topology_; }
  SizeClassPool& size_class_pool() const noexcept { return view_.size_class_pool(); }
  messaging::View everyone() const noexcept { return view_; }

  int rank() const noexcept { return view_.rank(); }
  int num_hosts() const noexcept { return topology_.num_hosts(); }
  int host() const noexcept { return topology_.host_of(rank()); }
  std::span<const int> local_ranks() const noexcept { return topology_.ranks_on(host()); }
  int num_local() const noexcept { return static_cast<int>(local_ranks().size()); }
  int local_index() const noexcept { return topology_.local_index_of(rank()); }
  int num_columns() const noexcept { return topology_.num_columns(); }
  // Returns whether this rank is in a column. On hosts with more ranks than the smallest one, some are not.
  bool has_column() const noexcept { return local_index() < num_columns(); }

  // Column c carries the shards of the ranks with local indices c, c + num_columns(), …, one of each host per round.
  // Returns the rank whose shard it is; −1 if the host has no such rank.
  int carried(int host, int column, int round) const noexcept;
  int num_rounds() const noexcept { return (topology_.largest_host() + num_columns() - 1) / num_columns(); }

  // The ranks of this host. Stages of an operation that share ranks need different numbers.
  messaging::View local(size_t stage) const noexcept;
  // The ranks with this rank's local index, one on each host.
  messaging::View column(size_t stage) const noexcept { return across(stage, topology_.column(local_index())); }
  // Returns the length of the segments of an operation on `num_bytes`, the last one of which may be shorter.
  size_t segment_bytes_of(size_t num_bytes) const noexcept;

  // These ranks, one on each host, by host; one of them is this rank.
  messaging::View across(size_t stage, std::span<const int> ranks) const noexcept;

 private:
  size_t longest_segment() const noexcept;
  uint32_t first_slot_of(size_t stage) const noexcept;

  messaging::View& view_;
  const CollectiveArguments& arguments_;
  const messaging::Topology& topology_;
};

// Runs arguments.kind on the ranks of the view, with the algorithm that the tuning table has for them.
Task<Status> run_stage(messaging::View view, CollectiveArguments arguments);

// A segment consists of one part of each tensor or shard.
struct Segment {
  size_t index;
  size_t num_segments;

  template <typename Shard>
  Shard of(Shard shard) const noexcept {
    return slice(shard, Partition(shard.num_bytes, static_cast<int>(num_segments))[static_cast<int>(index)]);
  }
};

// Divides `num_bytes` into segments, at least one, and runs a few at a time.
using SegmentRunner = Task<Status> (*)(const Hierarchy& hosts, Segment segment);
Task<Status> run_segments(const Hierarchy& hosts, size_t num_bytes, SegmentRunner run);

}  // namespace axon::collectives
