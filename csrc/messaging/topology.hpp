// The hosts of a group, and the ranks on each. Every rank computes the same from the peer addresses. Immutable.
//
//   const Topology topology({0xA, 0xB, 0xA});    // rank 1 is alone on its host
//   topology.num_hosts();                        // 2
//   topology.ranks_on(0);                        // 0, 2
//   topology.column(0);                          // 0, 1: the first rank of each host
//
// Hosts are numbered in the order of their lowest rank, and the ranks of a host in ascending order (the local index).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace axon::messaging {

class Topology {
 public:
  Topology() = default;
  // `hosts`: by rank, what the rank's address claims to be its host (PeerAddress::host). Claims, since all ranks must
  // agree on the topology: proofs may differ by rank, for example when a rank has just ended.
  explicit Topology(std::span<const uint64_t> hosts);

  int num_ranks() const noexcept { return static_cast<int>(places_.size()); }
  int num_hosts() const noexcept { return static_cast<int>(host_begins_.size()) - 1; }
  bool is_one_host() const noexcept { return num_hosts() <= 1; }
  // Returns the number of ranks on the host that has most.
  int largest_host() const noexcept { return largest_host_; }

  int host_of(int rank) const noexcept { return places_[static_cast<size_t>(rank)].host; }
  int local_index_of(int rank) const noexcept { return places_[static_cast<size_t>(rank)].local_index; }
  // Returns the ranks of a host, ascending.
  std::span<const int> ranks_on(int host) const noexcept {
    const size_t begin = host_begins_[static_cast<size_t>(host)];
    return {by_host_.data() + begin, host_begins_[static_cast<size_t>(host) + 1] - begin};
  }

  // A column is the ranks with one local index, by host. There are as many as the smallest host has ranks, so that each
  // one includes a rank of every host. Column 0 consists of the hosts' leaders.
  int num_columns() const noexcept { return num_columns_; }
  std::span<const int> column(int local_index) const noexcept {
    const auto length = static_cast<size_t>(num_hosts());
    return {by_column_.data() + static_cast<size_t>(local_index) * length, length};
  }

 private:
  struct Place {
    int host;
    int local_index;
  };

  std::vector<Place> places_;           // by rank
  std::vector<int> by_host_;            // ranks, sorted by (host, rank)
  std::vector<size_t> host_begins_{0};  // by host, and the end: positions in by_host_
  std::vector<int> by_column_;          // ranks, sorted by (column, host)
  int num_columns_ = 0;
  int largest_host_ = 0;
};

}  // namespace axon::messaging
