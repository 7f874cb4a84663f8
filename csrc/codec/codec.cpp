#include "codec/codec.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#include "codec/kernels.hpp"

namespace axon::codec {

// A frame with more escapes holds its data as it is.
static constexpr size_t kMostEscapes = kFrameElements / 32;
static constexpr size_t kEscapeBytes = 3;
// is_compressible() looks at the first of every 32 frames.
static constexpr size_t kFramesPerSample = 32;

enum class Content : uint8_t { kCoded = 0, kRaw = 1 };

struct FrameHeader {
  uint8_t largest = 0;  // exponent, or that from which codes count in its place
  Content content = Content::kRaw;
  uint16_t num_escapes = 0;
};
static_assert(sizeof(FrameHeader) == kFrameHeaderBytes);

std::span<const KernelTable* const> usable_tables() noexcept {
  static constexpr std::array<const KernelTable*, 3> kFastestFirst{&kAvx512Kernels, &kAvx2Kernels, &kScalarKernels};
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw");
  return std::span(kFastestFirst).subspan(has_avx512 ? 0 : has_avx2 ? 1 : 2);
}

static const KernelTable& fastest_table() noexcept {
  static const KernelTable& fastest = *usable_tables().front();
  return fastest;
}

static size_t index_of(Format format) noexcept {
  return format == Format::kBFloat16 ? 0 : 1;
}

// Returns the length of all planes, which hold signs and mantissas.
static size_t plane_bytes(Format format) noexcept {
  return frame_bytes(format) - kFrameElements;
}

double pays_below() noexcept {
  return fastest_table().pays_below;
}

// ---- Encoding

static std::byte* write_raw(std::span<const std::byte> data, std::byte* output) noexcept {
  const FrameHeader header;
  std::memcpy(output, &header, sizeof header);
  std::memcpy(output + sizeof header, data.data(), data.size());
  return output + sizeof header + data.size();
}

static std::byte* write_escapes(const Exponents& exponents, const EscapeMasks& escapes, std::byte* output) noexcept {
  for (size_t word = 0; word < escapes.size(); ++word) {
    for (uint64_t mask = escapes[word]; mask != 0; mask &= mask - 1) {
      const auto position = static_cast<uint16_t>(word * 64 + static_cast<size_t>(std::countr_zero(mask)));
      std::memcpy(output, &position, sizeof position);
      output[2] = static_cast<std::byte>(exponents[position]);
      output += kEscapeBytes;
    }
  }
  return output;
}

static uint8_t largest_below(const Exponents& exponents, uint8_t bound) noexcept {
  using Vector = uint8_t __attribute__((vector_size(16)));
  Vector largest{};
  for (size_t i = 0; i < exponents.size(); i += sizeof(Vector)) {
    Vector each;
    std::memcpy(&each, exponents.data() + i, sizeof each);
    each &= Vector(each < bound);
    largest = each > largest ? each : largest;
  }
  uint8_t result = 0;
  for (size_t i = 0; i < sizeof(Vector); ++i) result = std::max<uint8_t>(result, largest[i]);
  return result;
}

struct Coding {
  uint8_t largest;
  size_t num_escapes;
};

// Writes the codes. If most exponents are far below the largest one, as beside an infinity, they count from the largest
// of these instead, and those above it are escapes.
static Coding write_codes(const KernelTable& kernels, const Exponents& exponents, uint8_t largest, std::byte* codes,
                          EscapeMasks& escapes) noexcept {
  const size_t num_escapes = kernels.code(exponents, largest, codes, escapes);
  if (num_escapes <= kFrameElements / 2) return {largest, num_escapes};
  const uint8_t next = largest_below(exponents, static_cast<uint8_t>(largest - kCodeOfZero + 1));
  return {next, kernels.code(exponents, next, codes, escapes)};
}

// Planes and codes are written first: only the codes tell how many escapes there are.
static std::byte* write_frame(const KernelTable& kernels, Format format, std::span<const std::byte> data,
                              std::byte* output) noexcept {
  alignas(64) Exponents exponents;
  EscapeMasks escapes;
  std::byte* const planes = output + sizeof(FrameHeader);
  std::byte* const codes = planes + plane_bytes(format);
  const uint8_t largest = kernels.split[index_of(format)](data.data(), planes, exponents);
  const Coding coding = write_codes(kernels, exponents, largest, codes, escapes);
  if (coding.num_escapes > kMostEscapes) return write_raw(data, output);
  const FrameHeader header{coding.largest, Content::kCoded, static_cast<uint16_t>(coding.num_escapes)};
  std::memcpy(output, &header, sizeof header);
  return write_escapes(exponents, escapes, codes + kCodeBytes);
}

size_t encode(const KernelTable& kernels, Format format, std::span<const std::byte> data, std::byte* output) noexcept {
  std::byte* end = output;
  while (data.size() >= frame_bytes(format)) {
    end = write_frame(kernels, format, data.first(frame_bytes(format)), end);
    data = data.subspan(frame_bytes(format));
  }
  if (!data.empty()) end = write_raw(data, end);
  return static_cast<size_t>(end - output);
}

size_t encode(Format format, std::span<const std::byte> data, std::byte* output) noexcept {
  return encode(fastest_table(), format, data, output);
}

bool is_compressible(const KernelTable& kernels, Format format, std::span<const std::byte> data) noexcept {
  alignas(64) std::array<std::byte, kFrameElements * 4> unused;
  alignas(64) Exponents exponents;
  EscapeMasks escapes;
  const size_t num_frames = data.size() / frame_bytes(format);
  size_t num_coded = 0, num_seen = 0;
  for (size_t i = 0; i < num_frames; i += kFramesPerSample, ++num_seen) {
    const std::byte* const frame = data.data() + i * frame_bytes(format);
    const uint8_t largest = kernels.split[index_of(format)](frame, unused.data(), exponents);
    num_coded += write_codes(kernels, exponents, largest, unused.data(), escapes).num_escapes <= kMostEscapes;
  }
  return num_coded * 2 > num_seen;
}

bool is_compressible(Format format, std::span<const std::byte> data) noexcept {
  return is_compressible(fastest_table(), format, data);
}

// ---- Decoding

static Status malformed(const char* what) {
  return {ErrorCode::kTransport, std::string("not a frame of compressed data: ") + what};
}

// Puts the listed exponents in place. Their positions ascend, so none is listed twice.
static bool apply_escapes(Format format, std::span<const std::byte> escapes, const std::byte* codes,
                          std::byte* data) noexcept {
  int before = -1;
  for (; !escapes.empty(); escapes = escapes.subspan(kEscapeBytes)) {
    uint16_t position = 0;
    std::memcpy(&position, escapes.data(), sizeof position);
    if (position <= before || position >= kFrameElements) return false;
    const auto code = static_cast<uint8_t>(codes[position / 2]) >> position % 2 * 4 & 0xF;
    if (code != kCodeOfEscape) return false;
    before = position;
    const size_t element_bytes = frame_bytes(format) / kFrameElements;
    std::byte* const upper_half = data + position * element_bytes + element_bytes - sizeof(uint16_t);
    uint16_t bits = 0;
    std::memcpy(&bits, upper_half, sizeof bits);
    bits = static_cast<uint16_t>(bits | static_cast<uint8_t>(escapes[2]) << 7);
    std::memcpy(upper_half, &bits, sizeof bits);
  }
  return true;
}

// Decodes a frame of kCoded. Returns the number of bytes read; 0 if some of it is missing.
static Result<size_t> read_coded(const KernelTable& kernels, Format format, const FrameHeader& header,
                                 std::span<const std::byte> encoded, std::byte* output) noexcept {
  if (header.num_escapes > kMostEscapes) return malformed("more escapes than a frame may have");
  const size_t num_bytes = sizeof header + plane_bytes(format) + kCodeBytes + header.num_escapes * kEscapeBytes;
  if (encoded.size() < num_bytes) return size_t{0};
  const std::byte* const planes = encoded.data() + sizeof header;
  const std::byte* const codes = planes + plane_bytes(format);
  const size_t num_escapes = kernels.join[index_of(format)](planes, codes, header.largest, output);
  const auto escapes = encoded.first(num_bytes).last(header.num_escapes * kEscapeBytes);
  if (num_escapes != header.num_escapes || !apply_escapes(format, escapes, codes, output)) {
    return malformed("escapes that its codes do not have");
  }
  return num_bytes;
}

static Result<size_t> read_raw(const FrameHeader& header, std::span<const std::byte> encoded,
                               std::span<std::byte> output) noexcept {
  if (header.largest != 0 || header.num_escapes != 0) return malformed("raw data with escapes");
  const size_t num_bytes = sizeof header + output.size();
  if (encoded.size() < num_bytes) return size_t{0};
  std::memcpy(output.data(), encoded.data() + sizeof header, output.size());
  return num_bytes;
}

static Result<size_t> read_frame(const KernelTable& kernels, Format format, std::span<const std::byte> encoded,
                                 std::span<std::byte> output) noexcept {
  FrameHeader header;
  if (encoded.size() < sizeof header) return size_t{0};
  std::memcpy(&header, encoded.data(), sizeof header);
  if (header.content == Content::kRaw) return read_raw(header, encoded, output);
  if (header.content != Content::kCoded) return malformed("an unknown content");
  if (output.size() < frame_bytes(format)) return malformed("coded data where less than a frame is left");
  return read_coded(kernels, format, header, encoded, output.data());
}

Result<Decoded> decode(const KernelTable& kernels, Format format, std::span<const std::byte> encoded,
                       std::span<std::byte> output) noexcept {
  Decoded decoded;
  while (decoded.num_written < output.size()) {
    const size_t num_bytes_left = output.size() - decoded.num_written;
    const auto target = output.subspan(decoded.num_written, std::min(num_bytes_left, frame_bytes(format)));
    const Result<size_t> num_read = read_frame(kernels, format, encoded.subspan(decoded.num_read), target);
    if (!num_read.ok()) return num_read.status().clone();
    if (num_read.value() == 0) break;
    decoded.num_read += num_read.value();
    decoded.num_written += target.size();
  }
  return decoded;
}

Result<Decoded> decode(Format format, std::span<const std::byte> encoded, std::span<std::byte> output) noexcept {
  return decode(fastest_table(), format, encoded, output);
}

}  // namespace axon::codec
