// Declares every algorithm, for algorithm_names.hpp. Each algorithm's file gives its steps, cost and source;
// docs/algorithms.md collects them.
#pragma once

#include "collectives/collective.hpp"

namespace axon::collectives {

namespace broadcast {
Task<Status> binomial(messaging::View& view, const CollectiveArguments& arguments);
Task<Status> chain(messaging::View& view, const CollectiveArguments& arguments);
Task<Status> scatter_ring(messaging::View& view, const CollectiveArguments& arguments);
Task<Status> hierarchical(messaging::View& view, const CollectiveArguments& arguments);
}  // namespace broadcast

namespace all_reduce {
Task<Status> one_shot(messaging::View& view, const CollectiveArguments& arguments);
Task<Status> recursive_doubling(messaging::View& view, const CollectiveArguments& arguments);
Task<Status> two_shot(messaging::View& view, const CollectiveArguments& arguments);
Task<Status> ring(messaging::View& view, const CollectiveArguments& arguments);
Task<Status> hierarchical(messaging::View& view, const CollectiveArguments& arguments);
Task<Status> hierarchical_exact(messaging::View& view, const CollectiveArguments& arguments);
}  // namespace all_reduce

namespace reduce {
Task<Status> binomial(messaging::View& view, const CollectiveArguments& arguments);
Task<Status> two_shot(messaging::View& view, const CollectiveArguments& arguments);
Task<Status> hierarchical(messaging::View& view, const CollectiveArguments& arguments);
Task<Status> hierarchical_exact(messaging::View& view, const CollectiveArguments& arguments);
}  // namespace reduce

namespace all_gather {
Task<Status> direct(messaging::View& view, const CollectiveArguments& arguments);
Task<Status> bruck(messaging::View& view, const CollectiveArguments& arguments);
Task<Status> ring(messaging::View& view, const CollectiveArguments& arguments);
Task<Status> hierarchical(messaging::View& view, const CollectiveArguments& arguments);
}  // namespace all_gather

namespace gather {
Task<Status> direct(messaging::View& view, const CollectiveArguments& arguments);
}

namespace scatter {
Task<Status> direct(messaging::View& view, const CollectiveArguments& arguments);
}

namespace reduce_scatter {
Task<Status> direct(messaging::View& view, const CollectiveArguments& arguments);
Task<Status> ring(messaging::View& view, const CollectiveArguments& arguments);
Task<Status> hierarchical(messaging::View& view, const CollectiveArguments& arguments);
Task<Status> hierarchical_exact(messaging::View& view, const CollectiveArguments& arguments);
}  // namespace reduce_scatter

namespace all_to_all {
Task<Status> pairwise(messaging::View& view, const CollectiveArguments& arguments);
// A stage only, hence without a row in the table.
Task<Status> direct(messaging::View& view, const CollectiveArguments& arguments);
}  // namespace all_to_all

namespace barrier {
Task<Status> dissemination(messaging::View& view, const CollectiveArguments& arguments);
Task<Status> hierarchical(messaging::View& view, const CollectiveArguments& arguments);
}  // namespace barrier

}  // namespace axon::collectives
