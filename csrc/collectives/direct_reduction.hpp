// The reducing half of the direct algorithms (reduce_scatter/direct, all_reduce/two_shot, reduce/two_shot). Each rank
// sends every other rank its contribution to that rank's shard, chunk by chunk, and reduces the contributions to its
// own.
//
//   DirectReduction reduction(view, arguments, shards);
//   for (size_t step = 0; step < reduction.num_steps(); ++step) {
//     if (reduction.posts(step)) {
//       AXON_CO_TRY(co_await reduction.departures(step));   // waits for the chunk depth() earlier, to reuse its memory
//       reduction.post(step);
//     }
//     if (reduction.reduces(step)) {
//       const size_t chunk = step - reduction.ahead();
//       AXON_CO_TRY(co_await reduction.arrivals(chunk));
//       reduction.reduce(chunk, output);
//     }
//   }
//
// While chunk c is being reduced, the messages of the next ahead() chunks are on their way. They are small enough to be
// reduced from the cache, into which the transport has just written them. Operands are taken in rank order and rounded
// once. Owned by the algorithm's coroutine; progress owner only.
#pragma once

#include <span>

#include "collectives/batch_ring.hpp"
#include "collectives/collective.hpp"
#include "collectives/local.hpp"
#include "collectives/patterns.hpp"
#include "collectives/pool_array.hpp"

namespace axon::collectives {

class DirectReduction {
 public:
  // `shards`: this rank's contribution to each rank's shard. They must outlive this object.
  DirectReduction(messaging::View& view, const CollectiveArguments& arguments, std::span<const ConstBuffer> shards);

  size_t ahead() const noexcept { return window_.ahead; }
  size_t depth() const noexcept { return window_.depth; }
  size_t num_steps() const noexcept { return num_chunks_ + window_.ahead; }
  bool posts(size_t step) const noexcept { return step < num_chunks_; }
  bool reduces(size_t step) const noexcept { return step >= window_.ahead; }

  messaging::Batch& arrivals(size_t chunk) noexcept { return arrivals_[chunk]; }
  messaging::Batch& departures(size_t chunk) noexcept { return departures_[chunk]; }

  // Returns the chunks of a shard of `num_bytes`, which may be empty.
  Chunks chunks_of(size_t num_bytes) const noexcept { return {num_bytes, chunk_bytes_}; }
  // Returns the slot of this chunk's contributions; the next slot is free for the algorithm.
  static uint32_t slot_of(size_t chunk) noexcept { return static_cast<uint32_t>(2 * chunk); }

  // Sends the other ranks their contributions, and receives those to this rank's shard.
  void post(size_t chunk) noexcept;

  // Call it after the chunk's contributions have arrived. The output may be this rank's own contribution.
  void reduce(size_t chunk, Buffer output) noexcept;

  // Memory for a reduced chunk that has no destination yet, valid until the chunk's departures are done.
  Buffer spare(size_t chunk) const noexcept;

 private:
  // How many chunks are on their way before one is reduced, and how many are in flight in all.
  struct Window {
    size_t ahead;
    size_t depth;
  };
  static constexpr size_t kMostDepth = 16;
  static Window window_of(const messaging::View& view, size_t chunk_bytes) noexcept;

  Buffer staging_slot(size_t chunk, int source) const noexcept;

  messaging::View& view_;
  const ReductionPlan plan_;
  const std::span<const ConstBuffer> shards_;
  const size_t chunk_bytes_;
  const Window window_;
  size_t num_chunks_;  // of the longest shard
  Buffer staging_;
  PoolArray<ConstBuffer> operands_;
  BatchRing<kMostDepth> arrivals_;
  BatchRing<kMostDepth> departures_;
};

}  // namespace axon::collectives
