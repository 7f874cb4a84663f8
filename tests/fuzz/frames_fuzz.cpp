// Fuzzes the frames of a rail for messages, in reads of any length. However the bytes are cut, the same frames come
// out, DATA never leaves its place, and no byte after an invalid frame is handled.
#include <algorithm>
#include <cstring>
#include <vector>

#include "fuzz.hpp"
#include "transport/sockets/frame_reader.hpp"

namespace axon::transport {
namespace {

constexpr size_t kPlaceBytes = 4096;
constexpr size_t kMostBytes = size_t{1} << 16;

// Records what a reader hands out.
struct Recorder final : FrameReader::Handler {
  bool on_frame(const FrameHeader& header, std::span<const std::byte> payload) noexcept override {
    CHECK(is_valid(header) && header.kind != FrameKind::kData && payload.size() == header.num_bytes);
    record(header, payload);
    return header.number % 5 != 4;
  }
  std::byte* place(const FrameHeader& header) noexcept override {
    if (header.num_bytes > kPlaceBytes || header.position > kPlaceBytes - header.num_bytes) return nullptr;
    return memory.data() + header.position;
  }
  bool on_placed(const FrameHeader& header) noexcept override {
    record(header, std::span(memory).subspan(header.position, header.num_bytes));
    return true;
  }
  bool is_closed() const noexcept override { return false; }

  void record(const FrameHeader& header, std::span<const std::byte> payload) {
    const auto bytes = std::as_bytes(std::span(&header, 1));
    handled.insert(handled.end(), bytes.begin(), bytes.end());
    handled.insert(handled.end(), payload.begin(), payload.end());
  }

  std::vector<std::byte> memory = std::vector<std::byte>(kPlaceBytes);
  std::vector<std::byte> handled;
};

// Makes bytes that are mostly valid frames.
std::vector<std::byte> frames_of(Input& input) {
  std::vector<std::byte> bytes;
  while (!input.is_over() && bytes.size() < kMostBytes) {
    const auto chosen = input.take<uint8_t>();
    FrameHeader header{.num_bytes = input.take<uint16_t>() % 600u,
                       .kind = static_cast<FrameKind>(chosen % 16 == 0 ? input.take<uint8_t>() : 1 + chosen % 6),
                       .number = input.take<uint8_t>(),
                       .position = input.take<uint16_t>() % 4000u,
                       .message = {}};
    if (chosen < 8) header.num_bytes = input.take<uint32_t>();
    if (most_bytes_of(header.kind) == 0 && chosen % 8 != 1) header.num_bytes = 0;
    const auto packed = std::as_bytes(std::span(&header, 1));
    bytes.insert(bytes.end(), packed.begin(), packed.end());
    const size_t num_payload_bytes = std::min<size_t>(header.num_bytes, kMostBytes);
    for (size_t i = 0; i < num_payload_bytes; ++i) bytes.push_back(static_cast<std::byte>(i * 7 + chosen));
  }
  return bytes;
}

// Returns whether all bytes were valid.
template <typename Length>
bool read_all(std::span<const std::byte> bytes, Recorder& recorder, Length next_length) {
  SizeClassPool pool;
  FrameReader reader(pool);
  std::vector<std::byte> scratch(size_t{8} << 10);
  while (!bytes.empty()) {
    const auto parts = reader.prepare(scratch);
    size_t num_left = std::clamp<size_t>(next_length(), 1, bytes.size());
    size_t num_read = 0;
    for (const iovec& part : parts) {
      const size_t num_here = std::min(num_left, part.iov_len);
      if (num_here != 0) std::memcpy(part.iov_base, bytes.data(), num_here);
      bytes = bytes.subspan(num_here);
      num_read += num_here;
      num_left -= num_here;
    }
    if (!reader.consume(num_read, scratch, recorder)) return false;
  }
  return true;
}

}  // namespace
}  // namespace axon::transport

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  using namespace axon::transport;
  axon::Input input(data, num_bytes);
  const auto seed = input.take<uint32_t>();
  const std::vector<std::byte> bytes = frames_of(input);
  Recorder at_once;
  Recorder in_parts;
  uint32_t state = seed | 1;
  const bool is_valid_at_once = read_all(bytes, at_once, [] { return SIZE_MAX; });
  const bool is_valid_in_parts = read_all(bytes, in_parts, [&] {
    state = state * 1664525u + 1013904223u;
    return size_t{state >> 16} % (state % 2 == 0 ? 100 : 9000);
  });
  CHECK(is_valid_at_once == is_valid_in_parts);
  CHECK(at_once.handled == in_parts.handled);
  return 0;
}
