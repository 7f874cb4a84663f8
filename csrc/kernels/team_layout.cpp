#include "kernels/team_layout.hpp"

#include <algorithm>
#include <string>

namespace axon::kernels {
namespace {

// A sender keeps about a round trip's worth of chunks in flight: 1 MiB over all channels at NVLink's rate. That
// determines the chunks per channel and the number of channels. In a small slice, more channels take precedence over
// longer ones. Senders and receivers process up to 4 chunks at a time. Neither waits for the other as long as a ring
// holds two such batches.
constexpr uint32_t kMostChannels = 512;              // of a traffic class, over all links into a rank
constexpr uint32_t kMostPointToPointChannels = 256;  // of a link: a single link may carry everything
constexpr uint32_t kRingChunks = 16;
constexpr uint32_t kFewestRingChunks = 8;
constexpr uint64_t kAlignment = 128;
constexpr uint64_t kStateBytes = (sizeof(cuda::TeamState) + kAlignment - 1) / kAlignment * kAlignment;
constexpr uint64_t kWordsShare = 64;  // state, rendezvous, credits and counters take less than 1/64

// Allocates parts of a slice from its beginning.
class Space {
 public:
  uint64_t take(uint64_t num_bytes) {
    const uint64_t begin = used_;
    used_ += (num_bytes + kAlignment - 1) / kAlignment * kAlignment;
    return begin;
  }

 private:
  uint64_t used_ = 0;
};

cuda::TrafficLayout place_traffic(Space& space, uint32_t num_peers, uint64_t ring_bytes, uint32_t most_channels) {
  const auto chunks_per_peer = static_cast<uint32_t>(ring_bytes / cuda::kWarpChunkBytes / num_peers);
  const uint32_t ring_chunks = chunks_per_peer >= 16 * kRingChunks ? kRingChunks : kFewestRingChunks;
  const uint32_t num_channels = std::min(most_channels, chunks_per_peer / ring_chunks);
  const uint64_t all_channels = uint64_t{num_peers} * num_channels;
  return {.num_channels = num_channels,
          .ring_chunks = ring_chunks,
          .rings = space.take(all_channels * ring_chunks * cuda::kWarpChunkBytes),
          .credits = space.take(all_channels * sizeof(cuda::ChannelCredit)),
          .counters = space.take(all_channels * sizeof(cuda::ChannelCounters))};
}

}  // namespace

Result<cuda::TeamLayout> lay_out(int num_ranks, size_t slice_bytes) {
  if (num_ranks < 2 || num_ranks > cuda::kMaxTeamRanks) {
    return Status(ErrorCode::kInvalidArgument, "a team must have 2 to " + std::to_string(cuda::kMaxTeamRanks) +
                                                   " ranks, not " + std::to_string(num_ranks));
  }
  if (slice_bytes < kMinSliceBytes || slice_bytes > kMaxSliceBytes) {
    return Status(ErrorCode::kInvalidArgument, "a team's slice must have " + std::to_string(kMinSliceBytes) + " to " +
                                                   std::to_string(kMaxSliceBytes) + " bytes, not " +
                                                   std::to_string(slice_bytes));
  }
  const auto num_peers = static_cast<uint32_t>(num_ranks - 1);
  Space space;
  space.take(kStateBytes);
  cuda::TeamLayout layout{
      .slice_bytes = slice_bytes,
      .rendezvous = 0,
      .packets = 0,
      .region_packets = static_cast<uint32_t>(slice_bytes / 4 / sizeof(cuda::LlPacket)) + cuda::kMaxTeamRanks,
      .traffic = {}};
  layout.rendezvous = space.take(static_cast<uint64_t>(num_ranks) * sizeof(cuda::Rendezvous));
  layout.packets = space.take(uint64_t{2} * layout.region_packets * sizeof(cuda::LlPacket));
  layout.traffic[0] = place_traffic(space, num_peers, slice_bytes / 4, kMostChannels / num_peers);
  layout.traffic[1] = place_traffic(space, num_peers, slice_bytes / 4 - slice_bytes / kWordsShare,
                                    std::min(kMostPointToPointChannels, kMostChannels / num_peers));
  return layout;
}

}  // namespace axon::kernels
