#include "ipc/registrations/registration_record.hpp"

#include <gtest/gtest.h>

#include <cstring>

namespace axon::ipc {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

RegistrationRecord legacy(uint32_t number, uint64_t num_bytes = 20 * kMiB) {
  RegistrationRecord record{.number = number, .num_bytes = num_bytes, .extents = {}, .legacy = {}};
  record.legacy[0] = std::byte{static_cast<uint8_t>(number)};
  return record;
}

RegistrationRecord run(uint32_t number, std::vector<RegistrationExtent> extents) {
  RegistrationRecord record{.number = number, .num_bytes = 0, .extents = std::move(extents), .legacy = {}};
  for (const RegistrationExtent& extent : record.extents) record.num_bytes += extent.num_bytes;
  return record;
}

// Returns the reason for which a list is refused.
std::string refusal(const std::vector<std::byte>& bytes) {
  Result<std::vector<RegistrationRecord>> records = decode_records(bytes);
  return records.ok() ? "accepted" : records.status().message();
}

std::string refusal(const std::vector<RegistrationRecord>& records) {
  return refusal(encode(records));
}

TEST(RegistrationRecords, survive_the_way) {
  const std::vector<RegistrationRecord> sent{legacy(1), run(2, {{5, 20 * kMiB}, {7, 2 * kMiB}}),
                                             legacy(kLastRegistration)};
  const Result<std::vector<RegistrationRecord>> received = decode_records(encode(sent));
  ASSERT_TRUE(received.ok());
  EXPECT_EQ(received.value(), sent);
}

TEST(RegistrationRecords, none_are_a_list) {
  EXPECT_EQ(refusal(std::vector<RegistrationRecord>{}), "accepted");
}

TEST(RegistrationRecords, as_many_as_there_may_be_fit) {
  std::vector<RegistrationRecord> records;
  for (uint32_t number = 1; number <= kMostRegistrations; ++number) {
    records.push_back(run(number, std::vector<RegistrationExtent>(kMostExtents / kMostRegistrations, {3, 2 * kMiB})));
  }
  EXPECT_EQ(encode(records).size(), kMostRecordBytes);
  EXPECT_EQ(refusal(records), "accepted");
}

TEST(RegistrationRecords, truncated_ones_are_refused) {
  const std::vector<std::byte> whole = encode(std::vector{legacy(1), run(2, {{5, kMiB}, {7, kMiB}})});
  for (size_t length = 1; length < whole.size(); ++length) {
    if (length == encode(std::vector{legacy(1)}).size()) continue;
    const std::vector<std::byte> part(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length));
    EXPECT_NE(refusal(part).find("ends within"), std::string::npos) << length;
  }
}

TEST(RegistrationRecords, impossible_numbers_are_refused) {
  EXPECT_NE(refusal(std::vector{legacy(0)}).find("impossible number"), std::string::npos);
  EXPECT_NE(refusal(std::vector{legacy(kLastRegistration + 1)}).find("impossible number"), std::string::npos);
}

TEST(RegistrationRecords, two_in_one_slot_are_refused) {
  EXPECT_NE(refusal(std::vector{legacy(5), legacy(5)}).find("two registrations"), std::string::npos);
  EXPECT_NE(refusal(std::vector{legacy(5), legacy(5 + cuda::kRegistrationSlots)}).find("two registrations"),
            std::string::npos);
}

TEST(RegistrationRecords, impossible_sizes_are_refused) {
  EXPECT_NE(refusal(std::vector{legacy(1, 0)}).find("impossible size"), std::string::npos);
  EXPECT_NE(refusal(std::vector{legacy(1, kMostRegistrationBytes + 1)}).find("impossible size"), std::string::npos);
  RegistrationRecord record = run(1, {{5, kMiB}, {6, kMiB}});
  record.num_bytes = 3 * kMiB;
  EXPECT_NE(refusal(std::vector{record}).find("longer than its extents"), std::string::npos);
  record.num_bytes = kMiB;
  EXPECT_NE(refusal(std::vector{record}).find("not as long"), std::string::npos);
  record = run(1, {{5, kMiB}, {6, ~uint64_t{0} - kMiB + 2}});  // wraps around to one byte
  record.num_bytes = 1;
  EXPECT_NE(refusal(std::vector{record}).find("not as long"), std::string::npos);
}

TEST(RegistrationRecords, extents_without_descriptors_are_refused) {
  EXPECT_NE(refusal(std::vector{run(1, {{-1, kMiB}})}).find("without a descriptor"), std::string::npos);
}

// The list claims the maximum number of extents and contains none: nothing is allocated for them.
TEST(RegistrationRecords, counts_are_not_believed) {
  std::vector<std::byte> bytes = encode(std::vector{legacy(1)});
  const uint32_t num_extents = ~uint32_t{0};
  std::memcpy(bytes.data() + sizeof(uint32_t), &num_extents, sizeof num_extents);
  EXPECT_NE(refusal(bytes).find("within an extent"), std::string::npos);
}

TEST(RegistrationRecords, too_many_bytes_are_refused) {
  EXPECT_NE(refusal(std::vector<std::byte>(kMostRecordBytes + 80)).find("too many"), std::string::npos);
}

}  // namespace
}  // namespace axon::ipc
