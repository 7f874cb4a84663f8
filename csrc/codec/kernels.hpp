// The loops of the codec over whole frames, once for each vector width; the processor's features select one at run
// time. All of them make the same frames.
//
// An element is rotated left by one bit, which moves its exponent into the highest byte, and sign and mantissa into the
// others. These others are the planes of a frame: of float32, 16 bits of each element and then 8; of bfloat16, 8.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/codec.hpp"

namespace axon::codec {

inline constexpr size_t kCodeBytes = kFrameElements / 2;
// Codes up to 13 are the distance from the largest exponent. The others are:
inline constexpr uint8_t kCodeOfZero = 14;    // the exponent 0, of zeros and denormals
inline constexpr uint8_t kCodeOfEscape = 15;  // an exponent that the frame lists

using Exponents = std::array<uint8_t, kFrameElements>;
using EscapeMasks = std::array<uint64_t, kFrameElements / 64>;  // bit i of word j: element 64 j + i

// Writes the planes and returns the largest exponent.
using SplitKernel = uint8_t (*)(const std::byte* data, std::byte* planes, Exponents& exponents);
// Writes the codes, the even elements' in the lower halves of the bytes. Returns the number of escapes.
using CodeKernel = size_t (*)(const Exponents& exponents, uint8_t largest, std::byte* codes, EscapeMasks& escapes);
// Writes the data; elements whose code is kCodeOfEscape get the exponent 0. Returns their number.
using JoinKernel = size_t (*)(const std::byte* planes, const std::byte* codes, uint8_t largest, std::byte* data);

struct KernelTable {
  const char* name;
  double pays_below;                 // as the function
  std::array<SplitKernel, 2> split;  // of bfloat16 and float32
  CodeKernel code;
  std::array<JoinKernel, 2> join;  // of bfloat16 and float32
};

extern const KernelTable kScalarKernels;
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;

// Returns the tables that this processor can run, fastest first.
std::span<const KernelTable* const> usable_tables() noexcept;

// The public functions, with kernels of the caller's choice.
size_t encode(const KernelTable& kernels, Format format, std::span<const std::byte> data, std::byte* output) noexcept;
bool is_compressible(const KernelTable& kernels, Format format, std::span<const std::byte> data) noexcept;
Result<Decoded> decode(const KernelTable& kernels, Format format, std::span<const std::byte> encoded,
                       std::span<std::byte> output) noexcept;

}  // namespace axon::codec
