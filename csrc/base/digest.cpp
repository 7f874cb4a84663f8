#include "base/digest.hpp"

#include <cstring>

namespace axon {

static uint64_t load_word(const std::byte* data, size_t num_bytes) noexcept {
  uint64_t word = 0;
  std::memcpy(&word, data, num_bytes);
  return word;
}

uint64_t digest_of(const std::byte* data, size_t num_bytes, uint64_t first_index) noexcept {
  const size_t num_words = num_bytes / sizeof(uint64_t);
  uint64_t digest = 0;
  for (size_t i = 0; i < num_words; ++i) {
    digest += digest_term(load_word(data + i * sizeof(uint64_t), sizeof(uint64_t)), first_index + i);
  }
  const size_t num_whole = num_words * sizeof(uint64_t);
  if (num_whole == num_bytes) return digest;
  return digest + digest_term(load_word(data + num_whole, num_bytes - num_whole), first_index + num_words);
}

}  // namespace axon
