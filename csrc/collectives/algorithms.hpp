// Every algorithm, for the registry (selector). What each does, its cost and its source stand in its own file, and
// together in docs/algorithms.md.
#pragma once

#include "collectives/collective.hpp"

namespace axon {

namespace broadcast {
Task<Status> binomial(Exchange& exchange, const CollectiveArguments& arguments);
Task<Status> scatter_ring(Exchange& exchange, const CollectiveArguments& arguments);
}  // namespace broadcast

namespace all_reduce {
Task<Status> one_shot(Exchange& exchange, const CollectiveArguments& arguments);
Task<Status> recursive_doubling(Exchange& exchange, const CollectiveArguments& arguments);
Task<Status> two_shot(Exchange& exchange, const CollectiveArguments& arguments);
Task<Status> ring(Exchange& exchange, const CollectiveArguments& arguments);
}  // namespace all_reduce

namespace reduce {
Task<Status> binomial(Exchange& exchange, const CollectiveArguments& arguments);
Task<Status> two_shot(Exchange& exchange, const CollectiveArguments& arguments);
}  // namespace reduce

namespace all_gather {
Task<Status> direct(Exchange& exchange, const CollectiveArguments& arguments);
Task<Status> bruck(Exchange& exchange, const CollectiveArguments& arguments);
Task<Status> ring(Exchange& exchange, const CollectiveArguments& arguments);
}  // namespace all_gather

namespace gather {
Task<Status> direct(Exchange& exchange, const CollectiveArguments& arguments);
}

namespace scatter {
Task<Status> direct(Exchange& exchange, const CollectiveArguments& arguments);
}

namespace reduce_scatter {
Task<Status> direct(Exchange& exchange, const CollectiveArguments& arguments);
Task<Status> ring(Exchange& exchange, const CollectiveArguments& arguments);
}  // namespace reduce_scatter

namespace all_to_all {
Task<Status> pairwise(Exchange& exchange, const CollectiveArguments& arguments);
}

namespace barrier {
Task<Status> dissemination(Exchange& exchange, const CollectiveArguments& arguments);
}

}  // namespace axon
