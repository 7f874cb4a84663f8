// Recursive doubling: in step k, pairs of ranks 2^k apart exchange their partial results, and both add them.
//
// ⌈log2 n⌉ steps, two more unless n is a power of two (then pairs of neighbours are reduced first). A rank sends one
// tensor per step (of partial results: fp32 for half types). Both partners add the lower ranks' part first, so all
// ranks get the same bits. Thakur, Rabenseifner, Gropp (2005), section 4.5. Wins for small tensors on many ranks.
#include <utility>

#include "collectives/algorithms.hpp"
#include "collectives/local.hpp"
#include "collectives/patterns.hpp"

namespace axon::collectives {

static constexpr uint32_t kFoldSlot = 0;
static constexpr uint32_t kUnfoldSlot = 1;
static constexpr uint32_t kFirstSlot = 2;

Task<Status> all_reduce::recursive_doubling(messaging::View& view, const CollectiveArguments& arguments) {
  const Buffer tensor = arguments.outputs[0];
  const PowerOfTwoFold fold{view.rank(), view.size()};
  const ReductionPlan plan = reduction_plan(view, arguments);
  const size_t num_elements = tensor.num_bytes / size_of(arguments.dtype);
  const size_t length = partial_bytes(arguments.dtype, tensor.num_bytes);
  const Buffer staging = view.scratch(2 * length);
  Buffer mine = staging.slice(0, length);
  Buffer theirs = staging.slice(length, length);

  messaging::Batch batch(view);
  begin_partial(plan, mine, tensor, num_elements);
  if (fold.is_represented()) {
    batch.send({.peer = fold.pair_partner(), .slot = kFoldSlot}, mine);
    batch.receive({.peer = fold.pair_partner(), .slot = kUnfoldSlot}, tensor);
    co_return co_await batch;
  }
  if (fold.is_paired()) {
    batch.receive({.peer = fold.pair_partner(), .slot = kFoldSlot}, theirs);
    AXON_CO_TRY(co_await batch);
    add_to_partial(plan, mine, theirs, num_elements);
  }
  uint32_t slot = kFirstSlot;
  for (int mask = 1; mask < fold.num_active(); mask *= 2, ++slot) {
    const int partner = fold.rank_at(fold.position() ^ mask);
    batch.send({.peer = partner, .slot = slot}, mine);
    batch.receive({.peer = partner, .slot = slot}, theirs);
    AXON_CO_TRY(co_await batch);
    if (partner < view.rank()) std::swap(mine, theirs);
    add_to_partial(plan, mine, theirs, num_elements);
  }
  finish_partial(plan, tensor, mine, num_elements);
  if (fold.is_paired()) batch.send({.peer = fold.pair_partner(), .slot = kUnfoldSlot}, tensor);
  co_return co_await batch;
}

}  // namespace axon::collectives
