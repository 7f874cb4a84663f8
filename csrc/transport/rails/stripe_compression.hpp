// Compresses the stripes of a rail where that is faster: encodes them at the sender, decodes them at the receiver.
// A thread of a rail owns these objects, one per connection.
//
//   StripeEncoder encoder(Compression::kAuto, memory);
//   if (encoder.encode(stripe, data, link_is_slow)) send(encoder.bytes());   // in place of the data
//
//   StripeDecoder decoder(memory);
//   decoder.begin(header);
//   const size_t num_arrived = receive(decoder.space());               // again and again
//   AXON_TRY(decoder.decode(num_arrived, output));
#pragma once

#include <memory>
#include <optional>
#include <span>

#include "codec/codec.hpp"
#include "transport/rails/outgoing_stripes.hpp"
#include "transport/rails/rails.hpp"
#include "transport/rails/stripe.hpp"

namespace axon::transport {

// Counts the encoders of a thread that hold a stripe. Beyond a bound, stripes are sent as they are.
struct EncoderMemory {
  static constexpr size_t kMostEncoders = 8;

  size_t num_encoders = 0;
};

class StripeEncoder {
 public:
  StripeEncoder(Compression when, EncoderMemory& memory) noexcept : when_(when), memory_(memory) {}
  ~StripeEncoder() { release(); }
  StripeEncoder(const StripeEncoder&) = delete;
  StripeEncoder& operator=(const StripeEncoder&) = delete;

  // Returns whether stripes of this type are to be encoded over such a link, if they get shorter.
  bool may_encode(DataType type, bool link_is_slow) const noexcept;
  // Encodes the stripe if that pays. Returns whether it did.
  bool encode(const OutgoingStripes::Stripe& stripe, std::span<const std::byte> data, bool link_is_slow) noexcept;
  // The latest stripe, and its format; none if it was not encoded.
  std::span<const std::byte> bytes() const noexcept { return {bytes_.get(), num_bytes_}; }
  std::optional<codec::Format> format() const noexcept { return format_; }
  // Forgets the latest stripe.
  void forget() noexcept;
  // Frees the memory, too, which the next stripe takes again.
  void release() noexcept;

 private:
  bool is_worth_a_look(const OutgoingStripes::Stripe& stripe) noexcept;
  bool encode(codec::Format format, std::span<const std::byte> data) noexcept;

  const Compression when_;
  EncoderMemory& memory_;
  std::unique_ptr<std::byte[]> bytes_;
  size_t num_bytes_ = 0;
  std::optional<codec::Format> format_;
  uint64_t number_ = 0;       // of the latest message
  unsigned num_to_skip_ = 0;  // stripes of it, because those before did not get shorter
  unsigned num_skipped_ = 0;  // the latest time
};

// The memory in which the bytes of frames arrive. All decoders of a thread share it.
class DecoderMemory {
 public:
  std::byte* bytes();

 private:
  std::unique_ptr<std::byte[]> bytes_;
};

class StripeDecoder {
 public:
  explicit StripeDecoder(DecoderMemory& memory) noexcept : memory_(memory) {}

  void begin(const StripeHeader& header) noexcept;
  size_t num_decoded() const noexcept { return num_decoded_; }

  // Returns memory for the next bytes to arrive. Bytes that are left from before lie in front of it.
  std::span<std::byte> space() noexcept;
  // Decodes all frames that are whole now that these bytes have arrived, and keeps what is left of them.
  Status decode(size_t num_arrived, std::byte* output) noexcept;
  // Returns whether the whole stripe was decoded.
  bool is_done() const noexcept { return num_decoded_ == num_bytes_; }

 private:
  DecoderMemory& memory_;
  codec::Format format_{};
  size_t num_bytes_ = 0;               // of the stripe
  size_t num_decoded_ = 0;             // of them
  std::unique_ptr<std::byte[]> left_;  // a frame of which a part has arrived
  size_t num_left_ = 0;
};

}  // namespace axon::transport
