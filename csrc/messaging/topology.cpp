#include "messaging/topology.hpp"

#include <algorithm>
#include <unordered_map>

namespace axon::messaging {

Topology::Topology(std::span<const uint64_t> hosts) {
  std::unordered_map<uint64_t, int> numbers;
  std::vector<std::vector<int>> ranks;  // by host
  for (const uint64_t claim : hosts) {
    const int host = numbers.emplace(claim, static_cast<int>(ranks.size())).first->second;
    if (host == static_cast<int>(ranks.size())) ranks.emplace_back();
    std::vector<int>& neighbours = ranks[static_cast<size_t>(host)];
    neighbours.push_back(num_ranks());
    places_.push_back({.host = host, .local_index = static_cast<int>(neighbours.size()) - 1});
  }
  if (ranks.empty()) return;
  const auto [smallest, largest] = std::ranges::minmax_element(ranks, {}, &std::vector<int>::size);
  num_columns_ = static_cast<int>(smallest->size());
  largest_host_ = static_cast<int>(largest->size());
  for (const std::vector<int>& neighbours : ranks) {
    by_host_.insert(by_host_.end(), neighbours.begin(), neighbours.end());
    host_begins_.push_back(by_host_.size());
  }
  for (size_t index = 0; index < static_cast<size_t>(num_columns_); ++index) {
    for (const std::vector<int>& neighbours : ranks) by_column_.push_back(neighbours[index]);
  }
}

}  // namespace axon::messaging
