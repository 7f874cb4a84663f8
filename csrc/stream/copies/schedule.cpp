#include "stream/copies/schedule.hpp"

namespace axon {

// Regions are no longer than what kMostPieces were counted for.
Regions Regions::fit(int num_ranks, uint32_t num_rounds, uint64_t most_bytes) noexcept {
  static constexpr uint64_t kLongest = uint64_t{512} << 20, kShortest = uint64_t{64} << 10, kAlignment = 4096;
  const uint64_t num_regions = num_rounds * static_cast<uint64_t>(num_ranks - 1);
  const uint64_t num_bytes = std::min(most_bytes / num_regions / kAlignment * kAlignment, kLongest);
  return {.num_ranks = num_ranks, .num_bytes = num_bytes < kShortest ? 0 : num_bytes};
}

}  // namespace axon
