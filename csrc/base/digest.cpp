#include "base/digest.hpp"

#include <cstring>

namespace axon {

// The compiler vectorises the loop, with AVX2 2.5 times as fast. A sanitizer would run in the function that selects the
// variant, before it has been initialised.
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define AXON_FOR_EACH_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define AXON_FOR_EACH_CPU
#endif

AXON_FOR_EACH_CPU static uint64_t digest_of_words(const std::byte* data, size_t count, uint64_t first_index) noexcept {
  uint64_t digest = 0;
  uint64_t key = digest_key(first_index);
  for (size_t i = 0; i < count; ++i, key += kKeyStep) {
    uint64_t word;
    std::memcpy(&word, data + i * sizeof word, sizeof word);
    digest += digest_term(word, key);
  }
  return digest;
}

uint64_t digest_of(const std::byte* data, size_t num_bytes, uint64_t first_index) noexcept {
  const size_t num_words = num_bytes / sizeof(uint64_t);
  const size_t num_whole = num_words * sizeof(uint64_t);
  const uint64_t digest = digest_of_words(data, num_words, first_index);
  if (num_whole == num_bytes) return digest;
  uint64_t last = 0;
  std::memcpy(&last, data + num_whole, num_bytes - num_whole);
  return digest + digest_term(last, digest_key(first_index + num_words));
}

}  // namespace axon
