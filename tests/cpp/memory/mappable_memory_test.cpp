#include "memory/mappable_memory.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "memory/mapped_memory.hpp"

namespace axon {
namespace {

constexpr size_t kNumBytes = 10'000;

std::shared_ptr<MappableMemory> make() {
  return MappableMemory::make(kNumBytes).value();
}

uint64_t address_of(const MappableMemory& memory) {
  return reinterpret_cast<uint64_t>(memory.bytes().data());
}

std::atomic<uint8_t>& byte_at(uint64_t address) {
  return *reinterpret_cast<std::atomic<uint8_t>*>(address);
}

TEST(MappableMemory, begins_as_zeros_at_a_page) {
  const auto memory = make();
  EXPECT_EQ(memory->bytes().size(), kNumBytes);
  EXPECT_EQ(address_of(*memory) % 4096, 0u);
  EXPECT_TRUE(std::ranges::all_of(memory->bytes(), [](std::byte each) { return each == std::byte{}; }));
  EXPECT_FALSE(MappableMemory::make(0).ok());
  EXPECT_FALSE(MappableMemory::make(SIZE_MAX).ok());
}

TEST(MappableMemory, is_found_by_ranges_that_lie_within_it) {
  auto memory = make();
  const auto other = make();
  const uint64_t begin = address_of(*memory);
  EXPECT_EQ(MappableMemory::around(begin, kNumBytes), memory);
  EXPECT_EQ(MappableMemory::around(begin + kNumBytes - 1, 1), memory);
  EXPECT_EQ(MappableMemory::around(begin + kNumBytes, 0), memory);
  EXPECT_EQ(MappableMemory::around(address_of(*other), 1), other);
  EXPECT_EQ(MappableMemory::around(begin, kNumBytes + 1), nullptr);
  EXPECT_EQ(MappableMemory::around(begin + 1, UINT64_MAX), nullptr);
  EXPECT_EQ(MappableMemory::around(begin - 1, 1), nullptr);
  EXPECT_EQ(MappableMemory::around(1, 1), nullptr);
  memory = nullptr;
  EXPECT_EQ(MappableMemory::around(begin, 1), nullptr);
}

TEST(MappableMemory, has_a_bounded_number_of_flags) {
  const auto memory = make();
  std::vector<uint32_t> flags;
  while (const uint32_t flag = memory->take_flag()) flags.push_back(flag);
  EXPECT_EQ(flags.size(), MappableMemory::kNumWords - 1);
  std::ranges::sort(flags);
  EXPECT_EQ(std::ranges::adjacent_find(flags), flags.end());
  memory->give_back(flags.back());
  EXPECT_EQ(memory->take_flag(), flags.back());
}

TEST(MappableMemory, a_process_that_maps_it_reads_and_writes_it) {
  const auto memory = make();
  const uint64_t last = address_of(*memory) + kNumBytes - 1;
  const uint32_t flag = memory->take_flag();
  memory->flag(flag).store(17);
  byte_at(last).store(3);
  const auto location = memory->location();
  const pid_t owner = getpid();
  const pid_t child = fork();
  if (child == 0) {
    const auto mapped = MappedMemory::open(owner, location);
    if (!mapped.ok() || mapped.value()->shift() == 0) _exit(1);
    if (!mapped.value()->contains(last, 1) || byte_at(last + mapped.value()->shift()).load() != 3) _exit(2);
    if (mapped.value()->flag(flag)->load() != 17) _exit(3);
    byte_at(last + mapped.value()->shift()).store(4);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(byte_at(last).load(), 4);
}

TEST(MappedMemory, is_shared_by_its_users) {
  const auto memory = make();
  auto mapped = MappedMemory::open(getpid(), memory->location()).value();
  EXPECT_EQ(MappedMemory::open(getpid(), memory->location()).value(), mapped);
  const std::weak_ptr<MappedMemory> ended = std::exchange(mapped, nullptr);
  EXPECT_TRUE(ended.expired());
  EXPECT_TRUE(MappedMemory::open(getpid(), memory->location()).ok());
}

TEST(MappedMemory, has_no_addresses_beyond_it) {
  const auto memory = make();
  const auto mapped = MappedMemory::open(getpid(), memory->location()).value();
  const uint64_t file = memory->location().address;
  const uint64_t begin = address_of(*memory);
  EXPECT_TRUE(mapped->contains(begin, kNumBytes));
  EXPECT_FALSE(mapped->contains(begin, kNumBytes + 1));
  EXPECT_FALSE(mapped->contains(begin - 1, 1));  // words precede it
  EXPECT_FALSE(mapped->contains(begin + 1, UINT64_MAX));
  EXPECT_FALSE(mapped->contains(file - 1, 1));
  EXPECT_FALSE(mapped->contains(0, 0));
  EXPECT_NE(mapped->flag(1), nullptr);
  EXPECT_EQ(mapped->flag(0), nullptr);
  EXPECT_EQ(mapped->flag(MappableMemory::kNumWords), nullptr);
}

TEST(MappedMemory, is_not_opened_by_a_wrong_location) {
  const auto memory = make();
  const auto other = make();
  auto location = memory->location();
  location.descriptor = other->location().descriptor;  // as if it had been closed, and taken over
  const auto opened = MappedMemory::open(getpid(), location);
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.status().message().find("is of other memory"), std::string::npos) << opened.status().message();
  location = memory->location();
  location.num_bytes += 4096;
  EXPECT_FALSE(MappedMemory::open(getpid(), location).ok());
  location = memory->location();
  location.descriptor = -1;
  EXPECT_FALSE(MappedMemory::open(getpid(), location).ok());
}

}  // namespace
}  // namespace axon
