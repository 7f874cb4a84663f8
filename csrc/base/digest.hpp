// A digest of 64 bits, for comparing data that should be equal. Any single changed bit changes it. It is the sum of one
// term for each word of eight bytes, so a CPU and a GPU may add the terms in any order. Not cryptographic.
//
//   uint64_t digest = digest_of(first, 0) + digest_of(second, kWordsOfAPart);   // of two parts
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define AXON_ON_HOST_AND_DEVICE __host__ __device__
#else
#define AXON_ON_HOST_AND_DEVICE
#endif

namespace axon {

// The first word of each part has an index of its own, however long the other parts are.
inline constexpr uint64_t kWordsOfAPart = uint64_t{1} << 40;

// The keys of consecutive words differ by the step.
inline constexpr uint64_t kKeyStep = 0x9e37'79b9'7f4a'7c15;
AXON_ON_HOST_AND_DEVICE constexpr uint64_t digest_key(uint64_t index) noexcept {
  return (index + 1) * kKeyStep;
}

// A product of 32 bits by 32 is one vector instruction, on CPUs, too.
AXON_ON_HOST_AND_DEVICE constexpr uint64_t digest_term(uint64_t word, uint64_t key) noexcept {
  const uint64_t mixed = word ^ key;
  return word + (mixed & 0xffff'ffff) * (mixed >> 32 | 2);  // a factor of 1 could undo a change of the word
}

// The bytes after the last whole word count as a word that ends with zeros.
uint64_t digest_of(const std::byte* data, size_t num_bytes, uint64_t first_index) noexcept;

}  // namespace axon
