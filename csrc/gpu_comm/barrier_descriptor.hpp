// Describes data that ranks move themselves, by its amount and a digest. Ranks compare it at a barrier. The digest
// covers everything else that they must share, such as how the data is divided among them. A plain value, carried in
// the 45 bits of DeviceDescriptor::num_bytes, which the barrier compares.
#pragma once

#include <cstdint>
#include <span>

namespace axon::gpu_comm {

struct BarrierDescriptor {
  uint64_t num_mib : 21;  // shown in errors; the digest covers the exact bytes
  uint64_t digest : 24;

  static BarrierDescriptor of(uint64_t num_bytes, std::span<const int64_t> shared) noexcept;
  static BarrierDescriptor from_bits(uint64_t bits) noexcept;
  uint64_t bits() const noexcept;
};

}  // namespace axon::gpu_comm
