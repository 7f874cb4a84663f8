#include "collectives/ring.hpp"

#include <algorithm>
#include <optional>

#include "collectives/batch_ring.hpp"
#include "collectives/local.hpp"
#include "collectives/network_chunks.hpp"
#include "collectives/patterns.hpp"

namespace axon::collectives {

static constexpr size_t kGroup = 2;
static constexpr size_t kDepth = 2 * kGroup;

static RingSchedule schedule_of(int num_steps, size_t longest_shard, size_t chunk_bytes) noexcept {
  const size_t num_chunks = Chunks(longest_shard, chunk_bytes).count();
  return {.num_steps = static_cast<size_t>(num_steps), .group = kGroup, .num_chunks = num_chunks};
}

namespace {

// Item i of the schedule at step s: the partial result of the shard whose owner is 1 + s ranks down the ring. It is
// received with the slot of the left neighbour's item i − kGroup, which is one step earlier there.
class ReductionLane {
 public:
  ReductionLane(messaging::View& view, const ReductionPlan& plan, const RingReduction& ring)
      : chunk_bytes(network_chunk_bytes(view, longest_of(ring.shards))),
        schedule(schedule_of(view.size(), longest_of(ring.shards), chunk_bytes)),
        view_(view),
        plan_(plan),
        ring_(ring),
        stride_(partial_bytes(plan.dtype, chunk_bytes)),  // partial results of half types are twice as long
        staging_(view.scratch(stride_ * kDepth)) {}

  const size_t chunk_bytes;
  const RingSchedule schedule;

  bool exists(size_t item) const noexcept {
    return item < schedule.count() && chunks_of(item).contains(schedule[item].chunk);
  }
  bool is_first(size_t item) const noexcept { return schedule[item].step == 0; }
  bool is_last(size_t item) const noexcept { return schedule[item].step == view_.size() - 1; }

  void receive(messaging::Batch& batch, size_t item) const noexcept {
    batch.receive({.peer = ring_neighbour(view_.rank(), -1, view_.size()), .slot = slot_of(item - kGroup)},
                  partial(item));
  }
  void send(messaging::Batch& batch, size_t item) const noexcept {
    batch.send({.peer = ring_neighbour(view_.rank(), 1, view_.size()), .slot = slot_of(item)}, partial(item));
  }
  void begin(size_t item) const noexcept { begin_partial(plan_, partial(item), own(item), num_elements(item)); }
  void add_own(size_t item) const noexcept { add_own_to_partial(plan_, partial(item), own(item), num_elements(item)); }
  void finish(size_t item) const noexcept {
    finish_partial(plan_, slice(ring_.output, range_of(item)), partial(item), num_elements(item));
  }

 private:
  static uint32_t slot_of(size_t item) noexcept { return static_cast<uint32_t>(2 * item); }

  ConstBuffer shard_of(size_t item) const noexcept {
    const int owner = ring_neighbour(view_.rank(), -1 - schedule[item].step, view_.size());
    return ring_.shards[static_cast<size_t>(owner)];
  }
  Chunks chunks_of(size_t item) const noexcept { return {shard_of(item).num_bytes, chunk_bytes}; }
  Range range_of(size_t item) const noexcept { return chunks_of(item)[schedule[item].chunk]; }
  ConstBuffer own(size_t item) const noexcept { return slice(shard_of(item), range_of(item)); }
  size_t num_elements(size_t item) const noexcept { return range_of(item).length / size_of(plan_.dtype); }
  Buffer partial(size_t item) const noexcept {
    return staging_.slice(stride_ * (item % kDepth), partial_bytes(plan_.dtype, range_of(item).length));
  }

  messaging::View& view_;
  const ReductionPlan plan_;
  const RingReduction ring_;
  const size_t stride_;
  const Buffer staging_;
};

}  // namespace

Task<Status> ring_reduce_scatter(messaging::View& view, const CollectiveArguments& arguments, RingReduction ring) {
  const ReductionLane lane(view, reduction_plan(view, arguments), ring);
  BatchRing<kDepth> arrivals(view);
  BatchRing<kDepth> departures(view);

  for (size_t item = 0; item < lane.schedule.count(); ++item) {
    const size_t ahead = item + kGroup;
    if (lane.exists(ahead) && !lane.is_first(ahead)) {
      AXON_CO_TRY(co_await departures[ahead]);
      lane.receive(arrivals[ahead], ahead);
    }
    if (!lane.exists(item)) continue;
    if (lane.is_first(item)) {
      AXON_CO_TRY(co_await departures[item]);
      lane.begin(item);
    } else {
      AXON_CO_TRY(co_await arrivals[item]);
      lane.add_own(item);
    }
    if (lane.is_last(item)) {
      lane.finish(item);
    } else {
      lane.send(departures[item], item);
    }
  }
  for (size_t i = 0; i < kDepth; ++i) AXON_CO_TRY(co_await departures[i]);
  co_return Status();
}

// In step s, item i receives the shard of the rank 1 + s down the ring. It sends that of the rank s down, which item
// i − kGroup has received.
Task<Status> ring_all_gather(messaging::View& view, RingGather ring) {
  const int size = view.size();
  const int left = ring_neighbour(view.rank(), -1, size);
  const int right = ring_neighbour(view.rank(), 1, size);
  const size_t chunk_bytes = network_chunk_bytes(view, longest_of(ring.shards));
  const RingSchedule schedule = schedule_of(size - 1, longest_of(ring.shards), chunk_bytes);
  BatchRing<kDepth> arrivals(view);
  BatchRing<kDepth> departures(view);
  const auto chunk_from = [&](int distance, size_t chunk) -> std::optional<Buffer> {
    const Buffer shard = ring.shards[static_cast<size_t>(ring_neighbour(view.rank(), -distance, size))];
    const Chunks chunks(shard.num_bytes, chunk_bytes);
    return chunks.contains(chunk) ? std::optional(slice(shard, chunks[chunk])) : std::nullopt;
  };

  for (size_t item = 0; item < schedule.count(); ++item) {
    const auto [step, chunk] = schedule[item];
    const uint32_t slot = static_cast<uint32_t>(2 * item + 1);
    AXON_CO_TRY(co_await arrivals[item]);
    AXON_CO_TRY(co_await departures[item]);
    const std::optional<Buffer> incoming = chunk_from(step + 1, chunk);
    if (incoming && view.rank() != ring.complete_rank) arrivals[item].receive({left, slot}, *incoming);
    if (step > 0) AXON_CO_TRY(co_await arrivals[item - kGroup]);
    const std::optional<Buffer> outgoing = chunk_from(step, chunk);
    if (outgoing && right != ring.complete_rank) departures[item].send({right, slot}, *outgoing);
  }
  for (size_t i = 0; i < kDepth; ++i) {
    AXON_CO_TRY(co_await arrivals[i]);
    AXON_CO_TRY(co_await departures[i]);
  }
  co_return Status();
}

}  // namespace axon::collectives
