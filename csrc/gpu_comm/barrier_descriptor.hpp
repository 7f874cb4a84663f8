// What ranks announce that meet around data which they move themselves: how much, and a digest of whatever else they
// have to share, such as how the whole is divided among them. In the 45 bits of DeviceDescriptor::num_bytes, which the
// meeting compares.
#pragma once

#include <cstdint>
#include <span>

namespace axon::gpu_comm {

struct BarrierDescriptor {
  uint64_t num_mib : 21;  // for the reader of an error; the digest knows the bytes
  uint64_t digest : 24;

  static BarrierDescriptor of(uint64_t num_bytes, std::span<const int64_t> shared) noexcept;
  static BarrierDescriptor from_bits(uint64_t bits) noexcept;
  uint64_t bits() const noexcept;
};

}  // namespace axon::gpu_comm
