#include "gpu_comm/barrier_descriptor.hpp"

namespace axon::gpu_comm {

static constexpr int kDigestBits = 24;
static constexpr uint64_t kDigestMask = (uint64_t{1} << kDigestBits) - 1;

static uint64_t mix(uint64_t hash, uint64_t value) noexcept {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 32);
}

BarrierDescriptor BarrierDescriptor::of(uint64_t num_bytes, std::span<const int64_t> shared) noexcept {
  uint64_t hash = mix(shared.size(), num_bytes);
  for (const int64_t value : shared) hash = mix(hash, static_cast<uint64_t>(value));
  return {.num_mib = num_bytes >> 20, .digest = hash & kDigestMask};
}

BarrierDescriptor BarrierDescriptor::from_bits(uint64_t bits) noexcept {
  return {.num_mib = bits >> kDigestBits, .digest = bits & kDigestMask};
}

uint64_t BarrierDescriptor::bits() const noexcept {
  return uint64_t{num_mib} << kDigestBits | digest;
}

}  // namespace axon::gpu_comm
