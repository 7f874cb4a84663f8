// How elements are laid out in memory and in a vector register: one Format per stored type, with a load that widens and
// a store that narrows. Only the kernels' files include this. Each chooses an instruction set and AXON_VECTOR_BYTES
// first, and compiles its own copy, hence the unnamed namespaces. (The compiler's macros cannot tell the instruction
// set: g++ fixes them before it sees the pragma that chooses it.)
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace axon::arithmetic {
namespace {

constexpr size_t kVectorBytes = AXON_VECTOR_BYTES;

template <typename Value>
struct VectorOf {
  typedef Value Type __attribute__((vector_size(kVectorBytes)));
};
template <typename Value>
using Vector = typename VectorOf<Value>::Type;

using Floats = Vector<float>;
using Words = Vector<uint32_t>;

// Numbers with the same layout in a vector as in memory. Casts between vectors of one size reinterpret.
template <typename T>
struct Plain {
  using Value = T;
  static constexpr size_t kNumBytes = sizeof(T);

  static Vector<T> load(const std::byte* source) {
    Vector<T> vector;
    std::memcpy(&vector, source, sizeof(vector));
    return vector;
  }
  static void store(std::byte* target, Vector<T> vector) { std::memcpy(target, &vector, sizeof(vector)); }
};

// 16-bit elements in the lower halves of 32-bit lanes. Uses intrinsics, because g++ makes a dozen shuffles of its own
// __builtin_convertvector: bfloat16 ran at half the speed. Uses the masked forms with all lanes on, because g++ 12 sees
// an uninitialised value inside the plain ones.
#if AXON_VECTOR_BYTES == 64
inline Words load_half_bits(const std::byte* source) {
  return (Words)_mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source)));
}
inline void store_half_bits(std::byte* target, Words words) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(target), _mm512_maskz_cvtepi32_epi16(0xffff, (__m512i)words));
}
#elif AXON_VECTOR_BYTES == 32
inline Words load_half_bits(const std::byte* source) {
  return (Words)_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source)));
}
inline void store_half_bits(std::byte* target, Words words) {
  const __m256i vector = (__m256i)words;
  _mm_storeu_si128(reinterpret_cast<__m128i*>(target),
                   _mm_packus_epi32(_mm256_castsi256_si128(vector), _mm256_extracti128_si256(vector, 1)));
}
#else
inline Words load_half_bits(const std::byte* source) {
  return (Words)_mm_unpacklo_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(source)), _mm_setzero_si128());
}
inline void store_half_bits(std::byte* target, Words words) {
  const Vector<int32_t> sign_extended = (Vector<int32_t>)(words << 16) >> 16;  // SSE2 packs signed lanes only
  const __m128i vector = (__m128i)sign_extended;
  _mm_storel_epi64(reinterpret_cast<__m128i*>(target), _mm_packs_epi32(vector, vector));
}
#endif

// The upper half of a float32.
struct BFloat16 {
  using Value = float;
  static constexpr size_t kNumBytes = 2;

  static Floats load(const std::byte* source) { return (Floats)(load_half_bits(source) << 16); }

  static void store(std::byte* target, Floats floats) {
    const Words bits = (Words)floats;
    const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // to nearest, ties to even
    const Words quiet_nan = (bits >> 16) | 0x40;                       // rounding could carry a NaN into infinity
    store_half_bits(target, floats != floats ? quiet_nan : rounded);
  }
};

struct Float16 {
  using Value = float;
  static constexpr size_t kNumBytes = 2;

#if AXON_VECTOR_BYTES == 64
  static Floats load(const std::byte* source) {
    return (Floats)_mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source)));
  }
  static void store(std::byte* target, Floats floats) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(target),
                        _mm512_maskz_cvtps_ph(0xffff, (__m512)floats, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
#elif AXON_VECTOR_BYTES == 32
  static Floats load(const std::byte* source) {
    return (Floats)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source)));
  }
  static void store(std::byte* target, Floats floats) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(target), _mm256_cvtps_ph((__m256)floats, _MM_FROUND_TO_NEAREST_INT));
  }
#else
  // Computes what the instructions do, bit for bit. Like them it ignores the processor's flushing of subnormals.
  static Floats load(const std::byte* source) {
    const Words bits = load_half_bits(source);
    const Words magnitude = bits & 0x7fff;
    const Words normal = (magnitude << 13) + (112u << 23);  // the exponent's bias grows from 15 to 127
    const Words subnormal = (Words)(__builtin_convertvector((Vector<int32_t>)magnitude, Floats) * 0x1p-24f);
    const Words infinity_or_nan = (magnitude << 13) | 0x7f800000;
    const Words quiet = (Words)(magnitude > 0x7c00) & 0x400000;
    const Words finite = magnitude < 0x400 ? subnormal : normal;
    return (Floats)(((bits & 0x8000) << 16) | (magnitude < 0x7c00 ? finite : infinity_or_nan | quiet));
  }

  static void store(std::byte* target, Floats floats) {
    const Words bits = (Words)floats;
    const Words magnitude = bits & 0x7fffffff;
    const Words normal = (magnitude + 0xfff + ((magnitude >> 13) & 1) - (112u << 23)) >> 13;
    // Adding 1/2 makes the adder round at 2^-24, the subnormals' unit.
    const Words subnormal = (Words)((Floats)magnitude + 0.5f) - 0x3f000000;
    const Words nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
    const Words finite = magnitude < 0x38800000 ? subnormal : normal;
    const Words special = magnitude > 0x7f800000 ? nan : Words{} + 0x7c00;
    store_half_bits(target, ((bits >> 16) & 0x8000) | (magnitude < 0x47800000 ? finite : special));
  }
#endif
};

}  // namespace
}  // namespace axon::arithmetic
