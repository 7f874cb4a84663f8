// Binomial tree: every rank adds its children's partial results to its own, and sends the sum to its parent.
//
// ⌈log2 n⌉ steps. A rank sends one tensor (of partial results: fp32 for half types). Thakur, Rabenseifner, Gropp
// (2005), section 4.4. Wins for small tensors.
#include <utility>

#include "collectives/algorithms.hpp"
#include "collectives/local.hpp"
#include "collectives/patterns.hpp"

namespace axon::collectives {

Task<Status> reduce::binomial(messaging::View& view, const CollectiveArguments& arguments) {
  const ConstBuffer input = arguments.inputs[0];
  const int size = view.size();
  const int root = arguments.root;
  const BinomialTree tree{ring_neighbour(view.rank(), -root, size), size};
  const ReductionPlan plan = reduction_plan(view, arguments);
  const size_t num_elements = input.num_bytes / size_of(arguments.dtype);
  const size_t length = partial_bytes(arguments.dtype, input.num_bytes);
  const Buffer staging = view.scratch(length * (1 + static_cast<size_t>(std::bit_width(static_cast<unsigned>(size)))));
  const Buffer partial = staging.slice(0, length);

  messaging::Batch batch(view);
  size_t num_children = 0;
  for (int mask = 1; mask < tree.child_limit(); mask *= 2) {
    if (!tree.has_child(mask)) continue;
    const Buffer incoming = staging.slice(length * ++num_children, length);
    batch.receive({.peer = ring_neighbour(tree.position + mask, root, size)}, incoming);
  }
  begin_partial(plan, partial, input, num_elements);
  AXON_CO_TRY(co_await batch);
  for (size_t child = 1; child <= num_children; ++child) {
    add_to_partial(plan, partial, staging.slice(length * child, length), num_elements);
  }
  if (tree.position == 0) {
    finish_partial(plan, arguments.outputs[0], partial, num_elements);
    co_return Status();
  }
  batch.send({.peer = ring_neighbour(tree.parent(), root, size)}, partial);
  co_return co_await batch;
}

}  // namespace axon::collectives
