// Standard headers first: the whole program shares their inline functions, which must run on any processor.
#include <immintrin.h>

#include <bit>
#include <cstring>

#include "codec/kernels.hpp"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC target("avx2")
#endif

namespace axon::codec {
namespace {

using Vector = __m256i;
using Mask = uint32_t;

struct Words {
  Vector first, second;
};

inline Vector load(const void* source) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(source));
}
inline void store(void* target, Vector vector) {
  _mm256_storeu_si256(static_cast<__m256i*>(target), vector);
}
inline Vector fill(uint8_t byte) {
  return _mm256_set1_epi8(static_cast<char>(byte));
}
inline Vector fill_16(const uint8_t* bytes) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
}

// The instructions that pack and unpack work within 16 bytes. This puts the elements in order, afterwards or before.
inline Vector exchange_middle(Vector vector) {
  return _mm256_permute4x64_epi64(vector, 0xD8);
}

inline Vector low_bytes(Vector first, Vector second) {
  const Vector low = _mm256_set1_epi16(0xFF);
  return exchange_middle(_mm256_packus_epi16(_mm256_and_si256(first, low), _mm256_and_si256(second, low)));
}
inline Vector high_bytes(Vector first, Vector second) {
  return exchange_middle(_mm256_packus_epi16(_mm256_srli_epi16(first, 8), _mm256_srli_epi16(second, 8)));
}
inline Vector low_words(Vector first, Vector second) {
  const Vector low = _mm256_set1_epi32(0xFFFF);
  return exchange_middle(_mm256_packus_epi32(_mm256_and_si256(first, low), _mm256_and_si256(second, low)));
}
inline Vector high_words(Vector first, Vector second) {
  return exchange_middle(_mm256_packus_epi32(_mm256_srli_epi32(first, 16), _mm256_srli_epi32(second, 16)));
}
inline Words zip_bytes(Vector low, Vector high) {
  const Vector a = exchange_middle(low), b = exchange_middle(high);
  return {_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b)};
}
inline Words zip_words(Vector low, Vector high) {
  const Vector a = exchange_middle(low), b = exchange_middle(high);
  return {_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b)};
}

inline Vector rotate_words_left(Vector words) {
  return _mm256_or_si256(_mm256_slli_epi16(words, 1), _mm256_srli_epi16(words, 15));
}
inline Vector rotate_words_right(Vector words) {
  return _mm256_or_si256(_mm256_srli_epi16(words, 1), _mm256_slli_epi16(words, 15));
}
inline Vector rotate_double_words_left(Vector double_words) {
  return _mm256_or_si256(_mm256_slli_epi32(double_words, 1), _mm256_srli_epi32(double_words, 31));
}
inline Vector rotate_double_words_right(Vector double_words) {
  return _mm256_or_si256(_mm256_srli_epi32(double_words, 1), _mm256_slli_epi32(double_words, 31));
}

inline Vector max_of_bytes(Vector left, Vector right) {
  return _mm256_max_epu8(left, right);
}
inline Mask equal_bytes(Vector left, Vector right) {
  return static_cast<Mask>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(left, right)));
}
inline Vector look_up(Vector table, Vector indices) {
  return _mm256_shuffle_epi8(table, indices);
}

inline Vector codes_of(Vector exponents, Vector largest, Mask& escapes) {
  const Vector distances = _mm256_sub_epi8(largest, exponents);
  const Vector is_zero = _mm256_cmpeq_epi8(exponents, fill(0));
  const Vector is_far = _mm256_cmpeq_epi8(_mm256_max_epu8(distances, fill(kCodeOfZero)), distances);
  escapes = static_cast<Mask>(_mm256_movemask_epi8(_mm256_andnot_si256(is_zero, is_far)));
  const Vector codes = _mm256_blendv_epi8(distances, fill(kCodeOfEscape), is_far);
  return _mm256_blendv_epi8(codes, fill(kCodeOfZero), is_zero);
}
// Returns 16-bit words with the codes of two bytes each, in their lower halves.
inline Vector pair_halves(Vector codes) {
  return _mm256_maddubs_epi16(codes, _mm256_set1_epi16(0x1001));
}
inline Words split_halves(Vector codes) {
  const Vector low = _mm256_set1_epi8(0xF);
  return zip_bytes(_mm256_and_si256(codes, low), _mm256_and_si256(_mm256_srli_epi16(codes, 4), low));
}

}  // namespace
}  // namespace axon::codec

#include "codec/vector_kernels.hpp"

namespace axon::codec {

constinit const KernelTable kAvx2Kernels = make_table("avx2");

}  // namespace axon::codec

#if defined(__clang__)
#pragma clang attribute pop
#endif
