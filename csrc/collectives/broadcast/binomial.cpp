// Binomial tree: every rank that has the tensor sends it to the rank half of the remaining distance away.
//
// ⌈log2 n⌉ steps. The root sends the tensor ⌈log2 n⌉ times. Thakur, Rabenseifner, Gropp, "Optimization of Collective
// Communication Operations in MPICH" (2005), section 4.2. Wins for small tensors, and for two ranks at any size.
#include "collectives/algorithms.hpp"
#include "collectives/patterns.hpp"

namespace axon::collectives {

Task<Status> broadcast::binomial(messaging::View& view, const CollectiveArguments& arguments) {
  const Buffer tensor = arguments.outputs[0];
  const int size = view.size();
  const int root = arguments.root;
  const BinomialTree tree{ring_neighbour(view.rank(), -root, size), size};

  messaging::Batch batch(view);
  if (tree.position != 0) {
    batch.receive({.peer = ring_neighbour(tree.parent(), root, size)}, tensor);
    AXON_CO_TRY(co_await batch);
  }
  for (int mask = tree.child_limit() / 2; mask > 0; mask /= 2) {
    if (tree.has_child(mask)) batch.send({.peer = ring_neighbour(tree.position + mask, root, size)}, tensor);
  }
  co_return co_await batch;
}

}  // namespace axon::collectives
