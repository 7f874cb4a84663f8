// A lossless codec for floating-point data, which uses only a few of the possible exponents: a frame stores each
// exponent as a 4-bit distance from the largest one. Every bit pattern is restored, NaN payloads and −0 too.
//
//   const Format format = *format_of(DataType::kBFloat16);
//   if (is_compressible(format, values)) {
//     std::vector<std::byte> encoded(most_encoded_bytes(format, values.size()));
//     encoded.resize(encode(format, values, encoded.data()));
//   }
//   Result<Decoded> decoded = decode(format, encoded, values);   // foreign bytes: any are safe to decode
//
// Data of 0.751 (bfloat16) and 0.876 (float32) of its length is typical. Layout of a frame: docs/wire.md; why:
// docs/adr/0045-compress-floating-point-data-on-slow-links.md. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/data_type.hpp"
#include "base/status.hpp"

namespace axon::codec {

// Values are part of the wire format.
enum class Format : uint8_t { kBFloat16 = 1, kFloat32 = 2 };

inline constexpr size_t kFrameElements = 4096;
inline constexpr size_t kFrameHeaderBytes = 4;

// Returns the format of a type that the codec knows.
constexpr std::optional<Format> format_of(DataType type) noexcept {
  if (type == DataType::kBFloat16) return Format::kBFloat16;
  if (type == DataType::kFloat32) return Format::kFloat32;
  return std::nullopt;
}

// Returns how many bytes of data a whole frame holds.
constexpr size_t frame_bytes(Format format) noexcept {
  return kFrameElements * (format == Format::kBFloat16 ? 2 : 4);
}

// Returns the most bytes into which data of this length is encoded.
constexpr size_t most_encoded_bytes(Format format, size_t num_bytes) noexcept {
  const size_t num_frames = (num_bytes + frame_bytes(format) - 1) / frame_bytes(format);
  return num_bytes + num_frames * kFrameHeaderBytes;
}

// Encodes the data as a sequence of frames. The last one may be shorter, and holds its data as it is.
// @param output has room for most_encoded_bytes().
// @return the number of bytes written.
size_t encode(Format format, std::span<const std::byte> data, std::byte* output) noexcept;

// Returns whether encoding is likely to make the data shorter, judging by a few frames.
bool is_compressible(Format format, std::span<const std::byte> data) noexcept;

// Returns the speed of a link, in bytes per second, below which encoding pays. It is well below the codec's own speed
// on this processor, whose cores have other work, too.
double pays_below() noexcept;

struct Decoded {
  size_t num_read = 0;     // of the encoded bytes
  size_t num_written = 0;  // to the output
};

// Decodes the frames that lie in `encoded` completely, until `output` is full. What follows them is left for another
// call, with the rest of the output. Fails if the bytes are not frames; some of the output may have been written then.
Result<Decoded> decode(Format format, std::span<const std::byte> encoded, std::span<std::byte> output) noexcept;

}  // namespace axon::codec
