// The chunk size of algorithms between hosts. It depends only on what all ranks know alike.
//
//   const size_t chunk_bytes = network_chunk_bytes(view, longest_shard);
#pragma once

#include <algorithm>

#include "collectives/patterns.hpp"
#include "messaging/view.hpp"

namespace axon::collectives {

// With its headers, an eager message should be one segment for the kernel (at most 64 KiB), not a long one and a short
// one.
inline constexpr size_t kLargestEagerChunk = size_t{60} << 10;

// Returns the length of chunks that are equally long, and at most this long.
inline size_t even_chunk_bytes(size_t num_bytes, size_t most) noexcept {
  const size_t count = Chunks(num_bytes, most).count();
  return rounded_to_granules((num_bytes + count - 1) / count);
}

// Without rails, or for short shards, messages are eager, since those of a rendezvous would queue after the data that
// is on its way. At 1 Gbit/s, an all_reduce of 64 MiB between two hosts needs at least 537 ms. It takes 569 ms with
// eager messages, and 630 ms with messages of 512 KiB over one connection.
//
// Over rails on 32 cores, an all_reduce of 16 MiB took 8.9 ms with eager messages. With chunks of 512 KiB to 1 MiB it
// took 2.9 ms, and with 2 MiB 2.4 (ADR 0046).
inline size_t network_chunk_bytes(const messaging::View& view, size_t longest_shard) noexcept {
  static constexpr size_t kShortestRailChunk = size_t{1} << 20;
  static constexpr size_t kLongestRailChunk = size_t{2} << 20;
  static constexpr size_t kShortestRailShard = size_t{768} << 10;
  static constexpr size_t kRailChunksInShard = 4;
  const bool takes_rails = view.has_rails() && longest_shard >= kShortestRailShard;
  const size_t most = takes_rails
                          ? std::clamp(longest_shard / kRailChunksInShard, kShortestRailChunk, kLongestRailChunk)
                          : kLargestEagerChunk;
  return even_chunk_bytes(longest_shard, most);
}

}  // namespace axon::collectives
