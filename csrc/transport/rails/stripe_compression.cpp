#include "transport/rails/stripe_compression.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace axon::transport {

// ---- At the sender

// After stripes that did not get shorter, their message's next 1, 2, 4 and so on are not looked at, up to this many.
static constexpr unsigned kMostSkipped = 16;
static constexpr size_t kMostEncodedStripeBytes =
    std::max(codec::most_encoded_bytes(codec::Format::kBFloat16, kMostStripeBytes),
             codec::most_encoded_bytes(codec::Format::kFloat32, kMostStripeBytes));

// Reductions of bfloat16 may send sums in float32, whose halves do not get shorter as bfloat16.
static std::optional<codec::Format> choose_format(DataType type, std::span<const std::byte> data) noexcept {
  const std::optional<codec::Format> format = codec::format_of(type);
  if (!format || codec::is_compressible(*format, data)) return format;
  const bool may_be_sums = format == codec::Format::kBFloat16;
  if (may_be_sums && codec::is_compressible(codec::Format::kFloat32, data)) return codec::Format::kFloat32;
  return std::nullopt;
}

bool StripeEncoder::is_worth_a_look(const OutgoingStripes::Stripe& stripe) noexcept {
  if (stripe.number != std::exchange(number_, stripe.number)) num_to_skip_ = num_skipped_ = 0;
  if (num_to_skip_ == 0) return true;
  --num_to_skip_;
  return false;
}

bool StripeEncoder::may_encode(DataType type, bool link_is_slow) const noexcept {
  if (when_ == Compression::kNever || !codec::format_of(type)) return false;
  return when_ == Compression::kAlways || link_is_slow;
}

bool StripeEncoder::encode(const OutgoingStripes::Stripe& stripe, std::span<const std::byte> data,
                           bool link_is_slow) noexcept {
  forget();
  if (!may_encode(stripe.dtype, link_is_slow) || !is_worth_a_look(stripe)) return false;
  const std::optional<codec::Format> format = choose_format(stripe.dtype, data);
  if (format && encode(*format, data)) {
    num_skipped_ = 0;
    return true;
  }
  num_skipped_ = std::clamp(2 * num_skipped_, 1U, kMostSkipped);
  num_to_skip_ = num_skipped_;
  return false;
}

bool StripeEncoder::encode(codec::Format format, std::span<const std::byte> data) noexcept {
  if (bytes_ == nullptr) {
    if (memory_.num_encoders == EncoderMemory::kMostEncoders) return false;
    ++memory_.num_encoders;
    bytes_ = std::make_unique_for_overwrite<std::byte[]>(kMostEncodedStripeBytes);
  }
  const size_t num_bytes = codec::encode(format, data, bytes_.get());
  if (num_bytes >= data.size()) return false;
  num_bytes_ = num_bytes;
  format_ = format;
  return true;
}

void StripeEncoder::forget() noexcept {
  format_.reset();
  num_bytes_ = 0;
}

void StripeEncoder::release() noexcept {
  forget();
  if (bytes_ == nullptr) return;
  bytes_.reset();
  --memory_.num_encoders;
}

// ---- At the receiver

// No frame is longer, whatever its bytes are.
static constexpr size_t kMostFrameBytes = codec::frame_bytes(codec::Format::kFloat32) + codec::kFrameHeaderBytes;
static constexpr size_t kMostArrivedBytes = size_t{256} << 10;

std::byte* DecoderMemory::bytes() {
  if (bytes_ == nullptr) bytes_ = std::make_unique_for_overwrite<std::byte[]>(kMostFrameBytes + kMostArrivedBytes);
  return bytes_.get();
}

void StripeDecoder::begin(const StripeHeader& header) noexcept {
  format_ = static_cast<codec::Format>(header.format);
  num_bytes_ = header.num_bytes;
  num_decoded_ = 0;
  num_left_ = 0;
}

std::span<std::byte> StripeDecoder::space() noexcept {
  return {memory_.bytes() + num_left_, kMostArrivedBytes};
}

Status StripeDecoder::decode(size_t num_arrived, std::byte* output) noexcept {
  std::byte* const bytes = memory_.bytes();
  if (num_left_ != 0) std::memcpy(bytes, left_.get(), num_left_);
  const std::span<const std::byte> encoded(bytes, num_left_ + num_arrived);
  const auto decoded = codec::decode(format_, encoded, {output, num_bytes_ - num_decoded_});
  if (!decoded.ok()) return decoded.status().clone();
  num_decoded_ += decoded.value().num_written;
  const auto left = encoded.subspan(decoded.value().num_read);
  num_left_ = left.size();
  if (left.empty()) return Status();
  if (is_done()) return {ErrorCode::kTransport, "a compressed stripe with bytes after its last frame"};
  if (left_ == nullptr) left_ = std::make_unique_for_overwrite<std::byte[]>(kMostFrameBytes);
  std::memcpy(left_.get(), left.data(), left.size());
  return Status();
}

}  // namespace axon::transport
