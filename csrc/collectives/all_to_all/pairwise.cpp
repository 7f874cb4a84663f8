// Pairwise exchange: in every step, each rank sends to one other rank and receives from one.
//
// n−1 steps on even hosts. A rank sends and receives each of its shards once, straight into place, and in every step
// each rank is the target of at most one other. A step is a distance between hosts and one between local indices, so
// the ranks of a host have different partners. Steps between hosts begin first, kDepth of them are in flight, and those
// within the host pass beside them. Thakur, Rabenseifner, Gropp (2005), section 4.3.
#include "collectives/algorithms.hpp"
#include "collectives/batch_ring.hpp"
#include "collectives/local.hpp"
#include "collectives/patterns.hpp"

namespace axon::collectives {

// Returns the rank that is this number of hosts and of local indices up from this one, both modulo their number; −1 if
// that host has too few ranks.
static int rank_up(const messaging::Topology& topology, int rank, int hosts_up, int indices_up) noexcept {
  const int host = ring_neighbour(topology.host_of(rank), hosts_up, topology.num_hosts());
  const int local_index = ring_neighbour(topology.local_index_of(rank), indices_up, topology.largest_host());
  const std::span<const int> ranks = topology.ranks_on(host);
  return static_cast<size_t>(local_index) < ranks.size() ? ranks[static_cast<size_t>(local_index)] : -1;
}

// Pairs of ranks may have different numbers of parts. So only the first part of a shard is sent if it is empty.
static bool is_exchanged(const CollectiveArguments& arguments, ConstBuffer shard) noexcept {
  return arguments.part == 0 || shard.num_bytes != 0;
}

static void post_step(const messaging::View& view, const CollectiveArguments& arguments, messaging::Batch& step,
                      int hosts_up, int indices_up) noexcept {
  const messaging::Topology& topology = view.exchange().topology();
  const CollectiveArguments& whole = arguments.whole == nullptr ? arguments : *arguments.whole;
  const size_t element_num_bytes = size_of(arguments.dtype);
  const int source = rank_up(topology, view.rank(), -hosts_up, -indices_up);
  const int destination = rank_up(topology, view.rank(), hosts_up, indices_up);
  if (source >= 0 && is_exchanged(arguments, arguments.outputs[source])) {
    step.receive({.peer = source, .num_back = whole.inputs[source].num_bytes / element_num_bytes},
                 arguments.outputs[source]);
  }
  if (destination >= 0 && is_exchanged(arguments, arguments.inputs[destination])) {
    step.send({.peer = destination, .num_back = whole.outputs[destination].num_bytes / element_num_bytes},
              arguments.inputs[destination]);
  }
}

Task<Status> all_to_all::pairwise(messaging::View& view, const CollectiveArguments& arguments) {
  constexpr size_t kDepth = 8;
  const int num_indices = view.exchange().topology().largest_host();
  const int num_steps_between = (view.exchange().topology().num_hosts() - 1) * num_indices;
  BatchRing<kDepth> between_hosts(view);
  BatchRing<kDepth> within_host(view);

  const auto post_between = [&](int step) noexcept {
    post_step(view, arguments, between_hosts[static_cast<size_t>(step)], 1 + step / num_indices, step % num_indices);
  };
  int step = 0;
  for (; step < std::min(num_steps_between, static_cast<int>(kDepth)); ++step) post_between(step);
  for (int distance = 1; distance < num_indices; ++distance) {
    messaging::Batch& batch = within_host[static_cast<size_t>(distance)];
    AXON_CO_TRY(co_await batch);
    post_step(view, arguments, batch, 0, distance);
  }
  for (; step < num_steps_between; ++step) {
    AXON_CO_TRY(co_await between_hosts[static_cast<size_t>(step)]);
    post_between(step);
  }
  copy_shard(arguments.outputs[view.rank()], arguments.inputs[view.rank()]);
  for (size_t i = 0; i < kDepth; ++i) {
    AXON_CO_TRY(co_await between_hosts[i]);
    AXON_CO_TRY(co_await within_host[i]);
  }
  co_return Status();
}

}  // namespace axon::collectives
