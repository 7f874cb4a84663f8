#include "kernels/team_layout.hpp"

#include <gtest/gtest.h>

#include <bit>

#include "kernels/ll/collectives.hpp"

namespace axon::kernels {
namespace {

struct Piece {
  uint64_t begin, num_bytes;
};

std::vector<Piece> pieces_of(const cuda::TeamLayout& layout, int num_ranks) {
  std::vector<Piece> pieces{{0, sizeof(cuda::TeamState)},
                            {layout.rendezvous, num_ranks * sizeof(cuda::Rendezvous)},
                            {layout.packets, uint64_t{2} * layout.region_packets * sizeof(cuda::LlPacket)}};
  for (const cuda::TrafficLayout& traffic : layout.traffic) {
    const uint64_t channels = uint64_t{traffic.num_channels} * (num_ranks - 1);
    pieces.push_back({traffic.rings, channels * traffic.ring_chunks * cuda::kWarpChunkBytes});
    pieces.push_back({traffic.credits, channels * sizeof(cuda::ChannelCredit)});
    pieces.push_back({traffic.counters, channels * sizeof(cuda::ChannelCounters)});
  }
  return pieces;
}

TEST(TeamLayout, parts_are_apart_and_within_the_slice) {
  for (int num_ranks = 2; num_ranks <= cuda::kMaxTeamRanks; ++num_ranks) {
    for (size_t slice_bytes = kMinSliceBytes; slice_bytes <= kMaxSliceBytes; slice_bytes += 777 * 4096) {
      Result<cuda::TeamLayout> layout = lay_out(num_ranks, slice_bytes);
      ASSERT_TRUE(layout.ok());
      uint64_t end = 0;
      for (const Piece& piece : pieces_of(layout.value(), num_ranks)) {
        EXPECT_GE(piece.begin, end);
        EXPECT_EQ(piece.begin % 128, 0u);
        end = piece.begin + piece.num_bytes;
      }
      EXPECT_LE(end, slice_bytes) << num_ranks << " ranks, " << slice_bytes << " bytes";
      EXPECT_GE(layout.value().traffic[0].num_channels, 2u);  // contributions and totals
      EXPECT_GE(layout.value().traffic[1].num_channels, 2u);  // headers and payload
      for (const cuda::TrafficLayout& traffic : layout.value().traffic) {
        EXPECT_GE(traffic.ring_chunks, 8u);
        EXPECT_TRUE(std::has_single_bit(traffic.ring_chunks));
      }
    }
  }
}

TEST(TeamLayout, sixteen_mebibytes_serve_four_ranks_well) {
  Result<cuda::TeamLayout> layout = lay_out(4, size_t{16} << 20);
  ASSERT_TRUE(layout.ok());
  EXPECT_GE(layout.value().region_packets, kernels::ll::one_shot_region_packets(4, size_t{512} << 10));
  EXPECT_GE(layout.value().region_packets, kernels::ll::two_shot_region_packets(4, size_t{1} << 20));
  for (const cuda::TrafficLayout& traffic : layout.value().traffic) {
    EXPECT_GE(uint64_t{3} * traffic.num_channels * traffic.ring_chunks * cuda::kWarpChunkBytes, uint64_t{2} << 20);
  }
}

TEST(TeamLayout, sizes_out_of_range_are_refused) {
  EXPECT_FALSE(lay_out(1, kMinSliceBytes).ok());
  EXPECT_FALSE(lay_out(cuda::kMaxTeamRanks + 1, kMinSliceBytes).ok());
  EXPECT_FALSE(lay_out(2, kMinSliceBytes - 1).ok());
  EXPECT_FALSE(lay_out(2, kMaxSliceBytes + 1).ok());
}

}  // namespace
}  // namespace axon::kernels
