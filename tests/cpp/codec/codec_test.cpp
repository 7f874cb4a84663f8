#include "codec/codec.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "codec/kernels.hpp"

namespace axon::codec {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::array<Format, 2> kFormats{Format::kBFloat16, Format::kFloat32};
constexpr size_t kHeaderBytes = kFrameHeaderBytes;

size_t element_bytes(Format format) {
  return frame_bytes(format) / kFrameElements;
}

// AXON_CODEC_PATTERNS=100000000 compares more than the default suite has time for.
size_t num_patterns() {
  const char* const text = std::getenv("AXON_CODEC_PATTERNS");
  return text == nullptr ? size_t{4} << 20 : std::stoul(text);
}

// Normal numbers, as weights are.
Bytes weights(Format format, size_t num_elements, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.02F);
  Bytes bytes(num_elements * element_bytes(format));
  for (size_t i = 0; i < num_elements; ++i) {
    const float value = normal(random);
    const auto* const source = reinterpret_cast<const std::byte*>(&value) + sizeof value - element_bytes(format);
    std::memcpy(bytes.data() + i * element_bytes(format), source, element_bytes(format));
  }
  return bytes;
}

Bytes random_bytes(size_t num_bytes, unsigned seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(num_bytes);
  for (std::byte& each : bytes) each = static_cast<std::byte>(random());
  return bytes;
}

Bytes encoded(const KernelTable& kernels, Format format, const Bytes& data) {
  Bytes frames(most_encoded_bytes(format, data.size()) + 1, std::byte{0x5A});
  const size_t num_bytes = encode(kernels, format, data, frames.data());
  EXPECT_EQ(frames.back(), std::byte{0x5A}) << "written beyond the bound";
  EXPECT_LT(num_bytes, frames.size());
  frames.resize(num_bytes);
  return frames;
}

// Encodes and decodes with all kernels, which must agree. Returns the frames.
Bytes check(Format format, const Bytes& data) {
  const Bytes frames = encoded(kScalarKernels, format, data);
  for (const KernelTable* const kernels : usable_tables()) {
    SCOPED_TRACE(kernels->name);
    EXPECT_EQ(encoded(*kernels, format, data), frames);
    Bytes output(data.size(), std::byte{0x5A});
    const Result<Decoded> decoded = decode(*kernels, format, frames, output);
    if (!decoded.ok()) {
      ADD_FAILURE() << decoded.status().message();
      continue;
    }
    EXPECT_EQ(decoded.value().num_read, frames.size());
    EXPECT_EQ(decoded.value().num_written, data.size());
    EXPECT_TRUE(output == data);
  }
  return frames;
}

TEST(Codec, shortens_weights) {
  const double bfloat16 = static_cast<double>(check(Format::kBFloat16, weights(Format::kBFloat16, 1 << 16, 1)).size());
  EXPECT_LT(bfloat16 / (2 << 16), 0.7515);
  const double float32 = static_cast<double>(check(Format::kFloat32, weights(Format::kFloat32, 1 << 16, 2)).size());
  EXPECT_LT(float32 / (4 << 16), 0.8765);
}

TEST(Codec, restores_every_bfloat16_pattern_in_coded_frames) {
  Bytes data((size_t{1} << 16) * 2);
  for (uint32_t i = 0; i < 1 << 16; ++i) {
    const auto pattern = static_cast<uint16_t>(std::rotr(static_cast<uint16_t>(i), 1));
    std::memcpy(data.data() + size_t{i} * 2, &pattern, sizeof pattern);
  }
  check(Format::kBFloat16, data);
  // In coded frames: each of 8 exponents, all of whose patterns occur, and a few that are far below them.
  for (size_t shift = 0; shift < 32; ++shift) {
    Bytes frame(frame_bytes(Format::kBFloat16));
    for (uint32_t i = 0; i < kFrameElements; ++i) {
      const bool is_far = i % 512 == 7 && i / 512 + 14 < shift * 8;
      const size_t exponent = is_far ? i / 512 : shift * 8 + i / 512;
      const auto pattern = std::rotr(static_cast<uint16_t>(exponent << 8 | i % 256), 1);
      std::memcpy(frame.data() + size_t{i} * 2, &pattern, sizeof pattern);
    }
    EXPECT_LT(check(Format::kBFloat16, frame).size(), frame.size()) << "exponents from " << shift * 8;
  }
}

TEST(Codec, restores_many_patterns) {
  constexpr size_t kElements = 32 * kFrameElements;
  std::mt19937_64 random(3);
  for (size_t done = 0; done < num_patterns(); done += 2 * kElements) {
    for (const Format format : kFormats) {
      // Any signs and mantissas; exponents in a window, and any in up to 3 % of the elements.
      Bytes data(kElements * element_bytes(format));
      const uint64_t lowest = random() % 256, width = 1 + random() % 20, one_in = 32 + random() % 512;
      for (size_t i = 0; i < kElements; ++i) {
        const uint64_t bits = random();
        const uint64_t exponent =
            (bits >> 48) % one_in == 0 ? bits >> 40 & 0xFF : (lowest + (bits >> 32) % width) % 256;
        const auto pattern = static_cast<uint32_t>(exponent << 23 | (bits & 0x807FFFFF));
        std::memcpy(data.data() + i * element_bytes(format),
                    reinterpret_cast<const std::byte*>(&pattern) + 4 - element_bytes(format), element_bytes(format));
      }
      check(format, data);
      if (HasFailure()) return;
    }
  }
}

TEST(Codec, restores_random_bits_and_special_values) {
  for (const Format format : kFormats) {
    const Bytes bits = random_bytes(3 * frame_bytes(format), 4);
    EXPECT_EQ(check(format, bits).size(), bits.size() + 3 * kHeaderBytes);
    // Quiet and signalling NaNs with payloads, infinities, both zeros, denormals, the largest and the smallest number.
    const std::array<uint32_t, 10> special{0x7FC12345, 0xFFA55555, 0x7F800000, 0xFF800000, 0x00000000,
                                           0x80000000, 0x00010001, 0x807FFFFF, 0x7F7FFFFF, 0x00800000};
    Bytes data = weights(format, 2 * kFrameElements, 5);
    for (size_t i = 0; i < special.size() * 8; ++i) {
      std::memcpy(data.data() + i * 97 % (2 * kFrameElements) * element_bytes(format),
                  reinterpret_cast<const std::byte*>(&special[i % special.size()]) + 4 - element_bytes(format),
                  element_bytes(format));
    }
    check(format, data);
  }
}

TEST(Codec, codes_zeros_and_few_escapes) {
  for (const Format format : kFormats) {
    const size_t coded = kHeaderBytes + frame_bytes(format) - kFrameElements + kCodeBytes;
    EXPECT_EQ(check(format, Bytes(frame_bytes(format))).size(), coded);
    for (const size_t num_escapes : {1u, 64u, 128u, 129u}) {
      Bytes data = weights(format, kFrameElements, 6);
      for (size_t i = 0; i < kFrameElements; ++i) {  // exponents of 120 to 127
        std::byte* const upper = data.data() + (i + 1) * element_bytes(format) - 2;
        upper[1] = std::byte{0x3C} | (upper[1] & std::byte{0x83});
        upper[0] = upper[0] & std::byte{0x7F};
        if (i % 31 == 0 && i / 31 < num_escapes) upper[1] = std::byte{0x05};
      }
      const size_t expected = num_escapes <= 128 ? coded + 3 * num_escapes : data.size() + kHeaderBytes;
      EXPECT_EQ(check(format, data).size(), expected) << num_escapes << " escapes";
    }
  }
}

TEST(Codec, codes_frames_with_a_few_far_larger_numbers) {
  for (const Format format : kFormats) {
    for (const uint8_t upper : {uint8_t{0x7F}, uint8_t{0xFF}, uint8_t{0x48}}) {  // NaN, its negative, about 2^17
      Bytes data = weights(format, kFrameElements, 15);
      for (size_t i = 0; i < 50; ++i) data[(i * 81 + 1) * element_bytes(format) - 1] = static_cast<std::byte>(upper);
      const Bytes frame = check(format, data);
      EXPECT_LT(frame.size(), data.size() - kFrameElements / 2 + 1000);
    }
  }
}

TEST(Codec, takes_any_length) {
  for (const Format format : kFormats) {
    const size_t whole = frame_bytes(format);
    for (const size_t num_bytes : {size_t{0}, size_t{1}, size_t{7}, whole - 1, whole, whole + 3, 2 * whole + 2}) {
      Bytes data = weights(format, 3 * kFrameElements, 7);
      data.resize(num_bytes);
      check(format, data);
    }
  }
}

TEST(Codec, samples_data_to_judge_it) {
  for (const Format format : kFormats) {
    EXPECT_TRUE(is_compressible(format, weights(format, 100 * kFrameElements, 8)));
    EXPECT_FALSE(is_compressible(format, random_bytes(100 * frame_bytes(format), 9)));
    EXPECT_FALSE(is_compressible(format, weights(format, kFrameElements - 1, 10)));
    EXPECT_FALSE(is_compressible(format, {}));
  }
}

TEST(Codec, decodes_what_has_arrived_so_far) {
  for (const Format format : kFormats) {
    Bytes data = weights(format, 5 * kFrameElements + 10, 11);
    const Bytes frames = encoded(kScalarKernels, format, data);
    Bytes output(data.size());
    size_t begin = 0, num_written = 0;
    for (size_t end = 0; end <= frames.size();
         end += std::min<size_t>(1000, std::max<size_t>(1, frames.size() - end))) {
      const auto decoded =
          decode(format, std::span(frames).subspan(begin, end - begin), std::span(output).subspan(num_written));
      ASSERT_TRUE(decoded.ok());
      begin += decoded.value().num_read;
      num_written += decoded.value().num_written;
    }
    EXPECT_EQ(begin, frames.size());
    EXPECT_TRUE(output == data);
  }
}

TEST(Codec, refuses_frames_that_no_encoder_writes) {
  const Format format = Format::kBFloat16;
  Bytes data;
  for (size_t i = 0; i < kFrameElements; ++i) data.insert(data.end(), {std::byte{0x12}, std::byte{0x3C}});
  data[1] = std::byte{0x01};  // one escape, at position 0
  const Bytes frame = encoded(kScalarKernels, format, data);
  ASSERT_EQ(frame[2], std::byte{1});
  const auto refuses = [&](Bytes bytes, size_t num_output_bytes) {
    Bytes output(num_output_bytes);
    bool refuses_all = true;
    for (const KernelTable* const kernels : usable_tables())
      refuses_all &= !decode(*kernels, format, bytes, output).ok();
    return refuses_all;
  };
  const auto with = [&](size_t position, uint8_t byte) {
    Bytes bytes = frame;
    bytes.at(position) = static_cast<std::byte>(byte);
    return bytes;
  };
  ASSERT_FALSE(refuses(frame, data.size()));
  EXPECT_TRUE(refuses(with(1, 2), data.size())) << "an unknown content";
  EXPECT_TRUE(refuses(with(1, 1), data.size())) << "raw, with a largest exponent";
  EXPECT_TRUE(refuses(with(2, 0), data.size())) << "an escape that is not listed";
  EXPECT_TRUE(refuses(with(3, 1), data.size())) << "more escapes than allowed";
  EXPECT_TRUE(refuses(with(frame.size() - 3, 1), data.size())) << "an element without that code";
  EXPECT_TRUE(refuses(with(frame.size() - 2, 0x10), data.size())) << "a position beyond the frame";
  EXPECT_TRUE(refuses(frame, data.size() - 2)) << "a whole frame for less data";
}

// Must stay within its buffers (the address sanitizer sees to that) and agree between the kernels.
TEST(Codec, survives_truncated_and_corrupted_frames) {
  std::mt19937 random(13);
  for (int round = 0; round < 2000; ++round) {
    const Format format = kFormats[round % 2];
    const Bytes data = weights(format, 2 * kFrameElements + 5, 14);
    Bytes frames = encoded(kScalarKernels, format, data);
    if (round % 4 < 2) frames.resize(random() % frames.size());
    for (unsigned i = random() % 8; i > 0 && !frames.empty(); --i) {
      const size_t near_header = random() % 2 == 0 ? 8 : frames.size();
      frames[random() % std::min(near_header, frames.size())] = static_cast<std::byte>(random());
    }
    const Bytes exact(frames);
    std::vector<std::pair<bool, Bytes>> outcomes;
    for (const KernelTable* const kernels : usable_tables()) {
      Bytes output(data.size());
      const auto decoded = decode(*kernels, format, exact, output);
      EXPECT_TRUE(!decoded.ok() || decoded.value().num_read <= exact.size());
      outcomes.emplace_back(decoded.ok(), std::move(output));
    }
    for (const auto& outcome : outcomes) EXPECT_TRUE(outcome == outcomes.front()) << "round " << round;
  }
}

}  // namespace
}  // namespace axon::codec
