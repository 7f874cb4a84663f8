// The intrinsics of g++ 12 pass vectors that they leave undefined (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"

// Standard headers first: the whole program shares their inline functions, which must run on any processor.
#include <immintrin.h>

#include <bit>
#include <cstring>

#include "codec/kernels.hpp"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx2"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx2")
#endif

namespace axon::codec {
namespace {

using Vector = __m512i;
using Mask = uint64_t;

struct Words {
  Vector first, second;
};

inline Vector load(const void* source) {
  return _mm512_loadu_si512(source);
}
inline void store(void* target, Vector vector) {
  _mm512_storeu_si512(target, vector);
}
inline Vector fill(uint8_t byte) {
  return _mm512_set1_epi8(static_cast<char>(byte));
}
inline Vector fill_16(const uint8_t* bytes) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
}

// The instructions that pack and unpack work within 16 bytes. These put the elements in order afterwards and before.
inline Vector order_packed(Vector vector) {
  return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), vector);
}
inline Vector order_to_unpack(Vector vector) {
  return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7), vector);
}

inline Vector low_bytes(Vector first, Vector second) {
  const Vector low = _mm512_set1_epi16(0xFF);
  return order_packed(_mm512_packus_epi16(_mm512_and_si512(first, low), _mm512_and_si512(second, low)));
}
inline Vector high_bytes(Vector first, Vector second) {
  return order_packed(_mm512_packus_epi16(_mm512_srli_epi16(first, 8), _mm512_srli_epi16(second, 8)));
}
inline Vector low_words(Vector first, Vector second) {
  const Vector low = _mm512_set1_epi32(0xFFFF);
  return order_packed(_mm512_packus_epi32(_mm512_and_si512(first, low), _mm512_and_si512(second, low)));
}
inline Vector high_words(Vector first, Vector second) {
  return order_packed(_mm512_packus_epi32(_mm512_srli_epi32(first, 16), _mm512_srli_epi32(second, 16)));
}
inline Words zip_bytes(Vector low, Vector high) {
  const Vector a = order_to_unpack(low), b = order_to_unpack(high);
  return {_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b)};
}
inline Words zip_words(Vector low, Vector high) {
  const Vector a = order_to_unpack(low), b = order_to_unpack(high);
  return {_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b)};
}

inline Vector rotate_words_left(Vector words) {
  return _mm512_or_si512(_mm512_slli_epi16(words, 1), _mm512_srli_epi16(words, 15));
}
inline Vector rotate_words_right(Vector words) {
  return _mm512_or_si512(_mm512_srli_epi16(words, 1), _mm512_slli_epi16(words, 15));
}
inline Vector rotate_double_words_left(Vector double_words) {
  return _mm512_rol_epi32(double_words, 1);
}
inline Vector rotate_double_words_right(Vector double_words) {
  return _mm512_ror_epi32(double_words, 1);
}

inline Vector max_of_bytes(Vector left, Vector right) {
  return _mm512_max_epu8(left, right);
}
inline Mask equal_bytes(Vector left, Vector right) {
  return _mm512_cmpeq_epi8_mask(left, right);
}
inline Vector look_up(Vector table, Vector indices) {
  return _mm512_shuffle_epi8(table, indices);
}

inline Vector codes_of(Vector exponents, Vector largest, Mask& escapes) {
  const Vector distances = _mm512_sub_epi8(largest, exponents);
  const Mask is_zero = _mm512_testn_epi8_mask(exponents, exponents);
  const Mask is_far = _mm512_cmpge_epu8_mask(distances, fill(kCodeOfZero));
  escapes = is_far & ~is_zero;
  const Vector codes = _mm512_mask_mov_epi8(distances, is_far, fill(kCodeOfEscape));
  return _mm512_mask_mov_epi8(codes, is_zero, fill(kCodeOfZero));
}
// Returns 16-bit words with the codes of two bytes each, in their lower halves.
inline Vector pair_halves(Vector codes) {
  return _mm512_maddubs_epi16(codes, _mm512_set1_epi16(0x1001));
}
inline Words split_halves(Vector codes) {
  const Vector low = _mm512_set1_epi8(0xF);
  return zip_bytes(_mm512_and_si512(codes, low), _mm512_and_si512(_mm512_srli_epi16(codes, 4), low));
}

}  // namespace
}  // namespace axon::codec

#include "codec/vector_kernels.hpp"

namespace axon::codec {

constinit const KernelTable kAvx512Kernels = make_table("avx512");

}  // namespace axon::codec

#if defined(__clang__)
#pragma clang attribute pop
#endif
