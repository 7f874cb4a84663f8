// Communication patterns: which rank exchanges which bytes with which other rank. Pure functions and values, tested
// alone.
//
//   const Partition parts(tensor.num_bytes, num_ranks);
//   const Buffer own = slice(tensor, parts[rank]);
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <span>

#include "memory/buffer.hpp"

namespace axon::collectives {

struct Range {
  size_t begin = 0;
  size_t length = 0;

  friend bool operator==(const Range&, const Range&) = default;
};

inline Buffer slice(Buffer buffer, Range range) noexcept {
  return buffer.slice(range.begin, range.length);
}
inline ConstBuffer slice(ConstBuffer buffer, Range range) noexcept {
  return buffer.slice(range.begin, range.length);
}

// Returns the number of bytes of the longest of these buffers.
template <typename Shard>
size_t longest_of(std::span<const Shard> shards) noexcept {
  size_t longest = 0;
  for (const Shard& shard : shards) longest = std::max(longest, shard.num_bytes);
  return longest;
}

// Returns the number of bytes of all these buffers together.
template <typename Shard>
size_t total_of(std::span<const Shard> shards) noexcept {
  size_t num_bytes = 0;
  for (const Shard& shard : shards) num_bytes += shard.num_bytes;
  return num_bytes;
}

// A cache line. Every element type fills it evenly, so multiples of it are boundaries between elements.
inline constexpr size_t kGranule = 64;

// Rounds up, to at least one granule.
constexpr size_t rounded_to_granules(size_t num_bytes) noexcept {
  return std::max<size_t>(1, (num_bytes + kGranule - 1) / kGranule) * kGranule;
}

// Splits `num_bytes` into consecutive parts, as even as whole granules allow, longer ones first; the last may be empty.
class Partition {
 public:
  Partition(size_t num_bytes, int num_parts) noexcept : num_bytes_(num_bytes) {
    const size_t num_granules = (num_bytes + kGranule - 1) / kGranule;
    shortest_ = num_granules / static_cast<size_t>(num_parts);
    num_longer_ = num_granules % static_cast<size_t>(num_parts);
  }

  Range operator[](int part) const noexcept {
    const size_t begin = begin_of(static_cast<size_t>(part));
    return {begin, begin_of(static_cast<size_t>(part) + 1) - begin};
  }

 private:
  size_t begin_of(size_t part) const noexcept {
    return std::min(num_bytes_, (part * shortest_ + std::min(part, num_longer_)) * kGranule);
  }

  size_t num_bytes_;
  size_t shortest_;
  size_t num_longer_;
};

// Splits `num_bytes` into chunks of `chunk_bytes`, the last one shorter. There is always a first chunk, which may be
// empty: its message tells the other side that the shard is empty. Chunks past the end are empty and are not sent.
class Chunks {
 public:
  constexpr Chunks(size_t num_bytes, size_t chunk_bytes) noexcept : num_bytes_(num_bytes), chunk_bytes_(chunk_bytes) {}

  constexpr size_t count() const noexcept {
    return std::max<size_t>(1, (num_bytes_ + chunk_bytes_ - 1) / chunk_bytes_);
  }
  bool contains(size_t chunk) const noexcept { return chunk < count(); }

  Range operator[](size_t chunk) const noexcept {
    const size_t begin = std::min(num_bytes_, chunk * chunk_bytes_);
    return {begin, std::min(num_bytes_ - begin, chunk_bytes_)};
  }

 private:
  size_t num_bytes_;
  size_t chunk_bytes_;
};

// Returns the rank `distance` ranks up (or down, if negative) the ring; |distance| ≤ num_ranks.
inline int ring_neighbour(int rank, int distance, int num_ranks) noexcept {
  return (rank + distance + num_ranks) % num_ranks;
}

// The order in which chunks of all shards travel around a ring. A group of chunks makes all its steps before the next
// group starts, and the chunks of a group follow one another within a step.
struct RingSchedule {
  size_t num_steps;
  size_t group;       // chunks
  size_t num_chunks;  // of the longest shard

  struct Item {
    int step;
    size_t chunk;

    friend bool operator==(const Item&, const Item&) = default;
  };

  size_t count() const noexcept { return num_steps * group * ((num_chunks + group - 1) / group); }
  Item operator[](size_t index) const noexcept {
    const size_t round = index / group;
    return {static_cast<int>(round % num_steps), round / num_steps * group + index % group};
  }
};

// A binomial tree over positions 0 … n−1, rooted at 0. A position's parent lacks its lowest set bit; its children add
// one bit below that.
struct BinomialTree {
  int position;
  int num_positions;

  int parent() const noexcept { return position & (position - 1); }
  // The children are position + mask for every power of two below this limit for which that position exists.
  int child_limit() const noexcept {
    return position == 0 ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(num_positions))) : position & -position;
  }
  bool has_child(int mask) const noexcept { return position + mask < num_positions; }
};

// Recursive doubling needs a power of two: the first 2·(n − 2^k) ranks form pairs, and the lower rank of each pair
// represents both. Neighbouring ranks stay neighbours, so partial results still cover consecutive ranks.
struct PowerOfTwoFold {
  int rank;
  int num_ranks;

  int num_active() const noexcept { return static_cast<int>(std::bit_floor(static_cast<unsigned>(num_ranks))); }
  bool is_paired() const noexcept { return rank < 2 * num_pairs(); }
  bool is_represented() const noexcept { return is_paired() && rank % 2 == 1; }
  int pair_partner() const noexcept { return rank ^ 1; }
  // The position of an active (not represented) rank among the active ones, and the reverse.
  int position() const noexcept { return is_paired() ? rank / 2 : rank - num_pairs(); }
  int rank_at(int position) const noexcept { return position < num_pairs() ? 2 * position : position + num_pairs(); }

 private:
  int num_pairs() const noexcept { return num_ranks - num_active(); }
};

}  // namespace axon::collectives
