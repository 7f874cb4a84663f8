#include "engine/overlay.hpp"

#include <algorithm>

#include "messaging/team.hpp"

namespace axon::engine::overlay {

// Returns the ranks at these distances in both directions, with rank 0 next to the last one.
static std::vector<int> around(int rank, int size, int longest_distance) {
  std::vector<int> ranks;
  for (int distance = 1; distance <= longest_distance; distance *= 2) {
    ranks.push_back((rank + distance) % size);
    ranks.push_back((rank + size - distance) % size);
  }
  std::ranges::sort(ranks);
  const auto repeated = std::ranges::unique(ranks);
  ranks.erase(repeated.begin(), repeated.end());
  return ranks;
}

static std::vector<int> all_others(int rank, int size) {
  std::vector<int> ranks;
  for (int other = 0; other < size; ++other) {
    if (other != rank) ranks.push_back(other);
  }
  return ranks;
}

std::vector<int> watched_by(int rank, int size) {
  return messaging::Team::is_fully_connected(size) ? all_others(rank, size) : around(rank, size, 1);
}

std::vector<int> notified_by(int rank, int size) {
  return messaging::Team::is_fully_connected(size) ? all_others(rank, size) : around(rank, size, size / 2);
}

}  // namespace axon::engine::overlay
