#include "collectives/hierarchy.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "collectives/algorithms.hpp"
#include "collectives/selector.hpp"

namespace axon::collectives {

// At 1 Gbit/s, an all_reduce of 64 MiB between 2 × 2 ranks needs at least 537 ms. It takes 641 ms with segments of
// 4 MiB, and 570 to 596 ms with segments of 1 or 2 MiB, in two lanes or four.
static constexpr size_t kSegmentBytes = size_t{1} << 20;
// With more ranks, segments are longer, so that messages between them do not become short.
static constexpr size_t kSegmentBytesPerRank = size_t{64} << 10;
static constexpr size_t kNumLanes = 3;
// Rails carry long messages only, which need long segments. Between 2 × 2 ranks on 32 cores, segments
// of 2, 4, 8 and 16 MiB were compared. An all_reduce of 128 MiB took 93, 49, 51 and 62 ms, and an all_gather 39, 31, 26
// and 30 ms (one run).
// In groups of more than kMostRanksWithRailSegments, long segments would take too much scratch memory.
static constexpr size_t kRailSegmentBytes = size_t{8} << 20;
static constexpr size_t kRailSegmentBytesPerRank = size_t{1} << 20;
static constexpr size_t kMostRanksWithRailSegments = 16;

Hierarchy::Hierarchy(messaging::View& view, const CollectiveArguments& arguments) noexcept
    : view_(view), arguments_(arguments), topology_(view.exchange().topology()) {}

static size_t short_segment(size_t num_ranks) noexcept {
  return std::max(kSegmentBytes, kSegmentBytesPerRank * num_ranks);
}

size_t Hierarchy::longest_segment() const noexcept {
  const auto num_ranks = static_cast<size_t>(view_.size());
  const bool takes_rails = view_.has_rails() && num_ranks <= kMostRanksWithRailSegments;
  return takes_rails ? std::max(kRailSegmentBytes, kRailSegmentBytesPerRank * num_ranks) : short_segment(num_ranks);
}

// Tensors that would not fill two long segments are divided into short ones, which overlap.
size_t Hierarchy::segment_bytes_of(size_t num_bytes) const noexcept {
  const size_t longest = longest_segment();
  return num_bytes >= 2 * longest ? longest : short_segment(static_cast<size_t>(view_.size()));
}

// No stage uses more slots: two per chunk of 60 KiB, and in rings four per rank. Exact algorithms double the bytes. An
// operation with more than 2^32 slots uses them again, which in the largest groups are at least 20 GiB apart.
uint32_t Hierarchy::first_slot_of(size_t stage) const noexcept {
  static constexpr size_t kSmallestChunk = size_t{60} << 10;
  static constexpr size_t kSlotsForRounding = 64;
  const auto num_ranks = static_cast<size_t>(view_.size());
  const size_t most_chunks = 2 * longest_segment() / kSmallestChunk;
  return view_.first_slot() + static_cast<uint32_t>(stage * (2 * most_chunks + 4 * num_ranks + kSlotsForRounding));
}

messaging::View Hierarchy::local(size_t stage) const noexcept {
  return {view_.exchange(),
          {.ranks = local_ranks(), .rank = local_index(), .first_slot = first_slot_of(stage), .on_one_host = true}};
}

messaging::View Hierarchy::across(size_t stage, std::span<const int> ranks) const noexcept {
  return {view_.exchange(),
          {.ranks = ranks, .rank = host(), .first_slot = first_slot_of(stage), .on_one_host = num_hosts() == 1}};
}

int Hierarchy::carried(int host, int column, int round) const noexcept {
  const std::span<const int> ranks = topology_.ranks_on(host);
  const auto local_index = static_cast<size_t>(round * num_columns() + column);
  return local_index < ranks.size() ? ranks[local_index] : -1;
}

static size_t selecting_bytes(const CollectiveArguments& arguments) noexcept {
  switch (arguments.kind) {
    case transport::OperationKind::kReduce:
    case transport::OperationKind::kReduceScatter:
      return total_of(arguments.inputs);
    case transport::OperationKind::kBroadcast:
    case transport::OperationKind::kAllReduce:
    case transport::OperationKind::kAllGather:
      return total_of(arguments.outputs);
    default:
      return 0;
  }
}

// The slots of a ring grow with the number of ranks times the longest shard. Where shards may be uneven, a stage
// therefore takes the algorithms of groups that are too small for rings.
static int selecting_ranks(const messaging::View& view, transport::OperationKind kind) noexcept {
  static constexpr int kMostWithoutRings = 32;
  const bool has_shards =
      kind == transport::OperationKind::kAllGather || kind == transport::OperationKind::kReduceScatter;
  return has_shards ? std::min(view.size(), kMostWithoutRings) : view.size();
}

// The algorithm of an all_to_all is for all ranks of a group.
Task<Status> run_stage(messaging::View view, CollectiveArguments arguments) {
  if (arguments.kind == transport::OperationKind::kAllToAll) co_return co_await all_to_all::direct(view, arguments);
  const int num_ranks = selecting_ranks(view, arguments.kind);
  const GroupShape shape{.num_ranks = num_ranks, .num_hosts = view.on_one_host() ? 1 : num_ranks};
  const Algorithm algorithm = select(arguments.kind, shape, selecting_bytes(arguments), {}).algorithm;
  AXON_CO_TRY(co_await algorithm(view, arguments));
  view.release_scratch();
  co_return Status();
}

static Task<Status> run_lane(const Hierarchy& hosts, Segment segment, SegmentRunner run) {
  for (; segment.index < segment.num_segments; segment.index += kNumLanes) AXON_CO_TRY(co_await run(hosts, segment));
  co_return Status();
}

Task<Status> run_segments(const Hierarchy& hosts, size_t num_bytes, SegmentRunner run) {
  const size_t num_segments = Chunks(num_bytes, hosts.segment_bytes_of(num_bytes)).count();
  if (num_segments == 1) co_return co_await run(hosts, {.index = 0, .num_segments = 1});
  std::array lanes{run_lane(hosts, {0, num_segments}, run), run_lane(hosts, {1, num_segments}, run),
                   run_lane(hosts, {2, num_segments}, run)};
  static_assert(lanes.size() == kNumLanes);
  for (Task<Status>& lane : lanes) lane.resume();
  Status status;
  for (Task<Status>& lane : lanes) {
    Status ended = co_await lane.end();
    if (status.ok()) status = std::move(ended);
  }
  co_return status;
}

}  // namespace axon::collectives
