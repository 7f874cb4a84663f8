// Golden bytes: a change here changes the protocol and must increment kWireVersion.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstring>

#include "transport/message.hpp"
#include "transport/rails/rail_transport.hpp"
#include "transport/rings/ring_transport.hpp"

namespace axon::messaging {
namespace {

using Golden = std::array<uint8_t, 40>;

constexpr uint64_t kKey = 0x0807060504030201;

TEST(Wire, operation_header_bytes) {
  const transport::OperationHeader header{.key = kKey,
                                          .fingerprint = {.operation = transport::OperationKind::kAllReduce,
                                                          .dtype = DataType::kFloat32,
                                                          .reduction = Reduction::kSum,
                                                          .algorithm = 0x0C,
                                                          .root = -1,
                                                          .num_elements = 0x1817161514131211},
                                          .source = 0x1C1B1A19,
                                          .destination = 0x201F1E1D,
                                          .sequence = 0x24232221,
                                          .slot = 0x28272625};
  const Golden golden{1,    2,    3,    4,    5,    6,    7,    8,    2,    12,   1,    0x0C, 0xFF, 0xFF,
                      0xFF, 0xFF, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1A, 0x1B, 0x1C,
                      0x1D, 0x1E, 0x1F, 0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28};
  EXPECT_EQ(std::bit_cast<Golden>(header), golden);
  EXPECT_EQ(transport::kWireVersion, 21u);
}

TEST(Wire, control_header_bytes) {
  const transport::ControlHeader header{.key = kKey,
                                        .kind = transport::MessageKind::kDeparture,
                                        .error = ErrorCode::kAborted,
                                        .latest_sequence = 0x100F0E0D,
                                        .num_sent = 0x1817161514131211,
                                        .source = 0x1C1B1A19,
                                        .destination = 0x201F1E1D,
                                        .num_launched = 0x24232221,
                                        .origin = 0x28272625};
  const Golden golden{1,    2,    3,    4,    5,    6,    7,    8,    67,   4,    0,    0,    0x0D, 0x0E,
                      0x0F, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1A, 0x1B, 0x1C,
                      0x1D, 0x1E, 0x1F, 0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28};
  EXPECT_EQ(std::bit_cast<Golden>(header), golden);
}

TEST(Wire, credit_header_bytes) {
  const transport::CreditHeader header{.key = kKey,
                                       .kind = transport::MessageKind::kCredit,
                                       .num_messages = 0x100F0E0D,
                                       .num_bytes = 0x1817161514131211,
                                       .source = 0x1C1B1A19,
                                       .destination = 0x201F1E1D,
                                       .num_sent = 0x24232221};
  const Golden golden{1,    2,    3,    4,    5,    6,    7,    8,    68,   0,    0,    0,    0x0D, 0x0E,
                      0x0F, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1A, 0x1B, 0x1C,
                      0x1D, 0x1E, 0x1F, 0x20, 0x21, 0x22, 0x23, 0x24, 0,    0,    0,    0};
  EXPECT_EQ(std::bit_cast<Golden>(header), golden);
}

TEST(Wire, call_header_bytes) {
  const transport::CallHeader header{.key = kKey,
                                     .kind = transport::MessageKind::kInvokePayload,
                                     .number = 0x100F0E0D,
                                     .tensor = 0x14131211,
                                     .sent_at_ms = 0x18171615,
                                     .remaining_ms = 0x1C1B1A19,
                                     .num_answers = 0x2827262524232221};
  const Golden golden{1,    2,    3,    4,    5,    6,    7,    8,    18,   0,    0,    0,    0x0D, 0x0E,
                      0x0F, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1A, 0x1B, 0x1C,
                      0,    0,    0,    0,    0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28};
  EXPECT_EQ(std::bit_cast<Golden>(header), golden);
}

TEST(Wire, rendezvous_header_bytes) {
  const transport::RendezvousHeader header{
      .key = kKey, .kind = transport::MessageKind::kCts, .number = 0x1817161514131211, .ticket = 0x201F1E1D1C1B1A19};
  const Golden golden{1,    2,    3,    4,    5,    6,    7,    8,    33,   0,    0,    0,    0,    0,
                      0,    0,    0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1A, 0x1B, 0x1C,
                      0x1D, 0x1E, 0x1F, 0x20, 0,    0,    0,    0,    0,    0,    0,    0};
  EXPECT_EQ(std::bit_cast<Golden>(header), golden);
}

TEST(Wire, one_sided_header_bytes) {
  const transport::OneSidedHeader header{.key = kKey,
                                         .kind = transport::MessageKind::kDone,
                                         .error = ErrorCode::kAccessDenied,
                                         .dtype = DataType::kBFloat16,
                                         .number = 0x100F0E0D,
                                         .grant = 0x14131211,
                                         .transfer = 0x18171615,
                                         .offset = 0x201F1E1D1C1B1A19,
                                         .num_bytes = 0x2827262524232221};
  const Golden golden{1,    2,    3,    4,    5,    6,    7,    8,    47,   12,   11,   0,    0x0D, 0x0E,
                      0x0F, 0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1A, 0x1B, 0x1C,
                      0x1D, 0x1E, 0x1F, 0x20, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28};
  EXPECT_EQ(std::bit_cast<Golden>(header), golden);
}

TEST(Wire, headers_convert_to_each_other_without_a_change) {
  const transport::CallHeader call{.key = kKey, .kind = transport::MessageKind::kClose, .num_answers = 7};
  const transport::MessageHeader header = call;
  EXPECT_EQ(header.key, kKey);
  EXPECT_EQ(header.kind, transport::MessageKind::kClose);
  EXPECT_EQ(std::bit_cast<Golden>(header.as<transport::CallHeader>()), std::bit_cast<Golden>(call));
}

TEST(Wire, each_kind_has_one_family) {
  const auto family_of_number = [](int number) {
    using enum transport::MessageFamily;
    if (number >= 1 && number <= 10) return kOperation;
    if (number >= 16 && number <= 24) return kCall;
    if (number >= 32 && number <= 35) return kRendezvous;
    if (number >= 40 && number <= 52) return kOneSided;
    if ((number >= 64 && number <= 67) || (number >= 70 && number <= 73)) return kControl;
    return number == 68 || number == 69 ? kCredit : kUnknown;
  };
  for (int number = 0; number <= 255; ++number) {
    EXPECT_EQ(family_of(static_cast<transport::MessageKind>(number)), family_of_number(number)) << number;
  }
}

TEST(Wire, enumerations_keep_their_values) {
  EXPECT_EQ(static_cast<int>(transport::OperationKind::kBroadcast), 1);
  EXPECT_EQ(static_cast<int>(transport::OperationKind::kPointToPoint), 10);
  EXPECT_EQ(static_cast<int>(transport::MessageKind::kInvoke), 16);
  EXPECT_EQ(static_cast<int>(transport::MessageKind::kClose), 23);
  EXPECT_EQ(static_cast<int>(transport::MessageKind::kWithdrawn), 24);
  EXPECT_EQ(static_cast<int>(transport::MessageKind::kRts), 32);
  EXPECT_EQ(static_cast<int>(transport::MessageKind::kAck), 35);
  EXPECT_EQ(static_cast<int>(transport::MessageKind::kFailureNotice), 64);
  EXPECT_EQ(static_cast<int>(transport::MessageKind::kProgressReply), 66);
  EXPECT_EQ(static_cast<int>(transport::MessageKind::kDeparture), 67);
  EXPECT_EQ(static_cast<int>(transport::MessageKind::kCredit), 68);
  EXPECT_EQ(static_cast<int>(transport::MessageKind::kLeave), 69);
  EXPECT_EQ(static_cast<int>(DataType::kComplex128), 15);
  EXPECT_EQ(static_cast<int>(Reduction::kPremulSum), 9);
}

TEST(Wire, long_message_bytes) {
  const transport::CallHeader header{.key = 1, .kind = transport::MessageKind::kInvoke, .number = 2};
  const transport::LongMessage message{
      .header = header, .sender = 0x0807060504030201, .num_bytes = 3, .stripe_num_bytes = 4};
  const std::array<uint64_t, 8> golden{1, 0x0000000200000010, 0, 0, 0, 0x0807060504030201, 3, 4};
  EXPECT_EQ(std::memcmp(&message, golden.data(), sizeof golden), 0);
}

TEST(Wire, stripe_bytes) {
  transport::StripeHeader header{
      .ticket = 1, .offset = 0x200000, .num_bytes = 0x100000, .num_carried = 0xC0000, .format = 1, .seal = 0};
  transport::StripeSealer sealer(Digest{std::byte{7}});
  header.seal = sealer.next(header);
  const std::array<uint64_t, 5> golden{1, 0x200000, 0xC0000'00100000, 1, 0x4E9C32EE8A9AA2E2u};
  EXPECT_EQ(std::memcmp(&header, golden.data(), sizeof golden), 0);
  EXPECT_EQ(sealer.next(header), 0xB63258BC2CA5012Fu) << "the second header of a rail has another seal";
}

TEST(Wire, rail_address_bytes) {
  transport::RailAddress address{.name = 0x0807060504030201,
                                 .token = {std::byte{9}},
                                 .port = 0x0A0B,
                                 .takes_turns = true,
                                 .most_processes = 0x0D0C,
                                 .addresses = {transport::kAnyIpv4}};
  const std::array<uint8_t, 48> golden{1, 2, 3, 4, 5, 6, 7, 8, 9,    0,    0,    0,    0,    0,    0, 0,
                                       0, 0, 0, 0, 0, 0, 0, 0, 0x0B, 0x0A, 1,    1,    0x0C, 0x0D, 0, 0,
                                       0, 0, 0, 0, 0, 0, 0, 0, 0,    0,    0xFF, 0xFF, 0,    0,    0, 0};
  const std::vector<std::byte> encoded = address.encode();
  ASSERT_EQ(encoded.size(), golden.size());
  EXPECT_EQ(std::memcmp(encoded.data(), golden.data(), golden.size()), 0);
  EXPECT_EQ(transport::RailAddress::decode(encoded).value().encode(), encoded);
}

TEST(Wire, ring_bytes) {
  const transport::RingHead head{
      .kind = transport::RingHead::Kind::kMessage, .num_bytes = 0x040302, .entry = 0x08070605};
  const std::array<uint8_t, 8> golden_head{2, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(std::memcmp(&head, golden_head.data(), golden_head.size()), 0);
  EXPECT_EQ(static_cast<int>(transport::RingHead::Kind::kData), 7);
  EXPECT_EQ(static_cast<int>(transport::RingHead::Kind::kCall), 8);
  const transport::ShortCallHeader call{.number = 0x04030201, .kind = transport::MessageKind::kInvoke, .key = 6};
  const std::array<uint8_t, 8> golden_call{1, 2, 3, 4, 16, 6, 0, 0};
  EXPECT_EQ(std::memcmp(&call, golden_call.data(), golden_call.size()), 0);
  EXPECT_EQ(std::bit_cast<uint64_t>(transport::TransferHeader{.number = 7}), 7U);
  const transport::RemoteBytes remote{.address = 0x0807060504030201, .num_bytes = 9, .number = 10};
  const std::array<uint64_t, 3> golden_remote{0x0807060504030201, 9, 10};
  EXPECT_EQ(std::memcmp(&remote, golden_remote.data(), sizeof golden_remote), 0);
  EXPECT_EQ(offsetof(transport::RingMemory, num_taken), 0U);
  EXPECT_EQ(offsetof(transport::RingMemory, is_read), 4U);
  EXPECT_EQ(offsetof(transport::RingMemory, sleeps), 8U);
  EXPECT_EQ(offsetof(transport::RingMemory, writer), 16U);
  EXPECT_EQ(offsetof(transport::RingMemory, reader), 24U);
  EXPECT_EQ(offsetof(transport::RingMemory, entries), 128U);
  EXPECT_EQ(sizeof(transport::RingMemory), 128U + 4096 * 64);
}

TEST(Wire, ring_call_bytes) {
  const transport::RingCall call{.key = 0x0807060504030201,
                                 .caller = {.key = 2, .identity = 3, .pid = 4, .page = 5, .pipe = 6},
                                 .number = 7,
                                 .kind = transport::RingCall::Kind::kRing,
                                 .descriptor = 8};
  const std::array<uint32_t, 14> golden{0x04030201, 0x08070605, 2, 0, 3, 0, 4, 5, 6, 0, 7, 0, 1, 8};
  static_assert(sizeof golden == sizeof call);
  EXPECT_EQ(std::memcmp(&call, golden.data(), sizeof golden), 0);
  EXPECT_EQ(offsetof(transport::DoorbellPage, num_calls), 8U);
  EXPECT_EQ(offsetof(transport::DoorbellPage, num_refusals), 12U);
  EXPECT_EQ(offsetof(transport::DoorbellPage, is_closed), 16U);
  EXPECT_EQ(offsetof(transport::DoorbellPage, refusals), 24U);
  EXPECT_EQ(sizeof(transport::DoorbellPage), 24U + 64 * 8);
}

TEST(Wire, names_of_values_out_of_range_are_safe) {
  EXPECT_STREQ(name_of(static_cast<transport::OperationKind>(200)), "unknown operation");
  EXPECT_STREQ(name_of(static_cast<DataType>(200)), "unknown type");
  EXPECT_STREQ(name_of(static_cast<Reduction>(200)), "unknown reduction");
  EXPECT_EQ(size_of(static_cast<DataType>(200)), 1u);
}

}  // namespace
}  // namespace axon::messaging
