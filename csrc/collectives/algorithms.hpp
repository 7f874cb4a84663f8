// Declares every algorithm, for algorithm_names.hpp. Each algorithm's file gives its steps, cost and source;
// docs/algorithms.md collects them.
#pragma once

#include "collectives/collective.hpp"

namespace axon::collectives {

namespace broadcast {
Task<Status> binomial(messaging::Exchange& exchange, const CollectiveArguments& arguments);
Task<Status> scatter_ring(messaging::Exchange& exchange, const CollectiveArguments& arguments);
}  // namespace broadcast

namespace all_reduce {
Task<Status> one_shot(messaging::Exchange& exchange, const CollectiveArguments& arguments);
Task<Status> recursive_doubling(messaging::Exchange& exchange, const CollectiveArguments& arguments);
Task<Status> two_shot(messaging::Exchange& exchange, const CollectiveArguments& arguments);
Task<Status> ring(messaging::Exchange& exchange, const CollectiveArguments& arguments);
}  // namespace all_reduce

namespace reduce {
Task<Status> binomial(messaging::Exchange& exchange, const CollectiveArguments& arguments);
Task<Status> two_shot(messaging::Exchange& exchange, const CollectiveArguments& arguments);
}  // namespace reduce

namespace all_gather {
Task<Status> direct(messaging::Exchange& exchange, const CollectiveArguments& arguments);
Task<Status> bruck(messaging::Exchange& exchange, const CollectiveArguments& arguments);
Task<Status> ring(messaging::Exchange& exchange, const CollectiveArguments& arguments);
}  // namespace all_gather

namespace gather {
Task<Status> direct(messaging::Exchange& exchange, const CollectiveArguments& arguments);
}

namespace scatter {
Task<Status> direct(messaging::Exchange& exchange, const CollectiveArguments& arguments);
}

namespace reduce_scatter {
Task<Status> direct(messaging::Exchange& exchange, const CollectiveArguments& arguments);
Task<Status> ring(messaging::Exchange& exchange, const CollectiveArguments& arguments);
}  // namespace reduce_scatter

namespace all_to_all {
Task<Status> pairwise(messaging::Exchange& exchange, const CollectiveArguments& arguments);
}

namespace barrier {
Task<Status> dissemination(messaging::Exchange& exchange, const CollectiveArguments& arguments);
}

}  // namespace axon::collectives
