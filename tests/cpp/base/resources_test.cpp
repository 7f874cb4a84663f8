// The kernel's table of file descriptors.
#include "base/resources.hpp"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

#include <fstream>
#include <string>
#include <vector>

#include "base/file_descriptor.hpp"

namespace axon {
namespace {

size_t table_size() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("FDSize:")) return std::stoul(line.substr(line.find_first_of("0123456789")));
  }
  return 0;
}

TEST(DescriptorTable, grows_where_it_is_reserved_and_not_when_descriptors_are_opened) {
  const size_t before = table_size();
  ASSERT_GT(before, 0u);
  reserve_descriptors(before);
  const size_t reserved = table_size();
  EXPECT_GT(reserved, before);
  std::vector<FileDescriptor> opened;
  for (size_t i = 0; i < before; ++i) opened.emplace_back(eventfd(0, EFD_CLOEXEC));
  EXPECT_TRUE(opened.back().valid());
  EXPECT_EQ(table_size(), reserved);
}

TEST(DescriptorTable, reservation_beyond_the_limit_leaves_no_descriptor_open) {
  const auto num_free = num_free_descriptors();
  ASSERT_TRUE(num_free.has_value());
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit lower{.rlim_cur = limit.rlim_cur - *num_free + 10, .rlim_max = limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &lower), 0);
  reserve_descriptors(1 << 20);
  EXPECT_EQ(num_free_descriptors(), 10u);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

}  // namespace
}  // namespace axon
