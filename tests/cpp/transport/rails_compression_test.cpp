// Tests compressed stripes: between transports with any settings, over links of any speed, and malformed ones.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <list>
#include <random>

#include "transport/loopback/loopback.hpp"
#include "transport/node.hpp"
#include "transport/rails/rail_transport.hpp"
#include "transport/rails/stripe_compression.hpp"
#include "transport/relay.hpp"

namespace axon::transport {
namespace {

using namespace std::chrono_literals;

constexpr size_t kLong = (size_t{5} << 20) + 6;  // with a last stripe of a part of a frame

// Normal numbers, among them NaNs with payloads, both zeros and denormals.
Bytes weights(DataType type, size_t num_bytes, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.02F);
  const size_t width = size_of(type);
  Bytes bytes(num_bytes);
  for (size_t i = 0; i + width <= num_bytes; i += width) {
    const float value = normal(random);
    const size_t num_copied = std::min(width, sizeof value);  // the most significant bytes
    std::memcpy(bytes.data() + i, reinterpret_cast<const std::byte*>(&value) + sizeof value - num_copied, num_copied);
  }
  const std::array<uint32_t, 4> special{0x80000000, 0x00012345, 0x807FFFFF, 0x3C012345};
  for (size_t i = 0; i < 400; ++i) {
    std::memcpy(bytes.data() + (i * 7919 % (num_bytes / width - 1)) * width,
                reinterpret_cast<const std::byte*>(&special[i % 4]) + 4 - std::min<size_t>(width, 4),
                std::min<size_t>(width, 4));
  }
  const std::array<uint32_t, 2> not_numbers{0x7FA12345, 0xFFFFFFFF};
  std::memcpy(bytes.data(), reinterpret_cast<const std::byte*>(&not_numbers[seed % 2]) + 4 - width, width);
  return bytes;
}

// The settings of `sender` and of `receiver`.
using Settings = std::pair<Compression, Compression>;

class RailsCompression : public testing::TestWithParam<Settings> {
 protected:
  static RailOptions options(Compression compression) {
    return {.num_rails = 2, .devices = {"lo"}, .use = RailOptions::Use::kToAll, .compression = compression};
  }
  static uint16_t port_of(Node& node) {
    const auto address = node.transport().address();
    uint32_t num_bytes = 0;
    std::memcpy(&num_bytes, address.last(sizeof num_bytes).data(), sizeof num_bytes);
    return RailAddress::decode(address.first(address.size() - sizeof num_bytes).last(num_bytes)).value().port;
  }
  // Its address, with the relay's port.
  Bytes relayed(Node& node) const {
    const auto address = node.transport().address();
    Bytes bytes(address.begin(), address.end());
    uint32_t num_bytes = 0;
    std::memcpy(&num_bytes, address.last(sizeof num_bytes).data(), sizeof num_bytes);
    const uint16_t port = relay.port();
    std::memcpy(bytes.data() + bytes.size() - sizeof num_bytes - num_bytes + 24, &port, sizeof port);  // docs/wire.md
    return bytes;
  }
  bool run(const std::function<bool()>& condition) { return drive({&sender, &receiver}, condition); }
  void open_rails() {
    ASSERT_TRUE(run([&] {
      const bool are_open = static_cast<RailTransport&>(sender.transport()).num_open_rails(to_receiver) == 2;
      if (!are_open && sender.all_sends_finished()) sender.send(to_receiver, pattern(kLong, 0));
      return are_open && sender.all_sends_finished() && receiver.num_complete() == receiver.arrivals.size();
    }));
    sender.sends.clear();
    receiver.arrivals.clear();
  }
  // Returns how many bytes the rails carried for it.
  uint64_t carry(DataType type, const Bytes& bytes) {
    const uint64_t before = relay.num_bytes();
    sender.dtype = type;
    sender.send(to_receiver, bytes);
    EXPECT_TRUE(run([&] { return sender.all_sends_finished() && receiver.num_complete() == 1; }));
    EXPECT_TRUE(sender.sends.back().status.ok()) << sender.sends.back().status.message();
    EXPECT_TRUE(!receiver.arrivals.empty() && receiver.arrivals.front().bytes() == bytes) << name_of(type);
    receiver.arrivals.clear();
    sender.sends.clear();
    return relay.num_bytes() - before;
  }

  LoopbackFabric fabric{FaultPlan{}};
  Node sender{with_rails(fabric.make_transport(), options(GetParam().first))};
  Node receiver{with_rails(fabric.make_transport(), options(GetParam().second))};
  Relay relay{port_of(receiver)};
  const PeerId to_receiver = sender.transport().add_peer(relayed(receiver), false).value();
  const PeerId to_sender = receiver.meet(sender, false);
};

INSTANTIATE_TEST_SUITE_P(Settings, RailsCompression,
                         testing::Values(Settings{Compression::kAlways, Compression::kAlways},
                                         Settings{Compression::kAlways, Compression::kNever},
                                         Settings{Compression::kNever, Compression::kAlways},
                                         Settings{Compression::kAuto, Compression::kNever}));

TEST_P(RailsCompression, carries_every_type_unchanged_and_shortens_two) {
  open_rails();
  const bool compresses = GetParam().first == Compression::kAlways;
  for (const DataType type : {DataType::kByte, DataType::kInt32, DataType::kFloat16, DataType::kBFloat16,
                              DataType::kFloat32, DataType::kFloat64}) {
    const uint64_t num_carried = carry(type, weights(type, kLong, 1));
    const double ratio = static_cast<double>(num_carried) / kLong;
    const double expected = !compresses                   ? 1
                            : type == DataType::kBFloat16 ? 0.76
                            : type == DataType::kFloat32  ? 0.88
                                                          : 1;
    EXPECT_TRUE(GetParam().first == Compression::kAuto || std::abs(ratio - expected) < 0.01)
        << name_of(type) << ": " << ratio;
  }
}

TEST_P(RailsCompression, leaves_incompressible_data_as_it_is) {
  open_rails();
  for (const DataType type : {DataType::kBFloat16, DataType::kFloat32}) {
    EXPECT_LT(carry(type, pattern(kLong, 2)), kLong + 1000);
  }
  // Sums in float32 of a reduction in bfloat16.
  const uint64_t num_carried = carry(DataType::kBFloat16, weights(DataType::kFloat32, kLong, 3));
  EXPECT_TRUE(GetParam().first != Compression::kAlways || static_cast<double>(num_carried) < kLong * 0.89);
}

TEST_P(RailsCompression, sends_the_stripes_of_broken_rails_again) {
  for (const uint64_t num_bytes : {0, 1, 39, 40, 41, 50'000, 786'432, 1'500'000, 3'000'000}) {
    open_rails();
    relay.cut_one_after(num_bytes);
    carry(DataType::kBFloat16, weights(DataType::kBFloat16, kLong, static_cast<unsigned>(num_bytes)));
    ASSERT_TRUE(sender.lost.empty() && receiver.lost.empty() && receiver.num_refused == 0) << num_bytes;
  }
}

// ---- The parts

StripeHeader header_of(const StripeEncoder& encoder, size_t num_bytes) {
  return {.num_bytes = static_cast<uint32_t>(num_bytes),
          .num_carried = static_cast<uint32_t>(encoder.bytes().size()),
          .format = static_cast<uint8_t>(*encoder.format())};
}

constexpr bool kFast = false;  // links
constexpr bool kSlow = true;

class StripeCompression : public testing::Test {
 protected:
  // Decodes in parts of a length. Returns whether the whole stripe was decoded.
  bool decode(const StripeHeader& header, std::span<const std::byte> bytes, size_t part, Bytes& output) {
    decoder.begin(header);
    output.assign(header.num_bytes, std::byte{0});
    while (!bytes.empty()) {
      const std::span<std::byte> space = decoder.space();
      const size_t num_arrived = std::min({part, bytes.size(), space.size()});
      std::memcpy(space.data(), bytes.data(), num_arrived);
      bytes = bytes.subspan(num_arrived);
      if (!decoder.decode(num_arrived, output.data() + decoder.num_decoded()).ok()) return false;
    }
    return decoder.is_done();
  }

  EncoderMemory encoder_memory;
  DecoderMemory decoder_memory;
  StripeEncoder encoder{Compression::kAlways, encoder_memory};
  StripeDecoder decoder{decoder_memory};
};

TEST_F(StripeCompression, decodes_parts_of_any_length) {
  const Bytes data = weights(DataType::kFloat32, (size_t{256} << 10) + 12, 4);
  ASSERT_TRUE(encoder.encode({.number = 1, .num_bytes = data.size(), .dtype = DataType::kFloat32}, data, kFast));
  const StripeHeader header = header_of(encoder, data.size());
  EXPECT_TRUE(has_valid_length(header));
  for (const size_t part : {1u, 3u, 1000u, 14'343u, 16'388u, 100'000u, 1'000'000u}) {
    Bytes output;
    EXPECT_TRUE(decode(header, encoder.bytes(), part, output)) << part;
    EXPECT_TRUE(output == data) << part;
  }
}

TEST_F(StripeCompression, is_for_slow_links_unless_it_is_forced) {
  const Bytes data = weights(DataType::kBFloat16, size_t{64} << 10, 9);
  const OutgoingStripes::Stripe stripe{.number = 1, .num_bytes = data.size(), .dtype = DataType::kBFloat16};
  StripeEncoder automatic{Compression::kAuto, encoder_memory};
  EXPECT_FALSE(automatic.encode(stripe, data, kFast));
  EXPECT_TRUE(automatic.encode(stripe, data, kSlow));
  StripeEncoder never{Compression::kNever, encoder_memory};
  EXPECT_FALSE(never.encode(stripe, data, kSlow));
  EXPECT_TRUE(encoder.encode(stripe, data, kFast));
}

TEST_F(StripeCompression, refuses_stripes_that_are_malformed) {
  const Bytes data = weights(DataType::kBFloat16, size_t{64} << 10, 5);
  ASSERT_TRUE(encoder.encode({.number = 1, .num_bytes = data.size(), .dtype = DataType::kBFloat16}, data, kFast));
  const StripeHeader header = header_of(encoder, data.size());
  Bytes output;
  Bytes bytes(encoder.bytes().begin(), encoder.bytes().end());
  EXPECT_FALSE(decode(header, std::span(bytes).first(bytes.size() - 1), 5000, output)) << "truncated";
  bytes.push_back(std::byte{0});
  EXPECT_FALSE(decode(header, bytes, 5000, output)) << "longer";
  bytes[1] = std::byte{9};
  EXPECT_FALSE(decode(header, bytes, 5000, output)) << "no frame";
  for (const StripeHeader& other :
       {StripeHeader{.num_bytes = 8, .num_carried = 9}, StripeHeader{.num_bytes = 8, .num_carried = 8, .format = 3},
        StripeHeader{.num_bytes = 8192, .num_carried = 8197, .format = 1}}) {
    EXPECT_FALSE(has_valid_length(other));
  }
}

TEST_F(StripeCompression, looks_at_fewer_and_fewer_stripes_of_incompressible_messages) {
  const Bytes bits = pattern(size_t{64} << 10, 6);
  const Bytes data = weights(DataType::kBFloat16, bits.size(), 7);
  const OutgoingStripes::Stripe stripe{.number = 1, .num_bytes = bits.size(), .dtype = DataType::kBFloat16};
  // Those that it looks at get shorter, and are followed by a look at the next one.
  EXPECT_FALSE(encoder.encode(stripe, bits, kFast));
  EXPECT_FALSE(encoder.encode(stripe, data, kFast)) << "skipped";
  EXPECT_FALSE(encoder.encode(stripe, bits, kFast));
  EXPECT_FALSE(encoder.encode(stripe, data, kFast)) << "skipped";
  EXPECT_FALSE(encoder.encode(stripe, data, kFast)) << "skipped";
  EXPECT_TRUE(encoder.encode(stripe, data, kFast));
  EXPECT_FALSE(encoder.encode(stripe, bits, kFast));
  OutgoingStripes::Stripe of_another_message = stripe;
  of_another_message.number = 2;
  EXPECT_TRUE(encoder.encode(of_another_message, data, kFast));
}

TEST_F(StripeCompression, bounds_the_memory_of_a_thread) {
  const Bytes data = weights(DataType::kBFloat16, size_t{64} << 10, 8);
  const OutgoingStripes::Stripe stripe{.number = 1, .num_bytes = data.size(), .dtype = DataType::kBFloat16};
  std::list<StripeEncoder> encoders;
  for (size_t i = 0; i < EncoderMemory::kMostEncoders; ++i)
    EXPECT_TRUE(encoders.emplace_back(Compression::kAlways, encoder_memory).encode(stripe, data, kFast));
  EXPECT_FALSE(encoder.encode(stripe, data, kFast));
  encoders.pop_back();
  encoder.release();
  StripeEncoder later(Compression::kAlways, encoder_memory);
  EXPECT_TRUE(later.encode(stripe, data, kFast));
}

}  // namespace
}  // namespace axon::transport
