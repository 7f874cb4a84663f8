#include "transport/sockets/frame_reader.hpp"

#include <algorithm>
#include <cstring>

namespace axon::transport {

// More DATA probably follows DATA. What is read into the scratch memory with it must be copied to its place.
static constexpr size_t kMostAfterData = 4096;

size_t FrameReader::num_missing() const noexcept {
  if (num_header_bytes_ < sizeof header_) return sizeof header_ - num_header_bytes_;
  return header_.num_bytes - num_payload_bytes_;
}

std::array<iovec, 2> FrameReader::prepare(std::span<std::byte> scratch) noexcept {
  const iovec rest{scratch.data(), scratch.size()};
  if (num_header_bytes_ == 0) return {rest, iovec{}};
  if (num_header_bytes_ < sizeof header_) {
    return {iovec{reinterpret_cast<std::byte*>(&header_) + num_header_bytes_, num_missing()}, rest};
  }
  const bool is_data = header_.kind == FrameKind::kData;
  return {iovec{payload_ + num_payload_bytes_, num_missing()},
          iovec{scratch.data(), is_data ? std::min(kMostAfterData, scratch.size()) : scratch.size()}};
}

bool FrameReader::consume(size_t num_bytes, std::span<const std::byte> scratch, Handler& handler) noexcept {
  if (num_header_bytes_ != 0) {
    const size_t num_first = std::min(num_bytes, num_missing());
    const bool is_header = num_header_bytes_ < sizeof header_;
    (is_header ? num_header_bytes_ : num_payload_bytes_) += num_first;
    num_bytes -= num_first;
    if (!is_header && num_missing() == 0 && !finish({payload_, header_.num_bytes}, handler)) return false;
  }
  std::span<const std::byte> bytes = scratch.first(num_bytes);
  while (!handler.is_closed()) {
    const bool is_at_payload = num_header_bytes_ == sizeof header_ && payload_ == nullptr;
    if (bytes.empty() && !is_at_payload) return true;
    if (!cut(bytes, handler)) return false;
  }
  return true;
}

// Takes the rest of a header and what is here of its payload.
bool FrameReader::cut(std::span<const std::byte>& bytes, Handler& handler) noexcept {
  if (num_header_bytes_ < sizeof header_) {
    const size_t num_here = std::min(num_missing(), bytes.size());
    std::memcpy(reinterpret_cast<std::byte*>(&header_) + num_header_bytes_, bytes.data(), num_here);
    num_header_bytes_ += num_here;
    bytes = bytes.subspan(num_here);
    if (num_header_bytes_ < sizeof header_) return true;
  }
  return begin(bytes, handler);
}

bool FrameReader::begin(std::span<const std::byte>& bytes, Handler& handler) noexcept {
  num_payload_bytes_ = 0;
  if (!is_valid(header_)) return false;
  const size_t num_here = std::min<size_t>(header_.num_bytes, bytes.size());
  const auto here = bytes.first(num_here);
  bytes = bytes.subspan(num_here);
  const bool is_data = header_.kind == FrameKind::kData;
  if (!is_data && num_here == header_.num_bytes) return finish(here, handler);
  payload_ = is_data ? handler.place(header_) : static_cast<std::byte*>(pool_.allocate(header_.num_bytes));
  if (payload_ == nullptr) return false;
  if (num_here != 0) std::memcpy(payload_, here.data(), num_here);
  num_payload_bytes_ = num_here;
  return num_here < header_.num_bytes || finish({payload_, num_here}, handler);
}

bool FrameReader::finish(std::span<const std::byte> payload, Handler& handler) noexcept {
  const bool is_valid =
      header_.kind == FrameKind::kData ? handler.on_placed(header_) : handler.on_frame(header_, payload);
  release();
  return is_valid;
}

void FrameReader::release() noexcept {
  const bool is_of_pool = payload_ != nullptr && header_.kind != FrameKind::kData;
  if (is_of_pool) pool_.release(payload_, header_.num_bytes);
  payload_ = nullptr;
  num_header_bytes_ = 0;
}

}  // namespace axon::transport
