// Digests of device memory, as base/digest.hpp defines them. Does not own its buffers.
//
//   AXON_TRY(digest(parts, sums, stream));   // then the sum of all `kDigestBlocks` numbers is the digest
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/status.hpp"
#include "cuda/stream.hpp"

namespace axon::kernels {

inline constexpr int kDigestBlocks = 256;
inline constexpr size_t kMostDigestParts = 32;

// May begin at any address.
struct DigestPart {
  const std::byte* data = nullptr;
  uint64_t num_bytes = 0;
};

// Writes the terms of each thread block, summed, to `sums`, which is pinned memory. At most kMostDigestParts parts; the
// first one has index `first_part`.
Status digest(std::span<const DigestPart> parts, uint64_t first_part, uint64_t* sums, cuda::StreamView stream);

// Loads the kernel onto the current device.
Status load_digest();

}  // namespace axon::kernels
