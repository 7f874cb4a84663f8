#include "ipc/registrations/exports.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include "ipc/registrations/fake_memory.hpp"

namespace axon::ipc {
namespace {

using testing::FakeOwnMemory;
using Kind = testing::FakeOwnMemory::Kind;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGranule = 20 * kMiB;
constexpr uint64_t kBase = 0x7f00'0000'0000;

class ExportsOf : public ::testing::Test {
 protected:
  cuda::IpcLocation location(uint64_t address, uint64_t num_bytes = kMiB) {
    return exports_.locate(address, num_bytes).location;
  }
  uint32_t number(uint64_t address, uint64_t num_bytes = kMiB) {
    return static_cast<uint32_t>(location(address, num_bytes).registration);
  }
  std::vector<RegistrationRecord> published() {
    Result<std::optional<ExportTableContent>> content =
        read_export_table(reader_, {.address = export_table_.address(), .incarnation = 7});
    return decode_records(content.value()->bytes).value();
  }
  // Allocates a run of granules, as expandable segments do.
  void allocate_run(uint64_t base, int num_granules) {
    for (int i = 0; i < num_granules; ++i) {
      memory_.allocate(base + kGranule * static_cast<uint64_t>(i), kGranule, Kind::kShareable);
    }
  }

  testing::FakeOwnMemory memory_;
  testing::FakePeerMemory reader_;
  ExportTable export_table_{7};
  Exports exports_{memory_, export_table_, {.device = 0, .num_descriptors = 8}};
};

TEST_F(ExportsOf, tensors_of_one_allocation_are_one_registration) {
  memory_.allocate(kBase, kGranule, Kind::kLegacy);
  const Exports::Located first = exports_.locate(kBase + 512, kMiB);
  EXPECT_TRUE(first.is_news);
  EXPECT_EQ(first.location.registration, 1u);
  EXPECT_EQ(first.location.offset, 512u);
  const Exports::Located second = exports_.locate(kBase + 19 * kMiB, kMiB);
  EXPECT_FALSE(second.is_news);
  EXPECT_EQ(second.location.registration, 1u);
  EXPECT_EQ(second.location.offset, 19 * kMiB);
  ASSERT_EQ(published().size(), 1u);
  EXPECT_TRUE(published()[0].extents.empty());
  EXPECT_EQ(published()[0].num_bytes, kGranule);
  EXPECT_NE(published()[0].legacy, cuda::LegacyHandle{});
}

TEST_F(ExportsOf, memory_at_a_used_address_has_another_number) {
  memory_.allocate(kBase, kGranule, Kind::kLegacy);
  EXPECT_EQ(number(kBase), 1u);
  memory_.allocate(kBase, kGranule, Kind::kLegacy);
  EXPECT_EQ(number(kBase), 2u);
  ASSERT_EQ(published().size(), 1u);  // the former cannot be mapped beside it
  EXPECT_EQ(published()[0].number, 2u);
}

TEST_F(ExportsOf, freed_memory_is_dropped) {
  memory_.allocate(kBase, kGranule, Kind::kLegacy);
  memory_.allocate(kBase + kGranule, kGranule, Kind::kLegacy);
  EXPECT_EQ(number(kBase), 1u);
  EXPECT_EQ(number(kBase + kGranule), 2u);
  EXPECT_EQ(exports_.sweep(), 0u);
  memory_.free(kBase, kGranule);
  EXPECT_EQ(exports_.sweep(), 1u);
  ASSERT_EQ(published().size(), 1u);
  EXPECT_EQ(published()[0].number, 2u);
  EXPECT_EQ(number(kBase), 0u);
}

TEST_F(ExportsOf, drivers_that_do_not_answer_free_nothing) {
  memory_.allocate(kBase, kGranule, Kind::kLegacy);
  EXPECT_EQ(number(kBase), 1u);
  memory_.is_mute = true;
  EXPECT_EQ(exports_.sweep(), 0u);
  EXPECT_EQ(number(kBase), 0u);
  memory_.is_mute = false;
  EXPECT_EQ(number(kBase), 1u);
}

TEST_F(ExportsOf, pools_are_refused_once) {
  memory_.allocate(kBase, kGranule, Kind::kPool);
  EXPECT_EQ(number(kBase), 0u);
  EXPECT_FALSE(exports_.locate(kBase, kMiB).is_news);
  EXPECT_TRUE(published().empty());
}

TEST_F(ExportsOf, noted_memory_is_new_once_and_not_exported) {
  memory_.allocate(kBase, kGranule, Kind::kLegacy);
  EXPECT_TRUE(exports_.note(kBase, kMiB));
  EXPECT_FALSE(exports_.note(kBase + kMiB, kMiB));
  EXPECT_TRUE(published().empty());
  memory_.allocate(kBase, kGranule, Kind::kLegacy);
  EXPECT_TRUE(exports_.note(kBase, kMiB));
  EXPECT_EQ(number(kBase), 1u);
  EXPECT_FALSE(exports_.note(kBase, kMiB));
  EXPECT_FALSE(exports_.note(kBase - 1, kMiB));
}

TEST_F(ExportsOf, exported_memory_is_not_new) {
  memory_.allocate(kBase, kGranule, Kind::kLegacy);
  EXPECT_EQ(number(kBase), 1u);
  EXPECT_FALSE(exports_.note(kBase, kMiB));
}

TEST_F(ExportsOf, memory_of_other_devices_is_refused) {
  memory_.allocate(kBase, kGranule, Kind::kLegacy, 1);
  EXPECT_EQ(number(kBase), 0u);
}

// One physical extent at two addresses may have one id.
TEST_F(ExportsOf, what_is_mapped_twice_is_offered_once) {
  memory_.allocate(kBase, kGranule, Kind::kShareable);
  EXPECT_EQ(number(kBase), 1u);
  memory_.map_again(kBase, kBase + 4 * kGranule);
  EXPECT_EQ(number(kBase + 4 * kGranule), 0u);
  EXPECT_EQ(number(kBase + 4 * kGranule), 0u);
  EXPECT_EQ(number(kBase), 1u);
  EXPECT_EQ(published().size(), 1u);
}

TEST_F(ExportsOf, what_is_not_memory_is_nowhere) {
  memory_.allocate(kBase, kGranule, Kind::kLegacy);
  EXPECT_EQ(number(kBase - 1), 0u);
  EXPECT_EQ(number(kBase, 0), 0u);
  EXPECT_EQ(number(kBase, kGranule + 1), 0u);
  EXPECT_EQ(number(kBase, ~uint64_t{0}), 0u);
}

TEST_F(ExportsOf, tensors_over_several_granules_are_runs) {
  allocate_run(kBase, 4);
  const cuda::IpcLocation spanning = location(kBase + kGranule + 512, 2 * kGranule);
  EXPECT_EQ(spanning.registration, 1u);
  EXPECT_EQ(spanning.offset, 512u);
  ASSERT_EQ(published().size(), 1u);
  EXPECT_EQ(published()[0].num_bytes, 3 * kGranule);
  EXPECT_EQ(published()[0].extents.size(), 3u);
  const cuda::IpcLocation within = location(kBase + 2 * kGranule, kGranule);
  EXPECT_EQ(within.registration, 1u);
  EXPECT_EQ(within.offset, kGranule);
  EXPECT_EQ(location(kBase, 2 * kGranule).registration, 2u);  // begins before it
  EXPECT_EQ(memory_.num_shared, 4);                           // each granule once, whatever contains it
}

TEST_F(ExportsOf, runs_have_no_gaps) {
  allocate_run(kBase, 2);
  allocate_run(kBase + 3 * kGranule, 1);
  EXPECT_EQ(number(kBase, 4 * kGranule), 0u);
}

// A granule in the middle is remapped: the ends are unchanged, but the registration must be new.
TEST_F(ExportsOf, runs_go_with_each_of_their_granules) {
  allocate_run(kBase, 3);
  EXPECT_EQ(number(kBase, 3 * kGranule), 1u);
  EXPECT_EQ(number(kBase + 2 * kGranule), 1u);
  memory_.allocate(kBase + kGranule, kGranule, Kind::kShareable);
  EXPECT_EQ(number(kBase, 3 * kGranule), 2u);
  EXPECT_EQ(published().size(), 1u);
  memory_.free(kBase + kGranule, kGranule);
  EXPECT_EQ(exports_.sweep(), 1u);
  EXPECT_TRUE(published().empty());
  EXPECT_EQ(number(kBase), 3u);
}

TEST_F(ExportsOf, descriptors_are_open_as_long_as_they_are_named) {
  allocate_run(kBase, 3);
  EXPECT_EQ(number(kBase, 2 * kGranule), 1u);
  EXPECT_EQ(number(kBase + kGranule, 2 * kGranule), 2u);
  const std::vector<RegistrationRecord> before = published();
  const int only_first = before[0].extents[0].descriptor;
  const int shared = before[0].extents[1].descriptor;
  EXPECT_EQ(shared, before[1].extents[0].descriptor);
  memory_.free(kBase, kGranule);
  EXPECT_EQ(exports_.sweep(), 1u);
  EXPECT_EQ(fcntl(only_first, F_GETFD), -1);
  EXPECT_NE(fcntl(shared, F_GETFD), -1);
}

TEST_F(ExportsOf, descriptors_are_bounded) {
  allocate_run(kBase, 12);
  EXPECT_EQ(number(kBase, 6 * kGranule), 1u);
  EXPECT_EQ(number(kBase + 6 * kGranule, 3 * kGranule), 0u);
  EXPECT_EQ(number(kBase + 7 * kGranule, 2 * kGranule), 2u);  // descriptors of the failed attempt were closed
  memory_.free(kBase, kGranule);
  EXPECT_EQ(exports_.sweep(), 1u);
  EXPECT_EQ(number(kBase + 6 * kGranule, 3 * kGranule), 3u);
}

TEST_F(ExportsOf, numbers_wait_for_their_slot) {
  memory_.allocate(kBase, kMiB, Kind::kLegacy);
  EXPECT_EQ(number(kBase), 1u);  // stays
  const uint64_t other = kBase + kGranule;
  for (uint32_t expected = 2; expected < 3 * cuda::kRegistrationSlots; ++expected) {
    if (expected % cuda::kRegistrationSlots == 1) continue;
    memory_.allocate(other, kMiB, Kind::kLegacy);
    ASSERT_EQ(number(other), expected);
  }
  EXPECT_EQ(published().size(), 2u);
}

TEST_F(ExportsOf, registrations_are_bounded) {
  for (uint64_t i = 0; i < kMostRegistrations; ++i) {
    memory_.allocate(kBase + i * kMiB, kMiB, Kind::kLegacy);
    ASSERT_NE(number(kBase + i * kMiB), 0u);
  }
  memory_.allocate(kBase + kMostRegistrations * kMiB, kMiB, Kind::kLegacy);
  EXPECT_EQ(number(kBase + kMostRegistrations * kMiB), 0u);
  memory_.free(kBase, kMiB);
  exports_.sweep();
  EXPECT_NE(number(kBase + kMostRegistrations * kMiB), 0u);
  EXPECT_EQ(published().size(), kMostRegistrations);
}

}  // namespace
}  // namespace axon::ipc
