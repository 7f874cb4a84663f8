// Golden bytes: a change here changes the protocol and must increment kWireVersion.
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "transport/message.hpp"
#include "transport/rings/ring_transport.hpp"
#include "transport/tcp_fragments/fragment_transport.hpp"

namespace axon::messaging {
namespace {

TEST(Wire, message_header_bytes) {
  const transport::MessageHeader header{.key = 0x0807060504030201,
                                        .source = 0x0C0B0A09,
                                        .destination = 0x100F0E0D,
                                        .sequence = 0x14131211,
                                        .slot = 0x18171615,
                                        .fingerprint = {.operation = transport::OperationKind::kAllReduce,
                                                        .dtype = DataType::kFloat32,
                                                        .reduction = Reduction::kSum,
                                                        .algorithm = 0x1C,
                                                        .root = -1,
                                                        .num_elements = 0x2827262524232221}};
  const std::array<uint8_t, 40> golden{1,    2,    3,    4,    5,    6,    7,    8,    9,    10,   11,   12,  13, 14,
                                       15,   16,   17,   18,   19,   20,   21,   22,   23,   24,   2,    12,  1,  0x1C,
                                       0xFF, 0xFF, 0xFF, 0xFF, 0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28};
  EXPECT_EQ(std::memcmp(&header, golden.data(), golden.size()), 0);
  EXPECT_EQ(transport::kWireVersion, 12u);
}

TEST(Wire, enumerations_keep_their_values) {
  EXPECT_EQ(static_cast<int>(transport::OperationKind::kBroadcast), 1);
  EXPECT_EQ(static_cast<int>(transport::OperationKind::kPointToPoint), 10);
  EXPECT_EQ(static_cast<int>(transport::OperationKind::kInvoke), 16);
  EXPECT_EQ(static_cast<int>(transport::OperationKind::kClose), 23);
  EXPECT_EQ(static_cast<int>(transport::OperationKind::kWithdrawn), 24);
  EXPECT_EQ(static_cast<int>(transport::OperationKind::kRts), 32);
  EXPECT_EQ(static_cast<int>(transport::OperationKind::kFragment), 35);
  EXPECT_EQ(static_cast<int>(transport::OperationKind::kFailureNotice), 64);
  EXPECT_EQ(static_cast<int>(transport::OperationKind::kProgressReply), 66);
  EXPECT_EQ(static_cast<int>(transport::OperationKind::kDeparture), 67);
  EXPECT_EQ(static_cast<int>(transport::OperationKind::kCredit), 68);
  EXPECT_EQ(static_cast<int>(DataType::kComplex128), 15);
  EXPECT_EQ(static_cast<int>(Reduction::kPremulSum), 9);
}

TEST(Wire, long_message_bytes) {
  const transport::LongMessage message{
      .header = {.key = 1, .fingerprint = {}}, .sender = 0x0807060504030201, .number = 2, .num_bytes = 3};
  const std::array<uint64_t, 8> golden{1, 0, 0, 0xFFFFFFFF00000000, 0, 0x0807060504030201, 2, 3};
  EXPECT_EQ(std::memcmp(&message, golden.data(), sizeof golden), 0);
  EXPECT_EQ(transport::FragmentTransport::kTcpFragmentBytes, 61'440U);
}

TEST(Wire, ring_bytes) {
  const transport::RingHead head{
      .kind = transport::RingHead::Kind::kMessage, .num_bytes = 0x040302, .entry = 0x08070605};
  const std::array<uint8_t, 8> golden_head{2, 2, 3, 4, 5, 6, 7, 8};
  EXPECT_EQ(std::memcmp(&head, golden_head.data(), golden_head.size()), 0);
  EXPECT_EQ(static_cast<int>(transport::RingHead::Kind::kFragment), 7);
  EXPECT_EQ(static_cast<int>(transport::RingHead::Kind::kCall), 8);
  const transport::CallHeader call{.sequence = 0x04030201, .operation = transport::OperationKind::kInvoke, .key = 6};
  const std::array<uint8_t, 8> golden_call{1, 2, 3, 4, 16, 6, 0, 0};
  EXPECT_EQ(std::memcmp(&call, golden_call.data(), golden_call.size()), 0);
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

TEST(Wire, call_bytes) {
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
